"""What a file or a model is, as a hash: another one, another number."""

import hashlib
import os
from pathlib import Path

from tokenlight.errors import TokenlightError
from tokenlight.models import embedded


def digest_of(where: str) -> str:
    """SHA-256 of a file; a hub's name stands for itself."""
    place = Path(where)
    if not os.path.isfile(where):  # Path refuses a name that is too long
        return where
    try:
        with place.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as broken:
        raise TokenlightError(f"{place} cannot be read: {broken}.") from broken


def folder_digest(place: str) -> str:
    """Hash of a model folder's weights, config and vocabulary; of a hub id the commit that is kept
    here, or that the hub has; nothing where neither can be told."""
    if place.startswith(embedded.PREFIX):
        return digest_of(str(embedded.FOLDER / embedded.CHECKSUMS))[:16]
    folder = Path(place)
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
