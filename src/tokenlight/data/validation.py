"""A saved attribution: nothing in it is believed before it is checked, so that no file loads and breaks
later, in a picture or a table.
"""

import types
from collections.abc import Iterator, Mapping
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
_hints = cache(get_type_hints)  # slow: it compiles every hint


def refuse_unwritable(value: Any, deep: int = DEEPEST) -> None:
    """Texts that can be written, numbers that are finite, and no tower of tables."""
    number = isinstance(value, int | float) and not abs(value) <= LARGEST  # or it is NaN
    if deep == 0 or number or (isinstance(value, str) and is_half(value)):
        what = (
            "half of a surrogate pair, a number too large or none, or tables too deep within others"
        )
        raise DamagedFile(f"it holds {what}.")
    if isinstance(value, Mapping | list):
        for inner in (*value, *value.values()) if isinstance(value, Mapping) else value:
            refuse_unwritable(inner, deep - 1)


def part_of(kind: Any, values: Mapping[str, Any], place: str) -> Any:
    """A dataclass from its JSON values: every field is what its hint says, to the last entry."""
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    given = {name: values[name] for name in (*needed, *values)}
    hints = _hints(kind)
    read = {name: value_of(hints.get(name), given[name], f"{place}{name}") for name in given}
    return kind(**read)


def value_of(hint: Any, value: Any, place: str) -> Any:
    """A JSON value as ``hint`` says; ``place`` names it where it is something else."""
    plain, inside = get_origin(hint) or hint, get_args(hint)
    if plain is types.UnionType:  # something, or None
        return None if value is None else value_of(inside[0], value, place)
    if plain in (np.ndarray, PatchImage):
        return np.array(value, float) if plain is np.ndarray else PatchImage.from_dict(value)
    if is_dataclass(plain):
        return part_of(plain, value, f"{place}.")
    if plain is tuple and isinstance(value, list | tuple):
        each = inside[:1] * len(value) if inside[-1] is ... else inside
        if len(each) == len(value):
            pairs = enumerate(zip(each, value, strict=True))
            return tuple(value_of(own, one, f"{place}.{i}") for i, (own, one) in pairs)
    if plain is Mapping and isinstance(value, Mapping):
        return {name: value_of(inside[1], one, f"{place}.{name}") for name, one in value.items()}
    known: Any = {str: str, int: int, float: int | float, bool: bool}.get(plain, ())
    fits = plain in (Any, None) or (plain is Literal and isinstance(value, str) and value in inside)
    # True is an int to Python alone.
    if not fits and not (isinstance(value, known) and isinstance(value, bool) == (plain is bool)):
        kind = " or ".join(map(str, inside)) if plain is Literal else f"a {plain.__name__}"
        raise DamagedFile(f"{place}: it is not {kind}.")
    return value


def check(found: Any) -> None:
    """Refuse an Attribution whose parts do not fit each other, or what a picture would stumble over."""
    for place, holds in _laws(found):
        if not holds:
            raise DamagedFile(f"{place}: what it holds does not fit the rest; save it again.")
    path = found.extras.get("convergence") or {}
    value_of(float, path.get("gap_percent", 0), "extras.convergence.gap_percent")
    value_of(tuple[float, ...] | None, found.extras.get("conservation"), "extras.conservation")


def _laws(found: Any) -> Iterator[tuple[str, bool]]:
    """Places of an Attribution, and whether what they hold can be; each may lean on those before it."""
    row: TokenRow = found.row
    target, said, extras, layers = found.target, found.prediction, found.extras, found.layers
    tokens, image, chances = len(row.ids), row.image, said.probabilities
    types = row.ids if row.token_types is None else row.token_types
    lists = (row.attention, row.pieces, row.special, row.spans, row.segments, row.words, types)
    yield "row, one entry a token", tokens > 0 and {*map(len, lists)} == {tokens}
    own, places = {*range(tokens)}, [] if image is None else image.positions(tokens)
    yield "row.ids", all(0 <= i < LARGEST_ID for i in row.ids + row.answer)
    yield "row.attention", {*row.attention} <= {0, 1}
    yield "row.cut", row.cut >= 0
    yield "row.at", row.at is None or row.at in own
    yield "row.answer", len(row.answer) <= (len(row.asked) or tokens)
    yield "row.asked", own.issuperset(row.asked)
    yield "row.image", image is None or len({*places}) == image.rows * image.columns
    yield "row.image", own.issuperset(places)
    homes = zip(row.segments, row.spans, strict=True)
    yield "row.spans", all(_stands(row, *home) for home in homes)
    yield "prediction.probabilities", len(chances) in (0, len(said.labels))
    yield "prediction.probabilities", all(0 <= chance <= 1 for chance in chances)
    yield "prediction.index", said.index in (said.ids or range(len(said.labels)))
    yield "target.terms", bool(target.terms)
    yield "target.terms", all(at and min(at) >= 0 for at, _ in target.terms)
    yield "logits", found.logits.ndim == 1
    yield "layers", layers is None or (layers.size > 0 and layers.shape[1:] == (tokens,))
    yield "extras.trust", isinstance(extras.get("trust"), Mapping | None)
    yield "extras.convergence", isinstance(extras.get("convergence"), Mapping | None)


def _stands(row: TokenRow, segment: int | None, span: Span | None) -> bool:
    if segment is None or not 0 <= segment < len(row.texts):
        return segment is None
    return span is None or 0 <= span[0] <= span[1] <= len(row.texts[segment])
