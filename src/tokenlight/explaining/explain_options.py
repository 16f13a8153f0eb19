"""The arguments of one call of explain(): its inputs as a list of texts, and its checked options."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import numpy as np

from tokenlight.data.target import TargetLike
from tokenlight.data.tokens import (
    ExplainMask,
    LongTextPolicy,
    Question,
    TextInput,
    TokenRow,
    Tokens,
    TokenTypes,
)
from tokenlight.errors import BadInput, BadTarget, TokenlightError, join_first
from tokenlight.errors.arguments import Range, Seed
from tokenlight.files.tables import Example, RowLocation, parse_example
from tokenlight.inputs.picture import Picture, is_picture
from tokenlight.inputs.prompt import Chat, Context
from tokenlight.methods.base import Method
from tokenlight.trace.sites import Sites, join_sites

Effort = Literal["instant", "normal", "thorough"]  # how many passes to spend, by name
TargetedRow = tuple[TokenRow, TargetLike]  # a row of tokens and the target to explain in it
SingleInput = TextInput | Chat | Context | Picture | TokenRow
TOKENIZER_OUTPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The checked options of one call of explain().

    Attributes:
        methods: The methods, in the order of the call.
        explain_mask: Which special tokens are masked in the pass that is explained.
        token_types: Where token types come from.
        long: What to do with a text that is longer than the model reads.
        seed: The seed of everything that is sampled.
        batch_tokens: The most tokens that go through the model at once.
        progress: Whether to show a progress bar; None: on a terminal.
        batch_size: The most rows that go through the model at once.
        default_method_reason: The name of the method that ``method="auto"`` chose, and why.
        effort: How many passes to spend, which selects the method.
        stable: Sampling stops once about this share of the top tokens would be found again.
    """

    methods: tuple[Method, ...]
    explain_mask: ExplainMask
    token_types: TokenTypes
    long: LongTextPolicy
    seed: int
    batch_tokens: int
    progress: bool | None
    batch_size: int | None = None
    default_method_reason: tuple[str, str] | None = None
    effort: str | int | None = None
    stable: float | None = None

    @property
    def recorded_sites(self) -> Sites:
        """The sites that the methods read, taken together."""
        return join_sites(method.recorded_sites for method in self.methods)


class SharedKeywords(TypedDict, total=False):
    """The keywords that explain() and explain_files() share; see :meth:`Explainer.explain`."""

    explain_mask: ExplainMask
    token_types: TokenTypes
    long: LongTextPolicy
    seed: int
    effort: Effort | int | None
    stable: float | None
    batch_tokens: int | None
    batch_size: int | None


class CommonKeywords(SharedKeywords, total=False):
    """The keywords of explain() that hold for any kind of input; see :meth:`Explainer.explain`."""

    progress: bool | None


class ExplainKeywords(CommonKeywords, total=False):
    """The keywords of explain(), as users may set them; see :meth:`Explainer.explain`."""

    text_column: str | None


class FileKeywords(SharedKeywords, total=False):
    """The keywords of explain() that explain_files() passes on to it."""

    target: Any


class AttributeKeywords(ExplainKeywords, total=False):
    """The keywords of attribute() that it passes on to explain()."""

    method: Any


class EvaluateKeywords(TypedDict, total=False):
    """The keywords of evaluate() apart from the explanations and the metrics."""

    seed: Seed
    batch_tokens: Annotated[int, Range(1, inf)] | None
    progress: bool | None


def check_target_is_scalar(target: Any) -> None:
    """Refuse a target that is an array or has one in a field, since it equals nothing.

    Raises:
        BadTarget: The target, or a field of it, has a shape.
    """
    values = [target]
    if is_dataclass(target):
        values += [getattr(target, field.name) for field in fields(target)]
    for value in values:
        if getattr(value, "shape", ()) != ():
            raise BadTarget(
                f"An array of shape {tuple(value.shape)} is not a target. Give one target, or a list with "
                "one per text.",
                code="target-is-array",
            )


@contextmanager
def text_index_in_errors(index: int | None) -> Iterator[None]:
    """Add the index of the text, counted from 0, to every error; None adds nothing."""
    try:
        yield
    except TokenlightError as error:
        if index is None:
            raise
        message = f"Text {index} (counted from 0): {error}"
        raise type(error)(message, code=error.code) from error


def normalize_inputs(inputs: Any, text_column: str | None) -> Any:
    """Return the texts of a table, or other inputs as they are.

    Tables of pandas, Arrow and datasets are recognized by their attributes, so none of these libraries is
    imported.

    Args:
        inputs: A table, what a tokenizer returned, or any other input of explain().
        text_column: The column of the texts; None finds it by its name.

    Returns:
        A list of Examples for a table, or an iterator if the table has no length; Tokens for the output
        of a tokenizer; a Picture for an image with a text; anything else unchanged.

    Raises:
        BadInput: ``inputs`` has several splits, or ``text_column`` is given without a table.
    """
    column_names = getattr(inputs, "column_names", None)
    if isinstance(column_names, Mapping):
        first_split = next(iter(column_names), "test")
        raise BadInput(
            f"This dataset has several splits ({', '.join(column_names)}). Give one of them, such as "
            f"x[{first_split!r}].",
            code="dataset-has-splits",
        )
    # A table comes first: other mappings may have a key named as a column.
    rows = _get_table_rows(inputs)
    if rows is not None:
        examples = _iter_examples(rows, text_column)
        return list(examples) if hasattr(inputs, "__len__") else examples
    if text_column is not None:
        raise BadInput(
            f"text_column={text_column!r} names a column, but an object of type {type(inputs).__name__} has "
            "none. Give a data frame.",
            code="column-without-table",
        )
    if isinstance(inputs, Mapping) and {*inputs} == {"image", "text"}:
        return Picture(inputs["image"], text=inputs["text"])
    if isinstance(inputs, Mapping) and "input_ids" in inputs:
        return _read_tokenizer_output(inputs)
    return inputs


