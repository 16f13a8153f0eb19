"""Check the values of a saved attribution, so that no damaged file fails only later, in a plot or table."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import numpy as np

from tokenlight.data.image import PatchImage
from tokenlight.data.tokens import SAVED_FIELD_NAMES, Span, TokenRow, has_lone_surrogate
from tokenlight.errors import DamagedFile

MAX_DEPTH = 12  # of nested objects and lists
MAX_NUMBER = 1e300
MAX_TOKEN_ID = 1 << 31
FIELD_NAMES_BY_SAVED_NAME = {saved: field for field, saved in SAVED_FIELD_NAMES.items()}
# Simple types, and what JSON writes for them.
JSON_TYPES: dict[Any, Any] = {str: str, int: int, float: int | float, bool: bool}
_get_type_hints = cache(get_type_hints)  # slow: it compiles every hint


def check_serializable(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Refuse texts that cannot be encoded, numbers that are not finite, and deep nesting."""
    # The negated comparison is also true for NaN.
    is_bad_number = isinstance(value, int | float) and not abs(value) <= MAX_NUMBER
    is_bad_text = isinstance(value, str) and has_lone_surrogate(value)
    if max_depth == 0 or is_bad_number or is_bad_text:
        raise DamagedFile(
            "The file holds half of a surrogate pair, a number that is too large or not finite, or values "
            f"nested more than {MAX_DEPTH} deep.",
            code="value-not-serializable",
        )
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_serializable(name, max_depth - 1)
            check_serializable(inner, max_depth - 1)
    elif isinstance(value, list):
        for inner in value:
            check_serializable(inner, max_depth - 1)


def parse_dataclass(dataclass_type: Any, values: Mapping[str, Any], path: str) -> Any:
    """Build a dataclass from JSON values, checking each value against the type hint of its field.

    Args:
        dataclass_type: The class.
        values: Field values; those of a TokenRow have the names of the file format.
        path: Path of these values in the file, for messages; empty or with a trailing dot.

    Raises:
        DamagedFile: A value has another type than its field.
        LookupError: A required field is missing.
    """
    if dataclass_type is TokenRow:
        values = {
            FIELD_NAMES_BY_SAVED_NAME.get(name, name): value for name, value in values.items()
        }
    required = [field.name for field in fields(dataclass_type) if field.default is MISSING]
    hints = _get_type_hints(dataclass_type)
    arguments = {}
    for name in dict.fromkeys((*required, *values)):
        arguments[name] = parse_value(hints.get(name), values[name], f"{path}{name}")
    return dataclass_type(**arguments)


