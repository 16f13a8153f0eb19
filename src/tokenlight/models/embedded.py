"""The embedded models: real, small, trained by the recipe in ``training/``, found without a hub.

Four directories stand around one ``encoder.safetensors``; each is a plain transformers checkpoint
(BertForSequenceClassification, QuestionAnswering or MaskedLM), so that
``BertForSequenceClassification.from_pretrained(resolve("tokenlight/sentiment"))`` works too.
Importing this package does not import torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenlight.errors import DamagedFile, TokenlightError, UnknownName, shown
from tokenlight.files.documents import json_in

if TYPE_CHECKING:
    import torch
    from transformers import BertForMaskedLM, BertTokenizer

FOLDER = Path(__file__).parent
PREFIX = "tokenlight/"
ENCODER = "encoder.safetensors"
CHECKSUMS = "checksums.json"
FIGURES = "figures.json"
TASKS = {
    "sentiment": "sentiment of a text: negative or positive",
    "topics": "topic of a news text: World, Sports, Business or Sci/Tech",
    "qa": "the answer to a question, found in a context",
    "masked_lm": "which word is hidden behind [MASK]",
}
_WAYS_BACK = (
    "Get it back with `pip install --force-reinstall tokenlight`, in a checkout with "
    "`git checkout -- src/tokenlight/models`, or train anew as training/README.md says."
)


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """One embedded model as ``tokenlight models`` lists it: its size in bytes, shared encoder included, and
    what ``training/measure.py`` measured with these files on the whole of ``split``."""

    name: str
    task: str
    size: int
    figure: str
    split: str


def resolve(name_or_path: str | Path) -> str:
    """The directory of an embedded model (``tokenlight/…``), its files checked; all else as it was given."""
    given = str(name_or_path)
    if "\x00" in given or len(given) > 4096 or any(len(part) > 255 for part in given.split("/")):
        raise UnknownName(f"no model can be called {shown(given)}; give a folder or a hub id.")
    if not given.startswith(PREFIX):
        return given
    verify(given)
    return str(FOLDER / given.removeprefix(PREFIX))


def verify(name: str) -> None:
    """Refuse a model unless every file of it is the one released: 30 ms, so this runs at every load."""
    task = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or task not in TASKS:
        raise UnknownName.among("embedded model", name, [PREFIX + known for known in TASKS])
    for relative, released in _files_of(task).items():
        path = FOLDER / relative
        if path.is_file() and digest_of(str(path)) == released["sha256"]:
            continue
        wrong = "was changed, or cut short" if path.is_file() else "is missing"
        raise DamagedFile(f"{path} {wrong}; {name!r} cannot be loaded. {_WAYS_BACK}")


def catalogue() -> list[EmbeddedModel]:
    """All embedded models with size and measured figure."""
    found, figures = [], _read(FIGURES)["figures"]
    for task, meaning in TASKS.items():
        own, size = figures[task], sum(entry["bytes"] for entry in _files_of(task).values())
        shares = {name: share for name, share in own.items() if isinstance(share, float)}
        figure = ", ".join(f"{n.replace('_', ' ')} {share:.3f}" for n, share in shares.items())
        split = f"{own['split']} ({own['rows']:,})"
        found.append(EmbeddedModel(PREFIX + task, meaning, size, figure, split))
    return found


def masked_lm(dtype: torch.dtype | None = None) -> tuple[BertForMaskedLM, BertTokenizer]:
    """The masked language model over the shared encoder, and its tokenizer; in float32 by default."""
    from tokenlight.models.loading import load

    return load(PREFIX + "masked_lm", dtype=dtype, device=None)


@contextmanager
def quiet(*, silent: bool = False) -> Iterator[None]:
    """Within: transformers draws no bar; ``silent``: nor does it report weights it did not find."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if silent:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _files_of(task: str) -> dict[str, dict[str, Any]]:
    """Released size and hash of the files of one model, the shared encoder among them."""
    return {
        relative: entry
        for relative, entry in _read(CHECKSUMS).items()
        if relative == ENCODER or relative.startswith(f"{task}/")
    }


def _read(file_name: str) -> dict[str, Any]:
    place, end = FOLDER / file_name, f"), so the embedded models cannot be checked. {_WAYS_BACK}"
    with DamagedFile.telling(f"{place} cannot be read (", OSError, ValueError, end=end):
        content: dict[str, Any] = json_in(place)
    return content


def digest_of(where: str) -> str:
    """SHA-256 of a file; a hub's name stands for itself."""
    if not os.path.isfile(where):  # Path refuses a name that is too long
        return where
    with TokenlightError.telling(f"{where} cannot be read: ", OSError), open(where, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_digest(place: str) -> str:
    """Hash of a model folder's weights, config and vocabulary; of a hub id its commit, if it can be told."""
    folder = Path(place)
    if place.startswith(PREFIX):
        return digest_of(str(FOLDER / CHECKSUMS))[:16]
    if not folder.is_dir():
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        try:
            kept = try_to_load_from_cache(place, "config.json")
            kept = kept if isinstance(kept, str) else hf_hub_download(place, "config.json")
        except (ValueError, OSError):  # no name that a hub has, or no hub that can be reached
            return ""
        return Path(kept).parent.name
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json", ".txt", ".model"):
            digest.update(f"{file.name} {digest_of(str(file))}".encode())
    return digest.hexdigest()[:16]
