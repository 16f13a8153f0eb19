"""The embedded models: small real models that come with the package and need no hub.

The recipe in ``training/`` made them. Four folders share one ``encoder.safetensors``; each is a plain
transformers checkpoint (BertForSequenceClassification, QuestionAnswering or MaskedLM), so that
``BertForSequenceClassification.from_pretrained(resolve_path("tokenlight/sentiment"))`` works, too. Importing
this package does not import torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenlight.errors import DamagedFile, TokenlightError, UnknownName, short_repr
from tokenlight.files.parsing import read_json

if TYPE_CHECKING:
    import torch
    from transformers import BertForMaskedLM, BertTokenizer

MODELS_FOLDER = Path(__file__).parent
NAME_PREFIX = "tokenlight/"
ENCODER_FILE = "encoder.safetensors"
CHECKSUMS_FILE = "checksums.json"
FIGURES_FILE = "figures.json"
TASKS = {
    "sentiment": "sentiment of a text: negative or positive",
    "topics": "topic of a news text: World, Sports, Business or Sci/Tech",
    "qa": "the answer to a question, found in a context",
    "masked_lm": "which word is hidden behind [MASK]",
}
_RESTORE_HINT = (
    "Get it back with `pip install --force-reinstall tokenlight`, in a checkout with "
    "`git checkout -- src/tokenlight/models`, or train it again as training/README.md says."
)
# Limits of file systems: a longer name cannot be a folder, and is no hub id either.
_MAX_PATH_LENGTH = 4096
_MAX_NAME_LENGTH = 255
# Files of a model folder that decide its outputs.
_MODEL_FILE_EXTENSIONS = (".safetensors", ".bin", ".gguf", ".json", ".txt", ".model")


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """One embedded model as ``tokenlight models`` lists it.

    Args:
        name: The name for ``Explainer.from_pretrained``.
        task: A description of its task.
        size: Size in bytes, including the shared encoder.
        quality: Its score as measured by ``training/measure.py`` with these files.
        split: The data it was measured on.
    """

    name: str
    task: str
    size: int
    quality: str
    split: str


def resolve_path(name_or_path: str | Path) -> str:
    """Return the folder of an embedded model (``tokenlight/…``); any other name unchanged.

    Args:
        name_or_path: The name of an embedded model, a folder or a hub id.

    Raises:
        UnknownName: There is no such embedded model, or the name is impossible.
        DamagedFile: A file of the embedded model was changed or is missing.

    Example:
        >>> from pathlib import Path
        >>> from tokenlight.models import resolve_path
        >>> Path(resolve_path("tokenlight/sentiment")).name
        'sentiment'
    """
    name = str(name_or_path)
    has_long_part = any(len(part) > _MAX_NAME_LENGTH for part in name.split("/"))
    if "\x00" in name or len(name) > _MAX_PATH_LENGTH or has_long_part:
        raise UnknownName(
            f"{short_repr(name)} is not a valid model name. Give a folder or a hub id.",
            code="model-name-impossible",
        )
    if not name.startswith(NAME_PREFIX):
        return name
    verify_files(name)
    return str(MODELS_FOLDER / name.removeprefix(NAME_PREFIX))


def verify_files(name: str) -> None:
    """Check that every file of an embedded model is the released one; it takes 30 ms, at every load.

    Args:
        name: The name, with its prefix.

    Raises:
        UnknownName: There is no such embedded model.
        DamagedFile: A file was changed or is missing.
    """
    task = name.removeprefix(NAME_PREFIX)
    if not name.startswith(NAME_PREFIX) or task not in TASKS:
        names = [NAME_PREFIX + known_task for known_task in TASKS]
        raise UnknownName.from_choices("embedded model", name, names)
    for relative_path, released in _list_released_files(task).items():
        path = MODELS_FOLDER / relative_path
        if not path.is_file():
            raise DamagedFile(
                f"{path} is missing, so {name!r} cannot be loaded. {_RESTORE_HINT}",
                code="embedded-file-missing",
            )
        if digest_file(str(path)) != released["sha256"]:
            raise DamagedFile(
                f"{path} was changed or truncated, so {name!r} cannot be loaded. {_RESTORE_HINT}",
                code="embedded-file-changed",
            )


def list_models() -> list[EmbeddedModel]:
    """Return all embedded models with size and measured quality.

    Raises:
        DamagedFile: The list of figures or of checksums is missing.

    Example:
        >>> from tokenlight.models import list_models
        >>> [model.name for model in list_models()]
        ['tokenlight/sentiment', 'tokenlight/topics', 'tokenlight/qa', 'tokenlight/masked_lm']
    """
    models = []
    figures_by_task = _read_json_file(FIGURES_FILE)["figures"]
    for task, description in TASKS.items():
        figures = figures_by_task[task]
        qualities = []
        for name, value in figures.items():
            if isinstance(value, float):
                qualities.append(f"{name.replace('_', ' ')} {value:.3f}")
        model = EmbeddedModel(
            name=NAME_PREFIX + task,
            task=description,
            size=sum(entry["bytes"] for entry in _list_released_files(task).values()),
            quality=", ".join(qualities),
            split=f"{figures['split']} ({figures['rows']:,})",
        )
        models.append(model)
    return models


def load_masked_lm(dtype: torch.dtype | None = None) -> tuple[BertForMaskedLM, BertTokenizer]:
    """Load the masked language model over the shared encoder, and its tokenizer.

    Args:
        dtype: The dtype of the weights; float32 by default.
    """
    from tokenlight.models.loading import load_model

    return load_model(NAME_PREFIX + "masked_lm", dtype=dtype, device=None)


@contextmanager
def quiet_transformers(*, hide_warnings: bool = False) -> Iterator[None]:
    """Disable the progress bars of transformers inside the block.

    Args:
        hide_warnings: Also hide its warnings, such as those about weights it did not find.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    has_progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if hide_warnings:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_progress_bar:
            logging.enable_progress_bar()


