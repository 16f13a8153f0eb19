"""A saved attribution: nothing in it is believed before it is checked.

What :func:`tokenlight.load`, ``tokenlight serve --open`` and the page read goes through here, so that
no file loads and breaks later, in a picture or a table.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from tokenlight.data.image import PatchImage
from tokenlight.data.target import Prediction
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import DamagedFile

if TYPE_CHECKING:
    from tokenlight.data.attribution import Attribution

DEEPEST = 12  # tables within tables
LARGEST = 1e300
LARGEST_ID = 1 << 31
KINDS: dict[Any, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null",
}  # fmt: skip


def refuse_unwritable(value: Any, deep: int = DEEPEST) -> None:
    """Texts that can be written, numbers that are finite, and no tower of tables."""
    if deep == 0:
        raise DamagedFile("its tables stand too deep within each other.")
    if isinstance(value, str):
        if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
            raise DamagedFile("it holds half of a surrogate pair, which is no character.")
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


def part_of(kind: Any, name: str, values: Mapping[str, Any]) -> Any:
    """A row, target or prediction from its JSON values: every field has the type that the dataclass
    says, to the last entry."""
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    given = {field: _tupled(values[field]) for field in (*needed, *values)}
    if given.get("image") is not None:
        given["image"] = PatchImage.from_dict(given["image"])
    part = kind(**given)
    for field, hint in get_type_hints(kind).items():
        wrong = _misfit(getattr(part, field), hint)
        if wrong is not None:
            place = ".".join((name, field, *map(str, wrong)))
            raise DamagedFile(f"{place}: it is not {_in_words(hint, len(wrong))}.")
    return part


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def check(made: Attribution) -> None:
    """Refuse an attribution whose parts do not fit each other."""
    _words(made)
    _row_in_step(made.row)
    layers, tokens = made.layers, len(made.row)
    if layers is not None and (layers.ndim != 2 or layers.shape[1] != tokens or not len(layers)):
        raise DamagedFile("layers: not one row a layer with one number a token.")
    if made.logits.ndim != 1:
        raise DamagedFile("logits: no list of numbers.")
    _prediction_in_step(made.prediction)
    if not made.target.terms:
        raise DamagedFile("target: it has no terms.")
    for place, _ in made.target.terms:
        if not place or any(number < 0 for number in place):
            raise DamagedFile("target: a term has no place.")


def _misfit(value: Any, hint: Any) -> tuple[int, ...] | None:
    """Where within ``value`` the first entry stands that is not of its type; None: all are."""
    inside = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        found = [_misfit(value, one) for one in inside]
        return (
            None if None in found else max((wrong for wrong in found if wrong is not None), key=len)
        )
    if get_origin(hint) is Literal:
        return None if isinstance(value, str) and value in inside else ()
    if get_origin(hint) is not tuple:
        number = hint is float and isinstance(value, int)
        strict = not isinstance(value, bool) or hint is bool  # True is an int to Python alone
        return None if strict and (number or isinstance(value, hint)) else ()
    if not isinstance(value, tuple) or (inside[-1] is not ... and len(value) != len(inside)):
        return ()
    each = inside if inside[-1] is not ... else inside[:1] * len(value)
    wrongs = (
        (i, _misfit(one, kind)) for i, (one, kind) in enumerate(zip(value, each, strict=True))
    )
    return next(((i, *wrong) for i, wrong in wrongs if wrong is not None), None)


def _in_words(hint: Any, deep: int) -> str:
    """What belongs ``deep`` lists within ``hint``."""
    inside = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [one for one in inside if not deep or get_origin(one) is tuple]
        return " or ".join(_in_words(one, deep) for one in kinds)
    if get_origin(hint) is Literal:
        return " or ".join(map(str, inside))
    if get_origin(hint) is tuple:
        return _in_words(inside[0], deep - 1) if deep else "a list"
    return KINDS.get(hint, "a picture")


def _words(made: Attribution) -> None:
    texts = (made.method, made.model, *made.notes, *made.steps, *made.versions.values())
    if not all(isinstance(text, str) for text in (*texts, *made.options, *made.versions)):
        raise DamagedFile("its method, model, notes, steps or versions are no text.")
    if isinstance(made.seed, bool) or not isinstance(made.seed, int):
        raise DamagedFile("its seed is no whole number.")
    trust, path = made.extras.get("trust"), made.extras.get("convergence")
    if not isinstance(trust, Mapping | None) or not isinstance(path, Mapping | None):
        raise DamagedFile("extras: its trust or convergence is no table.")
    shares = made.extras.get("conservation")
    numbers = [*(shares if isinstance(shares, list) else []), (path or {}).get("gap_percent", 0)]
    if not isinstance(shares, list | None) or any(_misfit(n, float) == () for n in numbers):
        raise DamagedFile("extras: its conservation or convergence is no number.")


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
    if row.image is not None and row.image.rows * row.image.columns > tokens:
        raise DamagedFile("row.image: it has more patches than there are tokens.")
    _spans_in_texts(row)


def _spans_in_texts(row: TokenRow) -> None:
    for span, segment in zip(row.spans, row.segments, strict=True):
        if segment is not None and not 0 <= segment < len(row.texts):
            raise DamagedFile(f"row.segments: {segment} names no text.")
        if span is None or segment is None:
            continue
        if not 0 <= span[0] <= span[1] <= len(row.texts[segment]):
            raise DamagedFile(f"row.spans: {span} is outside its text.")


def _prediction_in_step(said: Prediction) -> None:
    if said.probabilities and len(said.probabilities) != len(said.labels):
        raise DamagedFile("prediction: not one probability a label.")
    if any(not 0 <= chance <= 1 for chance in said.probabilities):
        raise DamagedFile("prediction: a probability is none.")
    if said.index not in (said.ids or range(len(said.labels))):
        raise DamagedFile("prediction: its index names no label.")
