"""What a model's files may be, name and say: looked at before transformers opens any of them.

transformers asks on standard input whether to run a model's own code, opens as a pickle whatever an
index of weights names, follows that name out of the folder, and builds what a config says, a thousand
million layers or none. Nothing of it happens here.
"""

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import transformers
from huggingface_hub.constants import ENDPOINT  # which transformers itself needs

from tokenlight.errors import BadInput, DamagedFile, TokenlightError, UnsupportedModel, short, shown
from tokenlight.files.documents import json_in
from tokenlight.models.embedded import ENCODER, FOLDER

# What of a model is asked of transformers, whoever asks: none of its code, none of its pickles.
SAFE = {"trust_remote_code": False}
WEIGHTS = {"use_safetensors": True, **SAFE}
SET_HERE = (
    "trust_remote_code", "use_safetensors", "weights_only", "output_loading_info", "allow_all_kernels",
)  # fmt: skip
INDEX = "model.safetensors.index.json"
READ = (".json", ".safetensors", ".txt", ".model", ".jinja")  # endings that transformers opens
UNSAFE = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
CONTENT = (
    "adapter_config.json", "config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json",
)  # fmt: skip
FETCHED = ("revision", "cache_dir", "local_files_only", "token", "subfolder")
# Fields, with their least and most: beyond it, building the model takes hours or cannot end.
RANGES = (
    (r"(n|num|num_hidden|encoder|decoder)_layers?", 1, 1000),
    (r"(n|num_attention|num_key_value)_heads?", 1, 1 << 24),
    (r"(hidden|intermediate|vocab)_size|d_model|n_embd|dim", 1, 1 << 24),
    ("num_labels", 1, 1 << 20),
    ("pad_token_id", 0, 1 << 24),
    ("chunk_size_feed_forward", 0, 1),  # more cuts the tokens into parts that must come out even
)


def check(name: str, place: str, *, weights: bool = True, **hub: Any) -> None:
    """Refuse a model at ``place`` (a folder or a hub id) that brings code, a pickle or a way out;
    ``weights``: whether they are loaded, too, since a tokenizer alone may stand beside a pickle."""
    for word in SET_HERE:
        if word in hub and (word != "trust_remote_code" or hub[word]):
            raise BadInput(
                f"{word} is not taken: tokenlight opens safetensors files alone and runs no code that "
                "comes with a model. Load the model yourself and give Explainer(model, tokenizer)."
            )
    if not isinstance(hub.get("subfolder"), str | None):
        raise BadInput(f"subfolder={shown(hub['subfolder'])} is no name of a folder; give a text.")
    folder = Path(place, hub.get("subfolder") or "")
    if folder.is_dir():
        _only_own_files(folder, weights)
    indices = sorted(path.name for path in folder.glob("*.safetensors.index.json")) or [INDEX]
    family = None
    for file in (*indices, *CONTENT):
        found = fetched(place, file, hub)
        if found is None:
            continue
        content = document(found)
        if file in indices:
            _only_safetensors(found, content, folder)
            continue
        family = content.get("model_type") if file == "config.json" else family
        _only_safe_content(name, found, content, family)
        for field, value in content.items():
            if value is not None and (wanted := _wanted(field, value)):
                said = f"{found} says {field} = {shown(value)}"
                raise DamagedFile(f"{said}, where {wanted} belongs. Mend that field.")


def reaching(hub: dict[str, Any]) -> dict[str, Any]:
    """``hub`` with the cache alone where the hub's name cannot even be looked up: its library would
    try for half a minute. A proxy may know the name where this machine does not."""
    try:
        if not {"http", "https", "all"} & set(getproxies()):
            socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
        return hub
    except OSError:
        return {"local_files_only": True, **hub}


def fetched(place: str, file: str, hub: dict[str, Any]) -> Path | None:
    """A file of a model's folder, or of a hub; None where it cannot be had, which its loading will tell."""
    troubles = ("missing_entries", "connection_errors", "gated_repo")
    quiet = {f"_raise_exceptions_for_{what}": False for what in troubles}
    try:
        found = transformers.utils.cached_file(place, file, **fetching(hub), **quiet)
    except (OSError, ValueError):
        return None
    return Path(found) if found else None


def fetching(hub: dict[str, Any]) -> dict[str, Any]:
    """Of what was given for a hub, that which says where its files are."""
    return {key: value for key, value in hub.items() if key in FETCHED}


@contextmanager
def opening(name: str, what: str) -> Iterator[None]:
    """Within: whatever transformers makes of a model's files, what goes wrong is said of ``what``."""
    try:
        yield
    except TokenlightError:
        raise
    except ImportError as lost:
        raise UnsupportedModel(f"{what} of {name} needs a library: {first_line(lost)}") from lost
    except Exception as broken:  # other libraries' readers raise anything, bare Exception included
        raise DamagedFile(f"{what} of {name} cannot be read: {first_line(broken)}") from broken


def first_line(trouble: Exception) -> str:
    """The first line of another library's message with its full stop, in words."""
    lines = [line.strip() for line in str(trouble).splitlines() if line.strip()]
    lines = lines or [type(trouble).__name__]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    if isinstance(trouble, KeyError):
        said = f"there is nothing called {said}"
    said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", said).replace("NoneType", "null")
    said = short(said, 240)
    return said if said.endswith((".", "!", "?", "…")) else f"{said.rstrip(':;,')}."


