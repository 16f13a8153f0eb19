"""What a model's files may be and name: looked at before transformers opens any of them.

transformers asks on standard input whether to run a model's own code, opens as a pickle whatever an
index of weights names, and follows that name out of the folder. Nothing of it happens here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import transformers

from tokenlight.errors import BadInput, DamagedFile, TokenlightError, UnsupportedModel, short, shown
from tokenlight.files.documents import json_in
from tokenlight.models.embedded import ENCODER, FOLDER
from tokenlight.models.fields import refuse_odd

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


def check(name: str, place: str, *, weights: bool = True, **hub: Any) -> None:
    """Refuse a model at ``place`` (a folder or a hub id) that brings code, a pickle or a way out.

    ``weights``: whether they are loaded, too; a tokenizer alone may stand beside a pickle.
    """
    for word in SET_HERE:
        if word in hub and (word != "trust_remote_code" or hub[word]):
            raise BadInput(
                f"{word} is not taken: tokenlight opens safetensors files alone and runs no code that "
                "comes with a model. Load the model yourself and give Explainer(model, tokenizer)."
            )
    if not isinstance(hub.get("subfolder"), str | None):
        raise BadInput(
            f"subfolder={shown(hub['subfolder'])} is not the name of a folder; give a text."
        )
    folder = Path(place, hub.get("subfolder") or "")
    if folder.is_dir():
        _only_own_files(folder)
        if weights:
            _only_safe_weights(folder)
        for index in sorted(folder.glob("*.safetensors.index.json")):
            _only_safetensors(index, folder)
        _only_safe_content(name, [folder / file for file in CONTENT if (folder / file).is_file()])
        return
    named = fetched(place, INDEX, hub)
    if named:
        _only_safetensors(named, None)
    files = [fetched(place, file, hub) for file in CONTENT]
    _only_safe_content(name, [file for file in files if file])


def fetched(place: str, file: str, hub: dict[str, Any]) -> Path | None:
    """A file of a model, from its folder, or from a hub where it is not kept here; None where it
    cannot be had, which is told, with what to do, by whoever loads the model."""
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
    except ImportError as missing:
        raise UnsupportedModel(
            f"{what} of {name} needs a library that is not here: {first_sentence(missing)}"
        ) from missing
    except Exception as broken:  # other libraries' readers raise anything, bare Exception included
        raise DamagedFile(f"{what} of {name} cannot be read: {first_sentence(broken)}") from broken


def first_sentence(trouble: Exception) -> str:
    """The first line of another library's message with its full stop, in words."""
    lines = [line.strip() for line in str(trouble).splitlines() if line.strip()]
    lines = lines or [type(trouble).__name__]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    if isinstance(trouble, KeyError):
        said = f"there is nothing called {said}"
    said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", said).replace("NoneType", "null")
    said = short(said, 240)
    return said if said.endswith((".", "!", "?", "…")) else f"{said.rstrip(':;,')}."


def _only_own_files(folder: Path) -> None:
    """Regular files alone, and none that leads out of the folder: a pipe or device never ends."""
    own = folder.resolve()
    blobs = own.parent.parent / "blobs" if own.parent.name == "snapshots" else None
    for file in (*folder.iterdir(), *folder.glob("1_Pooling/*"), *folder.glob("*/*.jinja")):
        if file.suffix not in READ or not (file.is_symlink() or file.exists()):
            continue
        real = file.resolve()
        if not (real.is_relative_to(own) or (blobs and real.parent == blobs)):
            raise DamagedFile(
                f"{file} leads out of its folder, to {real}: a model's files are read from its own "
                "folder alone. Copy the file there, or give the folder it stands in."
            )
        if not real.is_file():
            raise DamagedFile(
                f"{file} is not a regular file but a folder, pipe, device or broken link, and is not "
                "opened. Copy the model's files anew."
            )


def _only_safe_weights(folder: Path) -> None:
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json")):
        return
    unsafe = sorted(path.name for pattern in UNSAFE for path in folder.glob(pattern))
    if unsafe:
        raise DamagedFile(
            f"{folder} holds its weights only as {', '.join(unsafe)}, a pickle, which can run code "
            "when it is opened. Convert it where you trust it: load it with transformers and call "
            "model.save_pretrained(folder), which writes model.safetensors."
        )