def _get_table_rows(inputs: Any) -> Iterable[Mapping[str, Any]] | None:
    """Return the rows of a table; None for anything else."""
    if hasattr(inputs, "column_names"):  # Arrow or datasets
        rows: Iterable[Mapping[str, Any]]
        rows = inputs.to_pylist() if hasattr(inputs, "to_pylist") else inputs
        return rows
    if hasattr(inputs, "itertuples"):  # pandas
        records: list[Mapping[str, Any]] = inputs.rename(columns=str).to_dict("records")
        return records
    return None


def _iter_examples(rows: Iterable[Mapping[str, Any]], text_column: str | None) -> Iterator[Example]:
    for number, row in enumerate(rows, start=1):
        location = RowLocation("row", number, "the table")
        yield parse_example(row, location, text_column=text_column, with_annotations=False)


def _read_tokenizer_output(inputs: Mapping[str, Any]) -> Tokens:
    """Turn what a tokenizer returned into Tokens, for one text or several."""
    values = [inputs.get(name) for name in TOKENIZER_OUTPUTS]
    # One text, given without a batch axis.
    if _count_axes(values[0]) == 1:
        values = [None if value is None else _add_batch_axis(value) for value in values]
    return Tokens.from_ids(*values)


def _count_axes(ids: Any) -> int:
    """Count the axes of token ids: 1 for one text, 2 for a batch."""
    if hasattr(ids, "shape"):
        return len(ids.shape)
    if isinstance(ids, list | tuple) and len(ids) > 0:
        return 1 + _count_axes(ids[0])
    return 0


def _add_batch_axis(values: Any) -> Any:
    return values[None] if hasattr(values, "shape") else [values]


class TextList(NamedTuple):
    """The inputs of a call as a list of texts, and whether a single text was given."""

    texts: Sequence[Any]
    is_single: bool


def list_texts(inputs: Any) -> TextList:
    """List the texts among the inputs of a call.

    Raises:
        BadInput: The inputs are a table, empty, or nothing that can be explained.
    """
    if isinstance(inputs, Tokens) and len(inputs):
        return TextList(inputs.rows, len(inputs) == 1)
    # An array of texts is a list of texts; an array of numbers may be an image.
    if isinstance(inputs, np.ndarray) and (inputs.dtype.kind in "UO" or not inputs.ndim):
        inputs = inputs.tolist()
    single_kinds = (str, tuple, Question, Chat, Context, TokenRow, Example)
    if isinstance(inputs, single_kinds) or is_picture(inputs):
        return TextList([inputs], True)
    _refuse_columns(inputs)
    if not _is_collection(inputs):
        raise BadInput(
            f"An object of type {type(inputs).__name__} cannot be explained. Give a text, or a list "
            "of texts.",
            code="input-is-no-text",
        )
    texts = list(iter_rows(inputs))
    if not texts:
        raise BadInput("The list of texts is empty. Give at least one text.", code="no-texts")
    return TextList(texts, False)


def _is_collection(inputs: Any) -> bool:
    """Return whether inputs can be iterated over; bytes and arrays without axes cannot."""
    is_scalar_array = getattr(inputs, "shape", None) == ()
    is_bytes = isinstance(inputs, bytes | bytearray)
    return isinstance(inputs, Iterable) and not is_scalar_array and not is_bytes


def _refuse_columns(inputs: Any) -> None:
    """Refuse a mapping or a table, since iterating over it gives the names of its columns."""
    columns = inputs if isinstance(inputs, Mapping) else getattr(inputs, "columns", None)
    if columns is None:
        return
    names = [str(name) for name in columns] or ["text"]
    raise BadInput(
        f"An object of type {type(inputs).__name__} has columns ({join_first(names, 6)}), not texts. Give "
        f"one column, for example x[{names[0]!r}].",
        code="columns-instead-of-texts",
    )


def iter_rows(inputs: Iterable[Any]) -> Iterator[Any]:
    """Yield each text by itself; :class:`Tokens` in the list may hold several."""
    for entry in inputs:
        if isinstance(entry, Tokens):
            yield from entry
        else:
            yield entry


def check_integer(option: str, value: Any, minimum: int) -> int:
    """Return ``value`` as an int.

    Args:
        option: The name of the keyword, for the message.
        value: What was given. Integers of NumPy count, bools do not.
        minimum: The smallest valid value.

    Raises:
        BadInput: It is not an integer of at least ``minimum``.
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < minimum:
        raise BadInput(
            f"{option}={value!r} is not valid. Give an integer of at least {minimum}.",
            code="not-an-integer",
        )
    return int(value)