def document(file: Path, kind: type = dict) -> Any:
    """The JSON of a model's file, a table of names with values or a list."""
    content, wrong = None, f"holds no {'table of names with values' if kind is dict else 'list'}"
    try:
        content = json_in(file)
    except (OSError, ValueError) as broken:
        wrong = f"cannot be read: {broken}"
    if not isinstance(content, kind):
        again = "Save the model again with model.save_pretrained(folder)."
        raise DamagedFile(f"{file} {wrong}. {again}")
    return content


def _only_own_files(folder: Path, weights: bool) -> None:
    """Regular files alone, none that leads out of the folder: a pipe or device never ends; no pickle."""
    unsafe = sorted(path.name for pattern in UNSAFE for path in folder.glob(pattern))
    if weights and unsafe and not any(folder.glob("*.safetensors*")):
        raise DamagedFile(
            f"{folder} holds its weights only as {', '.join(unsafe)}, a pickle, which can run code when "
            "it is opened. Where you trust it, load it yourself and call model.save_pretrained(folder)."
        )
    own = folder.resolve()
    blobs = own.parent.parent / "blobs" if own.parent.name == "snapshots" else None
    for file in (*folder.iterdir(), *folder.glob("1_Pooling/*"), *folder.glob("*/*.jinja")):
        if file.suffix not in READ:
            continue
        real = file.resolve()
        inside = real.is_relative_to(own) or (blobs and real.parent == blobs)
        if not (inside and real.is_file()):
            wrong = "is not a regular file" if inside else f"leads out of its folder, to {real}"
            only = "a model's files are read from its own folder alone"
            mend = "Copy them there, or give the folder they stand in."
            raise DamagedFile(f"{file} {wrong}, and is not opened: {only}. {mend}")


def _only_safetensors(index: Path, content: dict[str, Any], folder: Path) -> None:
    """Every shard that ``index`` names is a safetensors file beside it, and there; a hub's comes later."""
    shards = content.get("weight_map")
    if not isinstance(shards, dict) or not isinstance(content.get("metadata", {}), dict):
        raise DamagedFile(f"{index} is no index of weights: it has no weight_map to files.")
    for shard in sorted({str(shard) for shard in shards.values()}):
        own = folder.is_dir() and folder.resolve().parent == FOLDER.resolve()
        if own and shard == f"../{ENCODER}":
            continue
        _plain_name(index, shard, ".safetensors")
        if folder.is_dir() and not (folder / shard).is_file():
            raise DamagedFile(f"{index} names {shard!r}, and there is no such file; copy it there.")


def _plain_name(file: Path, weights: str, *endings: str) -> None:
    if PurePath(weights).name != weights or "\\" in weights or not weights.endswith(endings):
        raise DamagedFile(
            f"{file} names {weights!r} as a file of weights: only *.safetensors files beside it "
            "are opened, since any other could run code or stand outside of the model."
        )


def _only_safe_content(name: str, file: Path, content: dict[str, Any], family: object) -> None:
    """Refuse a file that names code, an adapter, or files elsewhere."""
    if file.name == "adapter_config.json":
        # Its weights may be a pickle, and its other fields name models and files elsewhere.
        base = content.get("base_model_name_or_path") or "another model"
        load = "AutoPeftModelFor….from_pretrained, and give Explainer(model, tokenizer)"
        whole = f"{name} is a PEFT adapter of {base}, not a whole model"
        raise UnsupportedModel(f"{whole}. Load it with peft's {load}.")
    # transformers takes a class of its own for a family or a tokenizer that it knows.
    known = isinstance(family, str) and family in transformers.CONFIG_MAPPING
    if file.name != "config.json":
        known = known or hasattr(transformers, str(content.get("tokenizer_class")))
    if content.get("auto_map") and not known:
        raise UnsupportedModel(
            f"{name} brings its own code ({file.name}: auto_map), and tokenlight runs no code that comes "
            "with a model. Read that code, load the model yourself and give Explainer(model, tokenizer)."
        )
    if content.get("transformers_weights") is not None:
        chosen = str(content["transformers_weights"])
        _plain_name(file, chosen, ".safetensors", ".safetensors.index.json")
    for key, value in _strings("", content):
        if "/" not in value:
            continue
        if key.endswith("_implementation"):
            code = f"{name} names code to fetch and run ({file.name}: {key} is {value!r})"
            raise UnsupportedModel(f"{code}; take that line out.")
        elsewhere = key.endswith(("_file", "_files")) and file.name == "tokenizer_config.json"
        if elsewhere and Path(value).exists():
            outside = f"{file} names a file outside of its folder ({key} is {value!r})"
            raise DamagedFile(f"{outside}; take that line out.")


def _strings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every string of a document with the key it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for inner, one in value.items() if isinstance(value, dict) else ((key, v) for v in value):
            yield from _strings(str(inner), one)


def _wanted(field: str, value: Any) -> str:
    """What should stand in a field that is read or built by; nothing where it does."""
    sized = RANGES if isinstance(value, int | str) else ()  # stages have a list
    for pattern, least, most in sized:
        if re.fullmatch(pattern, field) and not (type(value) is int and least <= value <= most):
            return f"a number from {least} to {most:,}"
    if field == "model_max_length":
        return "" if isinstance(value, int | float) else "a number"
    if field in ("architectures", "model_input_names"):
        return "" if isinstance(value, list) and _are_names(value) else "a list of names"
    if field == "id2label":
        known = isinstance(value, dict) and _are_names(value.values())
        right = known and value and {*value} == {str(number) for number in range(len(value))}
        return "" if right else 'a table of every class, such as {"0": "no", "1": "yes"}'
    return ""


def _are_names(values: Iterable[Any]) -> bool:
    return all(isinstance(one, str) for one in values)
