"""Rows of tokens: what the model reads, and where each token stands in the text a person wrote."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import itemgetter
from struct import pack
from typing import Any, Literal

import numpy as np

from tokenlight.data.image import PatchImage
from tokenlight.data.lazy import LazyDataclass
from tokenlight.errors import BadInput
from tokenlight.errors.arguments import check_fields

Span = tuple[int, int]  # first character, and the one after the last
ExplainMask = Literal["none", "cls_sep", "sep"]
LongTextPolicy = Literal["error", "truncate", "stride"]
TokenTypes = Literal["tokenizer", "zeros"]  # where token types come from
# A prompt is not read in windows: its end decides what comes next.
LongPromptPolicy = Literal["error", "truncate"]
PER_TOKEN_FIELDS = (
    "ids",
    "attention_mask",
    "token_type_ids",
    "pieces",
    "special_tokens_mask",
    "spans",
    "segments",
    "word_ids",
)
# Fields of two rows that are joined by simple concatenation; segments and word ids are renumbered.
CONCATENATED_FIELDS = (
    "ids",
    "attention_mask",
    "pieces",
    "special_tokens_mask",
    "spans",
    "texts",
)
# Saved files spell some fields of a TokenRow differently; these spellings are part of the file format.
SAVED_FIELD_NAMES = {
    "attention_mask": "attention",
    "token_type_ids": "token_types",
    "special_tokens_mask": "special",
    "word_ids": "words",
    "num_truncated": "cut",
    "target_position": "at",
    "segment_names": "names",
    "reference_embedding": "anchor",
    "source_length": "source",
    "continuation_ids": "answer",
    "target_positions": "asked",
}


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text holds half of a surrogate pair, which cannot be encoded as UTF-8."""
    return re.search("[\ud800-\udfff]", text) is not None


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, for models that answer with a span of the context.

    Args:
        question: The question.
        context: The text in which the model looks for the answer.

    Example:
        >>> from tokenlight import Explainer, Question
        >>> explainer = Explainer.from_pretrained("tokenlight/qa")
        >>> question = Question(question="Who wrote Emma?", context="Emma was written by Jane Austen.")
        >>> attribution = explainer.explain(question)
    """

    question: str
    context: str


TextInput = str | tuple[str, str] | Question


@dataclass(frozen=True)
class TokenRow(LazyDataclass):
    """One input as the model reads it, without padding.

    The fields from ``ids`` to ``word_ids`` have one entry per token. Special tokens have no span, no
    segment and no word.

    Args:
        ids: Token ids.
        attention_mask: 1 where the model may attend, 0 where the token is masked.
        token_type_ids: Segment ids of BERT-like models; None if the model has none.
        pieces: The tokens as the tokenizer names them.
        special_tokens_mask: Whether the tokenizer or the model added the token.
        spans: Character spans in ``texts[segment]``.
        segments: Index into ``texts``.
        word_ids: Number of the word, counted through the whole row; a word never joins two segments.
        texts: The texts that the tokens come from: one, two of a pair, the messages of a chat.
        num_truncated: Number of tokens that ``long="truncate"`` dropped.
        target_position: The token whose output is explained, for heads with one output per token.
        segment_names: A name for each of ``texts``, such as the roles of a chat.
        reference_embedding: The vector that a sentence embedding is compared with.
        image: The image whose patches are among the tokens.
        source_length: Number of tokens that an encoder reads; the tokens after them go to a decoder.
        continuation_ids: Token ids that are predicted together, each from the tokens before it. The last
            of them follows the last token of the row. With ``target_positions``, label ids instead.
        target_positions: The tokens to which ``continuation_ids`` gives labels.
    """

    ids: tuple[int, ...]
    attention_mask: tuple[int, ...]
    token_type_ids: tuple[int, ...] | None
    pieces: tuple[str, ...]
    special_tokens_mask: tuple[bool, ...]
    spans: tuple[Span | None, ...]
    segments: tuple[int | None, ...]
    word_ids: tuple[int | None, ...]
    texts: tuple[str, ...]
    num_truncated: int = 0
    target_position: int | None = None
    segment_names: tuple[str, ...] = ()
    reference_embedding: tuple[float, ...] | None = None
    image: PatchImage | None = None
    source_length: int | None = None
    continuation_ids: tuple[int, ...] = ()
    target_positions: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values under the names of the file format."""
        values = asdict(replace(self, image=None))
        values["image"] = self.image and self.image.to_dict()
        return {SAVED_FIELD_NAMES.get(name, name): value for name, value in values.items()}

    @cached_property
    def ids_array(self) -> np.ndarray:
        """``ids`` as a read-only array of int64."""
        # struct is four times as fast as numpy at converting a tuple.
        return np.frombuffer(pack(f"{len(self)}q", *self.ids), dtype=np.int64)

    @cached_property
    def is_unmasked(self) -> bool:
        """Whether the attention mask is 1 everywhere."""
        return 0 not in self.attention_mask

    @classmethod
    def from_ids(cls, ids: Sequence[int], **fields: Any) -> "TokenRow":
        """Create a row from ids only.

        Every token is visible, not special and a word of its own, and there is no text.

        Args:
            ids: Token ids.
            fields: Fields that are known and replace these defaults.
        """
        length = len(ids)
        row = cls(
            ids=tuple(ids),
            attention_mask=(1,) * length,
            token_type_ids=None,
            pieces=tuple(map(str, ids)),
            special_tokens_mask=(False,) * length,
            spans=(None,) * length,
            segments=(None,) * length,
            word_ids=tuple(range(length)),
            texts=(),
        )
        return replace(row, **fields)

    @property
    def surface_forms(self) -> tuple[str, ...]:
        """Each token as it was written, without surrounding white space; its piece where that is unknown."""
        forms = []
        for span, segment, piece in zip(self.spans, self.segments, self.pieces, strict=True):
            if span is None or segment is None:
                forms.append(piece)
                continue
            written = self.texts[segment][span[0] : span[1]]
            # A token of only white space stays as it is.
            forms.append(written.strip() or written or piece)
        return tuple(forms)

    def extract_text(self, positions: Sequence[int], separator: str = "") -> str:
        """Return the text from the first to the last of some adjacent tokens.

        Args:
            positions: Token positions in order.
            separator: Joins the pieces where the text is unknown.
        """
        span = self.get_span(positions)
        segment = self.segments[positions[0]]
        if span is None or segment is None:
            return separator.join(self.pieces[i] for i in positions)
        return self.texts[segment][span[0] : span[1]]

    def get_span(self, positions: Sequence[int]) -> Span | None:
        """Return the character span from the first to the last of some adjacent tokens."""
        first = self.spans[positions[0]]
        last = self.spans[positions[-1]]
        if first is None or last is None:
            return None
        return first[0], last[1]

    @property
    def required_positions(self) -> list[int]:
        """Positions of the tokens that the target is about, which no perturbation may remove."""
        positions = []
        if self.target_position is not None:
            positions.append(self.target_position)
        if self.target_positions:
            positions.extend(self.target_positions)
        else:
            # All tokens of a continuation but the last one stand at the end of the row.
            num_written = max(0, len(self.continuation_ids) - 1)
            positions.extend(range(len(self) - num_written, len(self)))
        return positions

    @property
    def fingerprint(self) -> str:
        """A text that differs for different inputs; all images of one size have the same ids."""
        digest = "" if self.image is None else self.image.digest
        return repr(self.ids) + digest

    def make_generator(self, seed: int, *stream: int) -> np.random.Generator:
        """Create a random generator for this input: the same alone, in any batch, on any machine.

        Args:
            seed: The seed that the user gave.
            stream: Numbers that separate several streams of random draws for one input.
        """
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=8).digest()
        return np.random.default_rng([seed, int.from_bytes(digest, "little"), *stream])

    def mask_positions(self, mask: Sequence[bool]) -> "TokenRow":
        """Return this row with attention 0 where ``mask`` is true; ids and positions stay."""
        attention_mask = []
        for is_masked, attention in zip(mask, self.attention_mask, strict=True):
            attention_mask.append(0 if is_masked else attention)
        return replace(self, attention_mask=tuple(attention_mask))

    def take(self, positions: Sequence[int]) -> "TokenRow":
        """Return a row of the tokens at ``positions``."""
        selected = list(positions)
        select = _make_selector(selected)
        changes: dict[str, Any] = {}
        for name in PER_TOKEN_FIELDS:
            values = getattr(self, name)
            changes[name] = values and select(values)
        changes["target_position"] = None
        if self.target_position in selected:
            changes["target_position"] = selected.index(self.target_position)
        if self.source_length is not None:
            changes["source_length"] = sum(i < self.source_length for i in selected)
        if self.target_positions:
            changes |= self._take_targets(selected)
        if self.image is not None and self.image.token_positions:
            changes["image"] = self._take_image(self.image, selected)
        return replace(self, **changes)

    def _take_targets(self, selected: list[int]) -> dict[str, Any]:
        """Return the new target positions; a target that lost one of its tokens is gone."""
        if not set(self.target_positions) <= set(selected):
            return {"target_positions": (), "continuation_ids": ()}
        return {"target_positions": tuple(map(selected.index, self.target_positions))}

    @staticmethod
    def _take_image(image: PatchImage, selected: list[int]) -> PatchImage:
        """Return the image with the new positions of its patches."""
        token_positions = tuple(map(selected.index, image.token_positions))
        if token_positions == image.token_positions:
            return image
        return replace(image, token_positions=token_positions)

    def concatenate(self, other: "TokenRow", **changes: Any) -> "TokenRow":
        """Return one row of this row's tokens followed by those of ``other``.

        Args:
            other: The row to append.
            changes: Fields to set; other fields that are not lists of tokens or texts stay this row's.
        """
        joined: dict[str, Any] = {}
        for name in CONCATENATED_FIELDS:
            joined[name] = getattr(self, name) + getattr(other, name)
        # Segments and words of the other row are numbered after those of this one.
        num_words = 1 + max((word for word in self.word_ids if word is not None), default=-1)
        joined["segments"] = self.segments + _shift(other.segments, len(self.texts))
        joined["word_ids"] = self.word_ids + _shift(other.word_ids, num_words)
        return replace(self, **joined, **changes)


