"""Saved attributions from outside: nothing of them is believed before it is checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tokenlight.data.attribution import FORMAT, Attribution
from tokenlight.data.image import stored_pixels
from tokenlight.data.target import Prediction, ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TokenlightError
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import Refusal

DEEPEST = 12  # tables within tables
LARGEST = 1e300
MOST_TOKENS = 20_000
MOST_LAYERS = 1_000


def opened(content: Any, limits: Limits) -> list[Attribution]:
    """Attributions out of parsed JSON: one, or a list of them."""
    entries = content if isinstance(content, list) else [content]
    if not 0 < len(entries) <= limits.open_entries:
        raise _damaged(
            f"this file holds {len(entries)} explanations; 1 to {limits.open_entries} can be opened."
        )
    if sum(map(_pixels, entries)) > limits.open_pixels:
        raise _damaged(f"its pictures have more than {limits.open_pixels:,} pixels together.")
    return [_checked(entry) for entry in entries]


def parsed(body: bytes) -> Any:
    """JSON without NaN; what is none is said."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as broken:
        raise _damaged(f"this is no JSON file: {str(broken)[:120]}.") from broken


def bare(model: str) -> str:
    """The name of a model that was a folder somewhere: its last part."""
    for kind in (PurePosixPath, PureWindowsPath):
        if kind(model).is_absolute():
            return kind(model).name
    return model


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _damaged(why: str) -> Refusal:
    hint = "Open a file that Attribution.save or tokenlight explain --json wrote."
    return Refusal(422, "damaged_file", why, hint)


def _pixels(entry: Any) -> int:
    """How large its picture is, before it is unpacked; what is wrong with an entry is said later."""
    row = entry.get("row") if isinstance(entry, Mapping) else None
    image = row.get("image") if isinstance(row, Mapping) else None
    if image is None:
        return 0
    try:
        return stored_pixels(image)
    except (TokenlightError, KeyError, TypeError, ValueError) as wrong:
        raise _damaged(f"row.image: {wrong}") from wrong


def _checked(entry: Any) -> Attribution:
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT:
        raise _damaged(f"this is no saved attribution of format {FORMAT}.")
    _plain(entry, DEEPEST)
    said = entry.get("prediction")
    lists = [entry.get("notes"), entry.get("steps"), entry.get("scores")]
    lists += [said.get("labels"), said.get("probabilities")] if isinstance(said, Mapping) else []
    if not all(isinstance(one, list) for one in lists):
        raise _damaged("notes, steps, scores, or the prediction's labels are no lists.")
    try:
        made = Attribution.from_dict(entry)
    except (TokenlightError, AttributeError, OverflowError) as wrong:
        raise _damaged(str(wrong)) from wrong
    for name, part in (
        ("row", made.row),
        ("target", made.target),
        ("prediction", made.prediction),
    ):
        _of_its_types(name, part)
    _words_are_words(made)
    _in_step(made)
    if len(made) > MOST_TOKENS or (made.layers is not None and len(made.layers) > MOST_LAYERS):
        raise _damaged(f"more than {MOST_TOKENS:,} tokens or {MOST_LAYERS:,} layers.")
    return dataclasses.replace(made, model=bare(made.model))


def _plain(value: Any, deep: int) -> None:
    """Texts that can be written, numbers that are finite, and no tower of tables."""
    if deep == 0:
        raise _damaged("its tables stand too deep within each other.")
    if isinstance(value, str):
        if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
            raise _damaged("it holds half of a surrogate pair, which is no character.")
    elif isinstance(value, int | float):
        if not abs(value) <= LARGEST:  # nor is it NaN
            raise _damaged("it holds a number that is too large.")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            _plain(name, deep)
            _plain(inner, deep - 1)
    elif isinstance(value, list):
        for inner in value:
            _plain(inner, deep - 1)


@cache
def _types_of(kind: Any) -> dict[str, TypeAdapter[Any]]:
    hints = _hints(kind)
    return {field.name: TypeAdapter(hints[field.name]) for field in dataclasses.fields(kind)}


def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields; a name that only type checkers see stands for anything."""
    unseen: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(kind, localns=unseen)
        except NameError as missing:
            unseen[missing.name or ""] = Any


def _of_its_types(name: str, part: TokenRow | ResolvedTarget | Prediction) -> None:
    """Every field has the type that the dataclass says, to the last entry."""
    for field, types in _types_of(type(part)).items():  # type: ignore[arg-type]  # a class is hashable
        try:
            types.validate_python(getattr(part, field), strict=True)
        except ValidationError as wrong:
            first = wrong.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(step) for step in (name, field, *first["loc"]))
            raise _damaged(f"{place}: {first['msg']}.") from None


def _words_are_words(made: Attribution) -> None:
    texts = (made.method, made.model, *made.notes, *made.steps, *made.versions.values())
    if not all(isinstance(text, str) for text in (*texts, *made.options, *made.versions)):
        raise _damaged("its method, model, notes, steps or versions are no text.")
    if isinstance(made.seed, bool) or not isinstance(made.seed, int):
        raise _damaged("its seed is no whole number.")
    trust = made.extras.get("trust")
    if trust is not None and not isinstance(trust, Mapping):
        raise _damaged("its trust is no table.")


def _in_step(made: Attribution) -> None:
    """Lists have one entry a token, and places lie where they can."""
    row, tokens = made.row, len(made.row.ids)
    lists = (row.attention, row.pieces, row.special, row.spans, row.segments, row.words)
    if not tokens or any(len(one) != tokens for one in lists):
        raise _damaged("row: its lists have different lengths.")
    if row.token_types is not None and len(row.token_types) != tokens:
        raise _damaged("row.token_types: not one a token.")
    if min(row.ids) < 0 or not set(row.attention) <= {0, 1} or row.cut < 0:
        raise _damaged("row: an id, a mask or a count is out of range.")
    _places_in_row(row)
    layers = made.layers
    if layers is not None and (layers.ndim != 2 or layers.shape[1] != tokens or not len(layers)):
        raise _damaged("layers: not one row a layer with one number a token.")
    tables = [made.logits] if layers is None else [made.logits, layers]
    if made.logits.ndim != 1 or not all(np.isfinite(table).all() for table in tables):
        raise _damaged("logits or layers: no table of finite numbers.")
    _prediction_in_step(made)


def _places_in_row(row: TokenRow) -> None:
    if row.at is not None and not 0 <= row.at < len(row):
        raise _damaged(f"row.at: {row.at} is no place of its {len(row)} tokens.")
    if row.image is not None and row.image.rows * row.image.columns > len(row):
        raise _damaged("row.image: it has more patches than there are tokens.")
    for span, segment in zip(row.spans, row.segments, strict=True):
        if segment is not None and not 0 <= segment < len(row.texts):
            raise _damaged(f"row.segments: {segment} names no text.")
        if span is None or segment is None:
            continue
        if not 0 <= span[0] <= span[1] <= len(row.texts[segment]):
            raise _damaged(f"row.spans: {span} is outside its text.")


def _prediction_in_step(made: Attribution) -> None:
    said = made.prediction
    if said.probabilities and len(said.probabilities) != len(said.labels):
        raise _damaged("prediction: not one probability a label.")
    if any(not 0 <= chance <= 1 for chance in said.probabilities):
        raise _damaged("prediction: a probability is none.")
    if said.index not in (said.ids or range(len(said.labels))):
        raise _damaged("prediction: its index names no label.")
    if not made.target.terms:
        raise _damaged("target: it has no terms.")
    for place, _ in made.target.terms:
        if not place or any(number < 0 for number in place):
            raise _damaged("target: a term has no place.")