def _only_safetensors(index: Path, folder: Path | None) -> None:
    """Every shard that ``index`` names is a safetensors file beside it, and there.

    ``folder`` is None for a hub's, whose files are not fetched yet.
    """
    content = _json(index)
    shards = content.get("weight_map")
    if not isinstance(shards, dict) or not isinstance(content.get("metadata", {}), dict):
        raise DamagedFile(
            f"{index} is not an index of weights: it has no weight_map of names to files."
        )
    for shard in sorted({str(shard) for shard in shards.values()}):
        if folder and shard == f"../{ENCODER}" and folder.resolve().parent == FOLDER.resolve():
            continue
        _plain_name(index, shard, ".safetensors")
        if folder and not (folder / shard).is_file():
            raise DamagedFile(
                f"{index} names {shard!r}, and there is no such file beside it; download or copy it "
                "again."
            )


def _plain_name(file: Path, weights: str, *endings: str) -> None:
    if PurePath(weights).name != weights or "\\" in weights or not weights.endswith(endings):
        raise DamagedFile(
            f"{file} names {weights!r} as a file of weights: only *.safetensors files beside it "
            "are opened, since any other could run code or stand outside of the model."
        )


def _only_safe_content(name: str, files: list[Path]) -> None:
    """Refuse files that name code, an adapter, or files elsewhere."""
    family = None
    for file in files:
        content = _json(file)
        if file.name == "adapter_config.json":
            # Its weights may be a pickle, and its other fields name models and files elsewhere.
            raise UnsupportedModel(_adapter(name, content))
        if file.name == "config.json":
            family = content.get("model_type")
        if _needs_code(file.name, content, family):
            raise UnsupportedModel(
                f"{name} brings its own code ({file.name}: auto_map), and tokenlight runs no code "
                "that comes with a model. Read that code, load the model yourself and give "
                "Explainer(model, tokenizer)."
            )
        if content.get("transformers_weights") is not None:
            chosen = str(content["transformers_weights"])
            _plain_name(file, chosen, ".safetensors", ".safetensors.index.json")
        _no_code_by_name(name, file, content)
        refuse_odd(file, content)


def _no_code_by_name(name: str, file: Path, content: dict[str, Any]) -> None:
    for key, value in _strings(content):
        if key.endswith("_implementation") and "/" in value:
            raise UnsupportedModel(
                f"{name} names code to fetch and run ({file.name}: {key} is {value!r}), which is "
                "refused. Take that line out of the file."
            )
        elsewhere = "/" in value and key.endswith(("_file", "_files"))
        if elsewhere and file.name == "tokenizer_config.json" and Path(value).exists():
            raise DamagedFile(
                f"{file} names a file elsewhere ({key} is {value!r}): a tokenizer is read from its "
                "own folder alone. Take that line out of the file."
            )


def _needs_code(file: str, content: dict[str, Any], family: object) -> bool:
    """Whether ``auto_map`` names code where transformers has no class of its own for ``family``."""
    if not content.get("auto_map"):
        return False
    if isinstance(family, str) and family in transformers.CONFIG_MAPPING:
        return False
    return file == "config.json" or not hasattr(transformers, str(content.get("tokenizer_class")))


def _adapter(name: str, says: dict[str, Any]) -> str:
    kinds = {
        "SEQ_CLS": "ForSequenceClassification",
        "TOKEN_CLS": "ForTokenClassification",
        "CAUSAL_LM": "ForCausalLM",
        "QUESTION_ANS": "ForQuestionAnswering",
    }
    loader = f"AutoPeftModel{kinds.get(str(says.get('task_type')), '')}"
    base = says.get("base_model_name_or_path") or "another model"
    return (
        f"{name} is a PEFT adapter of {base}, not a whole model. Load it in Python: model = "
        f"peft.{loader}.from_pretrained({name!r}), and give Explainer(model, tokenizer); or write "
        "model.merge_and_unload().save_pretrained(folder) once and give that folder."
    )


def _strings(content: Any) -> Iterator[tuple[str, str]]:
    """Every string of a document with the key it stands under."""
    waiting: list[tuple[str, Any]] = [("", content)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, dict):
            waiting.extend((str(inner), one) for inner, one in value.items())
        elif isinstance(value, list):
            waiting.extend((key, one) for one in value)


def _json(file: Path) -> dict[str, Any]:
    content, wrong = None, "holds no table of names with values"
    try:
        content = json_in(file)
    except (OSError, ValueError) as broken:
        wrong = f"cannot be read: {broken}"
    if not isinstance(content, dict):
        again = "Save the model again with model.save_pretrained(folder)."
        raise DamagedFile(f"{file} {wrong}. {again}")
    return content
