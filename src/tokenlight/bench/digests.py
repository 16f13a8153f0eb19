"""What a run's numbers depend on, as hashes: taken when it is planned, compared by every worker that
reads the same file later. A file that changed on the way is refused, so that no two are mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, TokenlightError
from tokenlight.models import embedded


def digest_of(where: str) -> str:
    """SHA-256 of a file; a hub's name stands for itself."""
    place = Path(where)
    if not place.is_file():
        return where
    try:
        with place.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as broken:
        raise TokenlightError(f"{place} cannot be read: {broken}.") from broken


def weights_digest(place: str) -> str:
    """Hash of a model folder's weights, config and vocabulary; of a hub id the commit that is kept
    here, nothing where none is."""
    if place.startswith(embedded.PREFIX):
        return digest_of(str(embedded.FOLDER / embedded.CHECKSUMS))[:16]
    folder = Path(place)
    if not folder.is_dir():
        return _commit(place)
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json", ".txt", ".model"):
            digest.update(f"{file.name} {digest_of(str(file))}".encode())
    return digest.hexdigest()[:16]


def refuse_changed(settings: Mapping[str, Any], kind: str, name: str, now: str) -> None:
    """Refuse what is no longer as it was planned. Called *behind* the reading: what changes while it
    is read is noticed too."""
    known = settings.get(kind, "")
    before = known.get(name) if isinstance(known, Mapping) else known
    if before != now:
        raise BadInput(
            f"{kind}: {name} is not what it was when this run was begun; numbers of two versions must "
            "not be mixed. Put it back as it was, or begin another run with -o."
        )


def _commit(name: str) -> str:
    from huggingface_hub import try_to_load_from_cache

    try:
        kept = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name that a hub could have
        return ""
    return Path(kept).parent.name if isinstance(kept, str) else ""
