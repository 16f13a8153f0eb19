"""Check the files of a model before transformers opens any of them.

transformers asks on standard input whether to run a model's own code, opens as a pickle whatever an index of
weights names, follows that name out of the folder, and builds whatever a config says, a billion layers or
none. None of this happens here.
"""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import transformers
from huggingface_hub.constants import ENDPOINT  # which transformers itself needs

from tokenlight.data.tokenizer import tokenizer_panics_as_errors
from tokenlight.errors import (
    BadInput,
    DamagedFile,
    TokenlightError,
    UnsupportedModel,
    short_repr,
    truncate_text,
)
from tokenlight.files.parsing import read_json
from tokenlight.models.embedded import ENCODER_FILE, MODELS_FOLDER
from tokenlight.models.implementations import check_implementations

# Options for every call of transformers: no code of the model, no pickles.
NO_REMOTE_CODE = {"trust_remote_code": False}
SAFE_WEIGHTS_OPTIONS = {"use_safetensors": True, **NO_REMOTE_CODE}
FORBIDDEN_OPTIONS = (
    "trust_remote_code", "use_safetensors", "weights_only", "output_loading_info", "allow_all_kernels",
)  # fmt: skip
INDEX_FILE = "model.safetensors.index.json"
OPENED_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")  # that transformers opens
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
CONFIG_FILES = (
    "adapter_config.json", "config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json",
)  # fmt: skip
MAX_FILE_NAME_BYTES = 255  # of common file systems
HUB_OPTION_NAMES = ("revision", "cache_dir", "local_files_only", "token", "subfolder")
MAX_LAYERS = 1000
MAX_HEADS = 1 << 24
MAX_WIDTH = 1 << 24
MAX_LABELS = 1 << 20
# Regular expression for fields, with their smallest and largest value: beyond it, building the model takes
# hours or never ends.
CONFIG_RANGES = (
    (r"(n|num|num_hidden|encoder|decoder)_layers?|depths?", 1, MAX_LAYERS),
    (r"(n|num_attention|num_key_value)_heads?", 1, MAX_HEADS),
    (r"(hidden|intermediate|vocab)_size|d_model|n_embd|dim", 1, MAX_WIDTH),
    ("num_labels", 1, MAX_LABELS),
    ("pad_token_id", 0, 1 << 24),
    # A larger value cuts the tokens into chunks that must be of equal length.
    ("chunk_size_feed_forward", 0, 1),
)


def check_model_files(
    name: str, folder_or_id: str, *, with_weights: bool = True, **hub_options: Any
) -> None:
    """Refuse a model that brings code or a pickle, or names files elsewhere.

    Args:
        name: The model, as the user named it.
        folder_or_id: Its folder or hub id.
        with_weights: Whether weights are loaded, too; a tokenizer alone may lie next to a pickle.
        hub_options: Options of from_pretrained().

    Raises:
        BadInput: An option is not allowed.
        DamagedFile: A file is unsafe or malformed.
        UnsupportedModel: The model needs code that is not part of transformers.
    """
    refuse_forbidden_options(name, hub_options)
    folder = Path(folder_or_id, hub_options.get("subfolder") or "")
    if folder.is_dir():
        _check_pickles(folder, with_weights)
        _check_links(folder)
    index_files = sorted(path.name for path in folder.glob("*.safetensors.index.json"))
    for file_name in index_files or [INDEX_FILE]:
        path = fetch_file(folder_or_id, file_name, hub_options)
        if path is not None:
            _check_weight_index(path, read_model_json(path), folder)
    family = None
    for file_name in CONFIG_FILES:
        path = fetch_file(folder_or_id, file_name, hub_options)
        if path is None:
            continue
        content = read_model_json(path)
        if file_name == "config.json":
            family = content.get("model_type")
        _check_config_content(name, path, content, family)
        check_config_values(path, content)