def _make_selector(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that reads the values at ``positions``."""
    if len(positions) < 2:  # of one position, an itemgetter returns the bare value
        return lambda values: tuple(values[position] for position in positions)
    # Several times as fast as a comprehension, and random partial texts are taken by the hundred.
    return itemgetter(*positions)


def _shift(indices: Sequence[int | None], offset: int) -> tuple[int | None, ...]:
    """Add ``offset`` to every index that is not None."""
    return tuple(None if index is None else index + offset for index in indices)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Several rows of tokens. ``explain`` takes it wherever it takes texts.

    Args:
        rows: One row per text.

    Raises:
        BadInput: ``rows`` holds something else than rows.

    Example:
        >>> from tokenlight import Tokens
        >>> len(Tokens.from_ids([[2, 5, 6, 3], [2, 7, 8, 3]]))
        2
    """

    rows: tuple[TokenRow, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TokenRow]:
        return iter(self.rows)

    @classmethod
    def from_ids(cls, ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> "Tokens":
        """Create rows from 2-D arrays, lists or tensors with one row per text.

        The Explainer, which knows the padding id, drops padding later. If neither model nor tokenizer has
        a padding id, masked tokens at both ends of a row are padding.

        Args:
            ids: Token ids, ``text token``.
            attention_mask: 0 or 1 per token; 1 everywhere by default.
            token_type_ids: Segment ids of BERT-like models.

        Returns:
            The rows, still padded.

        Raises:
            BadInput: An array has another shape, holds no integers, or the mask is not made of 0 and 1.

        Example:
            >>> from tokenlight import Tokens
            >>> tokens = Tokens.from_ids([[2, 5, 3, 0]], attention_mask=[[1, 1, 1, 0]])
            >>> tokens.rows[0].attention_mask
            (1, 1, 1, 0)
        """
        id_table = _to_integer_table("ids", ids)
        if attention_mask is None:
            attention_mask = np.ones_like(id_table)
        mask_table = _to_integer_table("attention_mask", attention_mask, id_table.shape)
        if not np.isin(mask_table, (0, 1)).all():
            raise BadInput(
                "attention_mask holds values other than 0 and 1. Give a 0/1 mask.",
                code="attention-mask-values",
            )
        type_rows: list[Any] = [None] * len(id_table)
        if token_type_ids is not None:
            type_table = _to_integer_table("token_type_ids", token_type_ids, id_table.shape)
            type_rows = [tuple(types) for types in type_table.tolist()]
        is_unmasked = (mask_table != 0).all(axis=1)
        rows = []
        for i, row_ids in enumerate(id_table.tolist()):
            mask = tuple(mask_table[i].tolist())
            row = TokenRow.from_ids(row_ids, attention_mask=mask, token_type_ids=type_rows[i])
            # The array is at hand, so the cached properties need not compute it again. A copy of the
            # bytes, so that one row does not keep the whole table in memory.
            ids_array = np.frombuffer(id_table[i].tobytes(), dtype=np.int64)
            vars(row).update(ids_array=ids_array, is_unmasked=bool(is_unmasked[i]))
            rows.append(row)
        return cls(tuple(rows))


def _to_integer_table(name: str, values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Convert to a 2-D array of int64, of the given shape if there is one."""
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    try:
        table = np.asarray(values)
    except ValueError as error:
        raise BadInput(
            f"{name} has rows of different lengths. Pad them with the pad id and attention 0.",
            code="ids-ragged",
        ) from error
    is_integer = table.dtype == bool or np.issubdtype(table.dtype, np.integer)
    has_shape = table.ndim == 2 and table.size > 0 and table.shape == (shape or table.shape)
    if not has_shape or not is_integer:
        raise BadInput(
            f"{name} has shape {table.shape} and dtype {table.dtype}. Give a 2-D array of integers with "
            "one row per text (ids[None] for a single text); masks and types need the shape of the ids.",
            code="ids-shape",
        )
    return table.astype(np.int64)


def strip_padding(row: TokenRow, pad_id: int | None) -> TokenRow:
    """Drop padding from both ends of a row.

    Padding has attention 0 *and* the pad id; other masked positions stay. Without a pad id, masked ends
    of a row that was made from ids are padding; a row that was made from a text has none.
    """
    unpadded = find_unpadded_range(row, pad_id)
    return row if len(unpadded) == len(row) else row.take(unpadded)


def find_unpadded_range(row: TokenRow, pad_id: int | None) -> range:
    """Return the positions between the padding at both ends."""
    if row.is_unmasked or (pad_id is None and row.texts):
        return range(len(row))
    real_positions = []
    for i, (token_id, attention) in enumerate(zip(row.ids, row.attention_mask, strict=True)):
        if attention or pad_id not in (None, token_id):
            real_positions.append(i)
    if not real_positions:
        raise BadInput(
            "A row of ids is all padding, so there is no token to explain. Leave this row out.",
            code="row-all-padding",
        )
    unpadded = range(real_positions[0], real_positions[-1] + 1)
    if pad_id is None:
        return unpadded
    inner_padding = sorted(set(unpadded).difference(real_positions))
    if inner_padding:
        raise BadInput(
            f"Position {inner_padding[0]} is padding (pad id {pad_id}, attention 0) between real tokens. "
            "Put padding at one end of the row.",
            code="padding-inside-row",
        )
    return unpadded


def add_pieces(row: TokenRow, tokenizer: Any) -> TokenRow:
    """Add pieces and special flags to a row made from ids, if there is a tokenizer."""
    if tokenizer is None or row.texts:
        return row
    # An unknown word is no special token, although tokenizers list its id among them.
    special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    pieces = tokenizer.convert_ids_to_tokens(list(row.ids))
    return replace(
        row,
        pieces=tuple(map(str, pieces)),
        special_tokens_mask=tuple(token_id in special_ids for token_id in row.ids),
    )


def apply_explain_mask(row: TokenRow, mode: ExplainMask, tokenizer: Any) -> TokenRow:
    """Mask [CLS] and [SEP] (``"cls_sep"``) or [SEP] (``"sep"``); ids and positions stay.

    The official implementations of AttCAT and Mask-LRP run their explanation pass on such inputs.

    Args:
        row: The tokens; the result is a copy.
        mode: Which special tokens are hidden from the model.
        tokenizer: The tokenizer, which knows the ids of [CLS] and [SEP].
    """
    if mode == "none":
        return row
    if tokenizer is None or tokenizer.sep_token_id is None:
        raise BadInput(
            f"explain_mask={mode!r} needs a tokenizer with a separator token, but this model's tokenizer "
            "has none. Leave it out, or in Python mask positions with Tokens.from_ids(ids, "
            "attention_mask).",
            code="explain-mask-no-separator",
        )
    masked_ids = {tokenizer.sep_token_id}
    if mode == "cls_sep":
        masked_ids.add(tokenizer.cls_token_id)
    return row.mask_positions([token_id in masked_ids for token_id in row.ids])
