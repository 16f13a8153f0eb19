"""The page's own files: read once, served from memory. Only what stands in their folder can be asked
for."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PICTURES = (".png", ".ico", ".woff2", ".webmanifest")


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is answered."""

    content: bytes
    kind: str
    tag: str


def page_file(name: str) -> PageFile | None:
    """A file of the page by its place in the folder; None where there is none."""
    place = _listed().get(name)
    return None if place is None else _read(str(place), place.stat().st_mtime_ns)


def _listed() -> dict[str, Path]:
    """Walked anew, so that an edited page shows; a name from outside is looked up, never joined."""
    return {
        place.relative_to(FOLDER).as_posix(): place
        for place in FOLDER.rglob("*")
        if place.is_file() and place.suffix in {*KINDS, *PICTURES} and not place.is_symlink()
    }


@cache
def _read(place: str, _changed: int) -> PageFile:
    content = Path(place).read_bytes()
    ending = Path(place).suffix
    kind = KINDS.get(ending) or mimetypes.guess_type(place)[0] or "application/octet-stream"
    return PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
