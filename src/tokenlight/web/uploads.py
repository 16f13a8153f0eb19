"""Saved attributions from outside, within what a page can show."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tokenlight.data.attribution import FORMAT, Attribution
from tokenlight.data.image import stored_pixels
from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.documents import json_of
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import without_paths

MOST_TOKENS = 20_000
MOST_LAYERS = 1_000


def opened(content: Any, limits: ServerLimits) -> list[Attribution]:
    """Attributions out of parsed JSON: one, or a list of them."""
    entries = content if isinstance(content, list) else [content]
    if not 0 < len(entries) <= limits.open_entries:
        raise DamagedFile(
            f"this file holds {len(entries)} explanations; 1 to {limits.open_entries} can be opened."
        )
    if sum(map(_pixels, entries)) > limits.open_pixels:
        raise DamagedFile(f"its pictures have more than {limits.open_pixels:,} pixels together.")
    return [_checked(entry) for entry in entries]


def parsed(body: bytes) -> Any:
    """JSON without NaN; what is none is said."""
    try:
        return json_of(body.decode("utf-8"), parse_constant=_no_number)
    except ValueError as broken:
        raise DamagedFile(f"this is not a JSON file: {str(broken)[:120]}.") from broken


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _pixels(entry: Any) -> int:
    """How large its picture is, before it is unpacked; what is wrong with an entry is said later."""
    row = entry.get("row") if isinstance(entry, Mapping) else None
    image = row.get("image") if isinstance(row, Mapping) else None
    if image is None:
        return 0
    try:
        return stored_pixels(image)
    except (TokenlightError, KeyError, TypeError, ValueError) as wrong:
        raise DamagedFile(f"row.image: {wrong}") from wrong


def _checked(entry: Any) -> Attribution:
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT:
        raise DamagedFile(f"this is not a saved attribution of format {FORMAT}.")
    try:
        made = Attribution.from_dict(entry)
    except TokenlightError as wrong:
        raise DamagedFile(str(wrong)) from wrong
    if len(made) > MOST_TOKENS or (made.layers is not None and len(made.layers) > MOST_LAYERS):
        raise DamagedFile(f"more than {MOST_TOKENS:,} tokens or {MOST_LAYERS:,} layers.")
    return dataclasses.replace(made, model=without_paths(made.model))