def refuse_forbidden_options(name: str, hub_options: dict[str, Any]) -> None:
    """Refuse options that would let transformers run code or open pickles.

    Args:
        name: The model, as the user named it.
        hub_options: Options of from_pretrained().

    Raises:
        BadInput: An option is not allowed.
    """
    for option in FORBIDDEN_OPTIONS:
        if option not in hub_options:
            continue
        value = hub_options[option]
        if option == "trust_remote_code" and (value is None or value is False):
            continue
        raise BadInput(
            f"{option} is not allowed: tokenlight opens only safetensors files and runs no code that comes "
            "with a model. Load the model yourself and give Explainer(model, tokenizer).",
            code="option-forbidden",
        )
    check_implementations(name, "given as a keyword", hub_options)
    subfolder = hub_options.get("subfolder")
    if not isinstance(subfolder, str | None):
        raise BadInput(
            f"subfolder={short_repr(subfolder)} is not the name of a folder. Give a string.",
            code="subfolder-type",
        )
    longest_part = max(Path(subfolder or "").parts, key=len, default="")
    if len(longest_part.encode()) > MAX_FILE_NAME_BYTES:
        raise BadInput(
            f"subfolder={short_repr(subfolder)} has a part of more than {MAX_FILE_NAME_BYTES} bytes, too "
            "long for the name of a folder. Give a shorter one.",
            code="subfolder-too-long",
        )


