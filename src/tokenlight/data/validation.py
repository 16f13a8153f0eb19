"""A saved attribution: nothing in it is believed before it is checked, so that no file loads and breaks
later, in a picture or a table.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from tokenlight.data.image import PatchImage
from tokenlight.data.tokens import Span, TokenRow, is_half
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
        if is_half(value):
            raise DamagedFile("it holds half of a surrogate pair, which is not a character.")
    elif isinstance(value, int | float):
        if not abs(value) <= LARGEST:  # nor is it NaN
            raise DamagedFile("it holds a number that is too large, or none.")
    elif isinstance(value, Mapping | list):
        for inner in (*value, *value.values()) if isinstance(value, Mapping) else value:
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


def check(found: Any) -> None:
    """Refuse an Attribution whose parts do not fit each other, or what a picture would stumble over."""
    row: TokenRow = found.row
    target, said, extras, layers = found.target, found.prediction, found.extras, found.layers
    tokens, image, chances = len(row.ids), row.image, said.probabilities
    types = row.ids if row.token_types is None else row.token_types
    lists = (row.attention, row.pieces, row.special, row.spans, row.segments, row.words, types)
    _hold(
        (tokens > 0 and {*map(len, lists)} == {tokens}, "row: its lists are not one entry a token")
    )
    own, places = {*range(tokens)}, [] if image is None else image.positions(tokens)
    fills = image is None or len({*places}) == image.rows * image.columns
    homes = zip(row.segments, row.spans, strict=True)
    trust, path = extras.get("trust"), extras.get("convergence")
    _hold(
        (all(0 <= i < LARGEST_ID for i in row.ids + row.answer), "row: an id is out of range"),
        ({*row.attention} <= {0, 1}, "row: a mask is out of range"),
        (row.cut >= 0, f"row.cut: {row.cut} tokens cannot be left out"),
        (row.at is None or row.at in own, f"row.at: {row.at} is no place of its {tokens} tokens"),
        (len(row.answer) <= (len(row.asked) or tokens), "row.answer: it is longer than the row"),
        (own.issuperset(row.asked), f"row.asked: {row.asked} are no places of its {tokens} tokens"),
        (fills and own.issuperset(places), "row.image: its patches are not one token each"),
        (all(_stands(row, *home) for home in homes), "row.spans: one is outside its text"),
        (len(chances) in (0, len(said.labels)), "prediction: not one probability a label"),
        (all(0 <= chance <= 1 for chance in chances), "prediction: a probability is none"),
        (
            said.index in (said.ids or range(len(said.labels))),
            "prediction: its index names no label",
        ),
        (bool(target.terms), "target: it has no terms"),
        (all(at and min(at) >= 0 for at, _ in target.terms), "target: a term has no place"),
        (found.logits.ndim == 1, "logits: no list of numbers"),
        (layers is None or layers.size > 0, "layers: there are none"),
        (layers is None or layers.shape[1:] == (tokens,), "layers: not one number a token"),
        (isinstance(trust, Mapping | None), "extras: its trust is not a table"),
        (isinstance(path, Mapping | None), "extras: its convergence is not a table"),
    )
    value_of(float, (path or {}).get("gap_percent", 0), "extras.convergence.gap_percent")
    value_of(tuple[float, ...] | None, extras.get("conservation"), "extras.conservation")


def _hold(*laws: tuple[bool, str]) -> None:
    for holds, broken in laws:
        if not holds:
            raise DamagedFile(f"{broken}.")


def _stands(row: TokenRow, segment: int | None, span: Span | None) -> bool:
    if segment is None or not 0 <= segment < len(row.texts):
        return segment is None
    return span is None or 0 <= span[0] <= span[1] <= len(row.texts[segment])
