"""What one call of explain() asks for, beside its texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypedDict

import numpy as np

from tokenlight.data.target import TargetLike
from tokenlight.data.tokens import ExplainMask, Long, Question, TextInput, TokenRow, Tokens
from tokenlight.errors import BadInput, BadTarget, TokenlightError, few
from tokenlight.files.tables import Example, example
from tokenlight.inputs.picture import Picture, is_picture
from tokenlight.inputs.prompt import Chat, Context
from tokenlight.methods._method import Method

Job = tuple[TokenRow, TargetLike]  # a row of tokens and what is asked of it
OneText = TextInput | Chat | Context | Picture | TokenRow


@dataclass(frozen=True, slots=True)
class How:
    """Everything one call decided, checked."""

    methods: tuple[Method, ...]
    explain_mask: ExplainMask
    token_types: Literal["tokenizer", "zeros"]
    long: Long
    seed: int
    batch_tokens: int
    progress: bool | None
    batch_size: int | None = None
    why: tuple[str, str] | None = None  # the method taken by default, and the reason


class Keywords(TypedDict, total=False):
    """The keywords of explain(), as users may set them."""

    explain_mask: ExplainMask
    token_types: Literal["tokenizer", "zeros"]
    long: Long
    seed: int
    batch_tokens: int | None
    batch_size: int | None
    text: str | None
    progress: bool | None


def refuse_arrays(target: Any) -> None:
    """A target is one thing, and so is each part of it: an array of them compares with nothing."""
    parts = [getattr(target, one.name) for one in fields(target)] if is_dataclass(target) else []
    for one in (target, *parts):
        if getattr(one, "shape", ()) != ():
            raise BadTarget(f"an array of shape {tuple(one.shape)} is no target; give one a text.")


@contextmanager
def naming(number: int | None) -> Iterator[None]:
    """An error about one text of many says which it is, counted from 0; about the only one it need not."""
    try:
        yield
    except TokenlightError as refused:
        if number is None:
            raise
        raise type(refused)(f"text {number} (counted from 0): {refused}") from refused


def tabled(inputs: Any, column: str | None) -> Any:
    """The texts of a table (of pandas or Arrow, a Dataset, an IterableDataset), an iterator where it has no
    length; any other input as it is. Tables are known by what they offer: no library need be there."""
    names, rows = getattr(inputs, "column_names", None), None
    if isinstance(names, Mapping):
        one = f"x[{next(iter(names), 'test')!r}]"
        raise BadInput(f"this holds splits ({', '.join(names)}); give one of them, such as {one}.")
    if hasattr(inputs, "column_names"):
        rows = inputs.to_pylist() if hasattr(inputs, "to_pylist") else inputs
    elif hasattr(inputs, "itertuples"):
        rows = inputs.rename(columns=str).to_dict("records")
    if rows is not None:
        numbered = ((f"row {number} of the table", row) for number, row in enumerate(rows, 1))
        texts = (example(row, where, text=column, marks=False) for where, row in numbered)
        return list(texts) if hasattr(inputs, "__len__") else texts
    if column is not None:
        kind = type(inputs).__name__
        raise BadInput(f"text={column!r} names a column, but a {kind} has none; give a data frame.")
    if isinstance(inputs, Mapping) and {*inputs} == {"image", "text"}:
        return Picture(inputs["image"], text=inputs["text"])
    if isinstance(inputs, Mapping) and "input_ids" in inputs:  # what a tokenizer returned
        names = ("input_ids", "attention_mask", "token_type_ids")
        values: list[Any] = [inputs.get(name) for name in names]
        if np.ndim(values[0][0]) == 0:  # of one text
            values = [v if v is None else [v] if isinstance(v, list) else v[None] for v in values]
        return Tokens.from_ids(*values)
    return inputs


def listed(inputs: Any) -> tuple[Sequence[Any], bool]:
    """Inputs as a list, and whether it was a single text."""
    if isinstance(inputs, Tokens):
        return inputs.rows, len(inputs) == 1
    if isinstance(inputs, np.ndarray) and (inputs.dtype.kind in "UO" or not inputs.ndim):
        inputs = inputs.tolist()
    kinds = (str, tuple, Question, Chat, Context, TokenRow, Example)
    if isinstance(inputs, kinds) or is_picture(inputs):
        return [inputs], True
    # To go through a mapping or a table gives the names of its columns, which nobody means.
    names = inputs if isinstance(inputs, Mapping) else getattr(inputs, "columns", None)
    if names is not None:
        named, kind = [str(name) for name in names] or ["text"], type(inputs).__name__
        said = f"a {kind} holds columns ({few(named, 6)}), not texts"
        raise BadInput(f"{said}; give one of them, for example x[{named[0]!r}].")
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes | bytearray):
        raise BadInput(f"cannot explain {type(inputs).__name__}: give a text, or a list of texts.")
    rows = list(unrolled(inputs))
    if not rows:
        raise BadInput("the list of texts is empty; give at least one text.")
    return rows, False


def unrolled(inputs: Iterable[Any]) -> Iterator[Any]:
    """Each text or row by itself; :class:`Tokens` hold several."""
    for entry in inputs:
        yield from entry if isinstance(entry, Tokens) else [entry]


def whole_number(option: str, value: Any, least: int) -> int:
    """``value``, which must be a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadInput(f"{option}={value!r} cannot be: give a whole number, {least} or more.")
    return int(value)