def _list_released_files(task: str) -> dict[str, dict[str, Any]]:
    """Return the released size and hash of each file of one model, including the shared encoder."""
    files = {}
    for relative_path, entry in _read_json_file(CHECKSUMS_FILE).items():
        if relative_path == ENCODER_FILE or relative_path.startswith(f"{task}/"):
            files[relative_path] = entry
    return files


def _read_json_file(file_name: str) -> dict[str, Any]:
    path = MODELS_FOLDER / file_name
    try:
        content: dict[str, Any] = read_json(path)
    except TokenlightError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedFile(
            f"{path} cannot be read ({error}), so the embedded models cannot be checked. {_RESTORE_HINT}",
            code="embedded-list-unreadable",
        ) from error
    return content


def digest_file(path: str) -> str:
    """Return the SHA-256 of a file; the name of a model on a hub unchanged.

    Raises:
        TokenlightError: The file cannot be read.
    """
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        return path
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise TokenlightError(f"{path} cannot be read: {error}.", code="file-unreadable") from error


def digest_folder(path: str) -> str:
    """Return a hash of a model folder's weights, config and vocabulary, or of a GGUF file.

    For a hub id it is the commit, or empty if that cannot be determined.
    """
    if path.startswith(NAME_PREFIX):
        return digest_file(str(MODELS_FOLDER / CHECKSUMS_FILE))[:16]
    # Path.is_dir and Path.is_file raise for a name that is too long.
    if os.path.isfile(path):
        return digest_file(path)[:16]
    if not os.path.isdir(path):
        return _find_hub_commit(path)
    digest = hashlib.sha256()
    for file in sorted(Path(path).iterdir()):
        if file.suffix in _MODEL_FILE_EXTENSIONS:
            digest.update(f"{file.name} {digest_file(str(file))}".encode())
    return digest.hexdigest()[:16]


def _find_hub_commit(hub_id: str) -> str:
    """Return the commit of a model on a hub, from the cache if it is there."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        config_path = try_to_load_from_cache(hub_id, "config.json")
        if not isinstance(config_path, str):
            config_path = hf_hub_download(hub_id, "config.json")
    except (ValueError, OSError):  # not a hub id, or the hub cannot be reached
        return ""
    # The cache has one folder per commit.
    return Path(config_path).parent.name