def add_offline_option(hub_options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with ``local_files_only`` if the hub's name cannot be resolved.

    Otherwise the hub's library would try for half a minute. Behind a proxy the name need not be known to
    this machine.
    """
    try:
        if not {"http", "https", "all"} & set(getproxies()):
            socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
        return hub_options
    except OSError:
        return {"local_files_only": True, **hub_options}


def fetch_file(folder_or_id: str, file_name: str, hub_options: dict[str, Any]) -> Path | None:
    """Return the path of a model's file, downloaded if need be; None if there is none.

    A file that cannot be downloaded is reported later, when it is loaded.

    Args:
        folder_or_id: A folder, or a hub id.
        file_name: The name of the file within the model.
        hub_options: Options of ``from_pretrained``, such as ``revision`` or ``local_files_only``.
    """
    quiet_options = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
        "_raise_exceptions_for_gated_repo": False,
    }
    try:
        path = transformers.utils.cached_file(
            folder_or_id, file_name, **select_hub_options(hub_options), **quiet_options
        )
    except (OSError, ValueError):
        return None
    return Path(path) if path else None


def select_hub_options(hub_options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that say where the files are."""
    return {key: value for key, value in hub_options.items() if key in HUB_OPTION_NAMES}


@contextmanager
def model_file_errors_described(name: str, description: str) -> Iterator[None]:
    """Turn whatever transformers raises inside the block into an error that names the file.

    Args:
        name: The model, as the user named it.
        description: The file, as the beginning of a sentence.
    """
    try:
        with tokenizer_panics_as_errors(f"{description} of {name}"):
            yield
    except TokenlightError:
        raise
    except ImportError as error:
        raise UnsupportedModel(
            f"{description} of {name} needs a library: {get_first_message_line(error)}",
            code="model-needs-library",
        ) from error
    except Exception as error:  # other libraries raise anything, even a bare Exception
        raise DamagedFile(
            f"{description} of {name} cannot be read: {get_first_message_line(error)}",
            code="model-file-unreadable",
        ) from error


def get_first_message_line(error: Exception) -> str:
    """Return the first line of another library's message, as a sentence of at most 240 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        lines = [type(error).__name__]
    message = lines[0]
    if message.endswith(":"):
        message = " ".join(lines[:2])
    if isinstance(error, KeyError):
        message = f"there is no entry named {message}"
    message = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", message).replace("NoneType", "null")
    message = truncate_text(message, 240)
    return message if message.endswith((".", "!", "?", "…")) else f"{message.rstrip(':;,')}."


def read_model_json(path: Path, expected_type: type = dict) -> Any:
    """Return the JSON of a model's file.

    Args:
        path: The file.
        expected_type: dict or list.

    Raises:
        DamagedFile: The file cannot be read, or holds something else.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise DamagedFile(
            f"{path} cannot be read: {error}. Save the model again with model.save_pretrained(folder).",
            code="model-json-unreadable",
        ) from error
    if not isinstance(content, expected_type):
        expected = "JSON object" if expected_type is dict else "JSON list"
        raise DamagedFile(
            f"{path} does not hold a {expected}. Save the model again with model.save_pretrained(folder).",
            code="model-json-type",
        )
    return content


def _check_pickles(folder: Path, with_weights: bool) -> None:
    """Refuse a folder that holds its weights only as a pickle."""
    pickles: list[str] = []
    for pattern in PICKLE_PATTERNS:
        pickles.extend(path.name for path in folder.glob(pattern))
    if with_weights and pickles and not any(folder.glob("*.safetensors*")):
        raise DamagedFile(
            f"{folder} holds its weights only as {', '.join(sorted(pickles))}, a pickle, which can run code "
            "when it is opened. If you trust it, load it yourself and call model.save_pretrained(folder).",
            code="weights-pickle",
        )


def _check_links(folder: Path) -> None:
    """Refuse files that are links out of the folder, pipes or devices, which may never end."""
    real_folder = folder.resolve()
    # In the cache of a hub, the files of a snapshot are links to a folder of blobs.
    blobs = None
    if real_folder.parent.name == "snapshots":
        blobs = real_folder.parent.parent / "blobs"
    for file in (*folder.iterdir(), *folder.glob("1_Pooling/*"), *folder.glob("*/*.jinja")):
        if file.suffix not in OPENED_SUFFIXES:
            continue
        real_file = file.resolve()
        is_inside = real_file.is_relative_to(real_folder)
        if not is_inside and (blobs is None or real_file.parent != blobs):
            raise DamagedFile(
                f"{file} links to {real_file}, outside its folder, and is not opened: a model's files are "
                "read only from its own folder. Copy them there, or give the folder that holds them.",
                code="model-file-outside",
            )
        if not real_file.is_file():
            raise DamagedFile(
                f"{file} is not a regular file, and is not opened: a model's files are read only from its "
                "own folder. Copy them there, or give the folder that holds them.",
                code="model-file-irregular",
            )


def _check_weight_index(index: Path, content: dict[str, Any], folder: Path) -> None:
    """Refuse an index that names other files than safetensors files next to it.

    In a folder, these files must exist; those of a hub are downloaded later.
    """
    shards = content.get("weight_map")
    if not isinstance(shards, dict) or not isinstance(content.get("metadata", {}), dict):
        raise DamagedFile(
            f"{index} is not an index of weights: it has no weight_map to files. Save the model again with "
            "model.save_pretrained(folder).",
            code="weight-index",
        )
    is_embedded = folder.is_dir() and folder.resolve().parent == MODELS_FOLDER.resolve()
    for shard in sorted({str(shard) for shard in shards.values()}):
        if is_embedded and shard == f"../{ENCODER_FILE}":
            continue
        _check_weight_file_name(index, shard, ".safetensors")
        if folder.is_dir() and not (folder / shard).is_file():
            raise DamagedFile(
                f"{index} names {shard!r}, but there is no such file. Copy it there.",
                code="weight-shard-missing",
            )


def _check_weight_file_name(file: Path, weights: str, *extensions: str) -> None:
    is_plain_name = PurePath(weights).name == weights and "\\" not in weights
    if not is_plain_name or not weights.endswith(extensions):
        raise DamagedFile(
            f"{file} names {weights!r} as a file of weights. Only *.safetensors files next to it are opened, "
            "because any other could run code or be outside the model's folder.",
            code="weight-file-name",
        )


def _check_config_content(name: str, file: Path, content: dict[str, Any], family: object) -> None:
    """Refuse a file that names code, an adapter, or files elsewhere."""
    if file.name == "adapter_config.json":
        # Its weights may be a pickle, and its other fields name models and files elsewhere.
        base = content.get("base_model_name_or_path") or "another model"
        raise UnsupportedModel(
            f"{name} is a PEFT adapter of {base}, not a whole model. Load it with peft's "
            "AutoPeftModelFor….from_pretrained, and give Explainer(model, tokenizer).",
            code="model-is-an-adapter",
        )
    if content.get("auto_map") and not _is_known_class(file, content, family):
        raise UnsupportedModel(
            f"{name} brings its own code ({file.name}: auto_map), and tokenlight runs no code that comes "
            "with a model. Read that code, load the model yourself and give Explainer(model, tokenizer).",
            code="model-brings-code",
        )
    if content.get("transformers_weights") is not None:
        weights = str(content["transformers_weights"])
        _check_weight_file_name(file, weights, ".safetensors", ".safetensors.index.json")
    check_implementations(name, file.name, content)
    if file.name == "tokenizer_config.json":
        _check_tokenizer_files(file, content)


def _is_known_class(file: Path, content: dict[str, Any], family: object) -> bool:
    """Return whether transformers uses a class of its own in spite of an auto_map."""
    if isinstance(family, str) and family in transformers.CONFIG_MAPPING:
        return True
    if file.name == "config.json":
        return False
    return hasattr(transformers, str(content.get("tokenizer_class")))


def _check_tokenizer_files(file: Path, content: dict[str, Any]) -> None:
    """Refuse a tokenizer that names existing files outside of its folder."""
    for key, value in _iter_strings("", content):
        is_path = key.endswith(("_file", "_files")) and "/" in value
        if is_path and Path(value).exists():
            raise DamagedFile(
                f"{file} names a file outside its folder ({key} is {value!r}). Remove that line.",
                code="tokenizer-file-outside",
            )


def check_config_values(file: Path, content: dict[str, Any]) -> None:
    """Refuse fields of a wrong type, and sizes that cannot be built.

    Args:
        file: Where the config comes from, for the message.
        content: The config.

    Raises:
        DamagedFile: A field has a value that no model of transformers can have.
    """
    for field, value in content.items():
        expected = "" if value is None else _describe_expected(field, value)
        if expected:
            raise DamagedFile(
                f"{file} says {field} = {short_repr(value)}, where {expected} is expected. Correct that "
                "field.",
                code="config-value",
            )
    for field, size, largest in _find_too_large(content):
        raise DamagedFile(
            f"{file} says {field} = {short_repr(size)}, but at most {largest:,} is allowed. Correct that "
            "field.",
            code="config-too-large",
        )


def _iter_strings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield every string of a document, with the key it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for inner_key, inner in value.items():
            yield from _iter_strings(str(inner_key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_strings(key, inner)


def _describe_expected(field: str, value: Any) -> str:
    """Return what a field should hold; empty if the value is valid or the field does not matter."""
    if field == "model_max_length" and not isinstance(value, int | float):
        return "a number"
    if field in ("architectures", "model_input_names") and not _is_string_list(value):
        return "a list of names"
    if field == "id2label" and not _is_label_table(value):
        return 'a table of every class, such as {"0": "no", "1": "yes"}'
    # Models with stages have a list of sizes, which is checked later.
    return _describe_expected_number(field, value) if isinstance(value, int | str) else ""


def _describe_expected_number(field: str, value: int | str) -> str:
    """Return the range of a field that holds a number; empty if the value is in it."""
    for pattern, smallest, largest in CONFIG_RANGES:
        is_number_field = re.fullmatch(pattern, field) is not None
        is_in_range = type(value) is int and smallest <= value <= largest
        if is_number_field and not is_in_range:
            return f"a number from {smallest} to {largest:,}"
    return ""


def _is_string_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_label_table(value: Any) -> bool:
    """Return whether a value maps "0", "1" … to names, without gaps."""
    if not isinstance(value, dict) or not value:
        return False
    indices = {str(index) for index in range(len(value))}
    return set(value) == indices and _is_string_list(list(value.values()))


def _find_too_large(content: Any, field: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield numbers, at any depth, that exceed the largest value of their field, and that value."""
    if isinstance(content, dict):
        for inner_field, value in content.items():
            yield from _find_too_large(value, str(inner_field))
    elif isinstance(content, list):  # one number per stage of a model
        for value in content:
            yield from _find_too_large(value, field)
    elif type(content) is int:
        for pattern, _, largest in CONFIG_RANGES:
            if re.fullmatch(pattern, field) and content > largest:
                yield field, content, largest