def parse_value(hint: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to what a type hint says.

    Args:
        hint: A type, such as ``tuple[int, ...] | None``; None and Any accept everything.
        value: The JSON value.
        path: Its path in the file, for messages.

    Raises:
        DamagedFile: The value has another type.
    """
    kind = get_origin(hint) or hint
    inner_hints = get_args(hint)
    if kind is types.UnionType:  # always ``something | None``
        return None if value is None else parse_value(inner_hints[0], value, path)
    if is_dataclass(kind) or kind is np.ndarray:
        return _parse_object(kind, value, path)
    if kind is tuple and isinstance(value, list | tuple):
        return _parse_tuple(inner_hints, value, path)
    if kind is Mapping and isinstance(value, Mapping):
        return _parse_mapping(inner_hints[1], value, path)
    if not _is_simple_value(kind, inner_hints, value):
        _refuse_type(kind, inner_hints, path)
    return value


def _parse_object(kind: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to an array, an image or a dataclass."""
    if kind is np.ndarray:
        return np.array(value, float)
    if kind is PatchImage:  # a dataclass with a format of its own
        return PatchImage.from_dict(value)
    return parse_dataclass(kind, value, f"{path}.")


def _parse_mapping(value_hint: Any, values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Convert a JSON object to a dictionary, value by value."""
    parsed = {}
    for name, value in values.items():
        parsed[name] = parse_value(value_hint, value, f"{path}.{name}")
    return parsed


def _parse_tuple(
    inner_hints: tuple[Any, ...], value: list[Any] | tuple[Any, ...], path: str
) -> Any:
    """Convert a JSON list to a tuple, entry by entry."""
    if inner_hints[-1] is ...:
        inner_hints = inner_hints[:1] * len(value)
    if len(inner_hints) != len(value):
        _refuse_type(tuple, (), path)
    entries = []
    for i, (hint, inner) in enumerate(zip(inner_hints, value, strict=True)):
        entries.append(parse_value(hint, inner, f"{path}.{i}"))
    return tuple(entries)


def _is_simple_value(kind: Any, choices: tuple[Any, ...], value: Any) -> bool:
    """Return whether a value is a text, number or boolean as ``kind`` says."""
    if kind in (Any, None):
        return True
    if kind is Literal:
        return isinstance(value, str) and value in choices
    # To Python, True is an int; in a file it is none.
    has_type = isinstance(value, JSON_TYPES.get(kind, ()))
    return has_type and isinstance(value, bool) == (kind is bool)


def _refuse_type(kind: Any, choices: tuple[Any, ...], path: str) -> NoReturn:
    expected = " or ".join(map(str, choices)) if kind is Literal else f"of type {kind.__name__}"
    raise DamagedFile(f"{path} is not {expected}.", code="value-type")


def check_attribution(attribution: Any) -> None:
    """Refuse an Attribution with parts that do not fit each other."""
    for path, is_consistent in _iter_consistency_checks(attribution):
        if not is_consistent:
            raise DamagedFile(
                f"{path} is inconsistent with the rest. Save the explanation again.",
                code="value-inconsistent",
            )
    convergence = attribution.extras.get("convergence") or {}
    parse_value(float, convergence.get("gap_percent", 0), "extras.convergence.gap_percent")
    parse_value(
        tuple[float, ...] | None, attribution.extras.get("conservation"), "extras.conservation"
    )


def _iter_consistency_checks(attribution: Any) -> Iterator[tuple[str, bool]]:
    """Yield paths in the file and whether their values are consistent.

    Each check may rely on those before it: the caller stops at the first that fails.
    """
    yield from _iter_row_checks(attribution.row)
    yield from _iter_prediction_checks(attribution.prediction)
    terms = attribution.target.terms
    layers = attribution.layers
    num_tokens = len(attribution.row.ids)
    yield "target.terms", bool(terms)
    yield "target.terms", all(coordinate and min(coordinate) >= 0 for coordinate, _ in terms)
    yield "logits", attribution.logits.ndim == 1
    yield "layers", layers is None or (layers.size > 0 and layers.shape[1:] == (num_tokens,))
    yield "extras.trust", isinstance(attribution.extras.get("trust"), Mapping | None)
    yield "extras.convergence", isinstance(attribution.extras.get("convergence"), Mapping | None)


def _iter_row_checks(row: TokenRow) -> Iterator[tuple[str, bool]]:
    """Yield the checks of the tokens; paths have the names of the file format."""
    num_tokens = len(row.ids)
    per_token = [
        row.attention_mask,
        row.pieces,
        row.special_tokens_mask,
        row.spans,
        row.segments,
        row.word_ids,
    ]
    if row.token_type_ids is not None:
        per_token.append(row.token_type_ids)
    lengths = {len(values) for values in per_token}
    yield "row, one entry per token", num_tokens > 0 and lengths == {num_tokens}
    positions = set(range(num_tokens))
    yield "row.ids", all(0 <= i < MAX_TOKEN_ID for i in row.ids + row.continuation_ids)
    yield "row.attention", set(row.attention_mask) <= {0, 1}
    yield "row.cut", row.num_truncated >= 0
    yield "row.at", row.target_position is None or row.target_position in positions
    # A continuation has at most one id per token, or per token that gets a label.
    yield "row.answer", len(row.continuation_ids) <= (len(row.target_positions) or num_tokens)
    yield "row.asked", positions.issuperset(row.target_positions)
    if row.image is not None:
        patch_positions = row.image.get_positions(num_tokens)
        num_patches = row.image.rows * row.image.columns
        yield "row.image", len(set(patch_positions)) == num_patches
        yield "row.image", positions.issuperset(patch_positions)
    segments_and_spans = zip(row.segments, row.spans, strict=True)
    yield (
        "row.spans",
        all(_is_span_in_text(row, segment, span) for segment, span in segments_and_spans),
    )


def _iter_prediction_checks(prediction: Any) -> Iterator[tuple[str, bool]]:
    probabilities = prediction.probabilities
    num_labels = len(prediction.labels)
    yield "prediction.probabilities", len(probabilities) in (0, num_labels)
    yield "prediction.probabilities", all(0 <= p <= 1 for p in probabilities)
    yield "prediction.index", prediction.index in (prediction.ids or range(num_labels))


def _is_span_in_text(row: TokenRow, segment: int | None, span: Span | None) -> bool:
    if segment is None:
        return True
    if not 0 <= segment < len(row.texts):
        return False
    return span is None or 0 <= span[0] <= span[1] <= len(row.texts[segment])
