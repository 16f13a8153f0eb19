"""A saved attribution: nothing in it is believed before it is checked.

What :func:`tokenlight.load`, ``tokenlight serve --open`` and the page read goes through here, so that
no file loads and breaks later, in a picture or a table.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from tokenlight.data.image import PatchImage
from tokenlight.data.target import Prediction, ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import DamagedFile

DEEPEST = 12  # tables within tables
LARGEST = 1e300
LARGEST_ID = 1 << 31
KINDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    tuple: "a list", Mapping: "a table",
}  # fmt: skip
READERS: dict[Any, Callable[[Any], Any]] = {
    PatchImage: PatchImage.from_dict,
    np.ndarray: lambda numbers: np.array(numbers, dtype=np.float64),
}
_hints = cache(get_type_hints)  # slow: it compiles every hint


def refuse_unwritable(value: Any, deep: int = DEEPEST) -> None:
    """Texts that can be written, numbers that are finite, and no tower of tables."""
    if deep == 0:
        raise DamagedFile("its tables stand too deep within each other.")
    if isinstance(value, str):
        if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
            raise DamagedFile("it holds half of a surrogate pair, which is not a character.")
    elif isinstance(value, int | float):
        if not abs(value) <= LARGEST:  # nor is it NaN
            raise DamagedFile("it holds a number that is too large, or none.")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            refuse_unwritable(name, deep)
            refuse_unwritable(inner, deep - 1)
    elif isinstance(value, list):
        for inner in value:
            refuse_unwritable(inner, deep - 1)


def part_of(kind: Any, values: Mapping[str, Any], place: str) -> Any:
    """A dataclass from its JSON values: every field is what its hint says, to the last entry."""
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    given = {name: values[name] for name in (*needed, *values)}
    hints = _hints(kind)
    return kind(
        **{name: value_of(hints.get(name), given[name], f"{place}{name}") for name in given}
    )


def value_of(hint: Any, value: Any, place: str) -> Any:
    """A JSON value as ``hint`` says; ``place`` names it where it is something else."""
    plain, inside = get_origin(hint) or hint, get_args(hint)
    if plain is types.UnionType:  # something, or None
        return None if value is None else value_of(inside[0], value, place)
    if plain in READERS:
        return READERS[plain](value)
    if is_dataclass(plain):
        return part_of(plain, value, f"{place}.")
    if plain is tuple and isinstance(value, list | tuple):
        each = inside[:1] * len(value) if inside[-1] is ... else inside
        if len(each) == len(value):
            pairs = enumerate(zip(each, value, strict=True))
            return tuple(value_of(own, one, f"{place}.{i}") for i, (own, one) in pairs)
    if plain is Mapping and isinstance(value, Mapping):
        return {name: value_of(inside[1], one, f"{place}.{name}") for name, one in value.items()}
    if not _fits(value, plain, inside):
        known = " or ".join(map(str, inside)) if plain is Literal else KINDS[plain]
        raise DamagedFile(f"{place}: it is not {known}.")
    return value


def _fits(value: Any, plain: Any, inside: tuple[Any, ...]) -> bool:
    if plain in (Any, None):  # anything, and what is no field at all
        return True
    if plain is Literal:
        return isinstance(value, str) and value in inside
    if plain not in (str, int, float, bool) or (isinstance(value, bool) and plain is not bool):
        return False  # True is an int to Python alone
    return isinstance(value, plain) or (plain is float and isinstance(value, int))


def check(row: TokenRow, target: ResolvedTarget, said: Prediction, extras: Any) -> None:
    """Refuse parts that do not fit each other, or what a picture would stumble over."""
    _row_in_step(row)
    if said.probabilities and len(said.probabilities) != len(said.labels):
        raise DamagedFile("prediction: not one probability a label.")
    if any(not 0 <= chance <= 1 for chance in said.probabilities):
        raise DamagedFile("prediction: a probability is none.")
    if said.index not in (said.ids or range(len(said.labels))):
        raise DamagedFile("prediction: its index names no label.")
    if not target.terms or any(not place or min(place) < 0 for place, _ in target.terms):
        raise DamagedFile("target: it has no terms, or a term has no place.")
    trust, path = extras.get("trust"), extras.get("convergence")
    if not isinstance(trust, Mapping | None) or not isinstance(path, Mapping | None):
        raise DamagedFile("extras: its trust or convergence is not a table.")
    value_of(float, (path or {}).get("gap_percent", 0), "extras.convergence.gap_percent")
    value_of(tuple[float, ...] | None, extras.get("conservation"), "extras.conservation")


def _row_in_step(row: TokenRow) -> None:
    """Lists have one entry a token, and places lie where they can."""
    tokens = len(row.ids)
    lists = (row.attention, row.pieces, row.special, row.spans, row.segments, row.words)
    if not tokens or any(len(one) != tokens for one in lists):
        raise DamagedFile("row: its lists are not one entry a token.")
    if row.token_types is not None and len(row.token_types) != tokens:
        raise DamagedFile("row.token_types: not one a token.")
    if not 0 <= min(row.ids) <= max(row.ids) < LARGEST_ID or not set(row.attention) <= {0, 1}:
        raise DamagedFile("row: an id or a mask is out of range.")
    if row.cut < 0:
        raise DamagedFile(f"row.cut: {row.cut} tokens cannot be left out.")
    if row.at is not None and not 0 <= row.at < tokens:
        raise DamagedFile(f"row.at: {row.at} is no place of its {tokens} tokens.")
    longest = len(row.asked) or tokens
    if len(row.answer) > longest or not all(0 <= i < LARGEST_ID for i in row.answer):
        raise DamagedFile("row.answer: it is longer than the row, or an id is out of range.")
    if not all(0 <= i < tokens for i in row.asked):
        raise DamagedFile(f"row.asked: {row.asked} are no places of its {tokens} tokens.")
    if row.image is not None:
        places, patches = row.image.positions(tokens), row.image.rows * row.image.columns
        if len({*places}) != patches or not 0 <= min(places) <= max(places) < tokens:
            raise DamagedFile("row.image: its patches are not one token each.")
    _spans_in_texts(row)


def _spans_in_texts(row: TokenRow) -> None:
    for span, segment in zip(row.spans, row.segments, strict=True):
        if segment is not None and not 0 <= segment < len(row.texts):
            raise DamagedFile(f"row.segments: {segment} names no text.")
        if span is None or segment is None:
            continue
        if not 0 <= span[0] <= span[1] <= len(row.texts[segment]):
            raise DamagedFile(f"row.spans: {span} is outside its text.")
