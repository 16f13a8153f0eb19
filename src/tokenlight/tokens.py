"""Tokens: what the model reads, and where each piece stands in the text a person wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput, TextTooLong, UnsupportedTokenizer

Span = tuple[int, int]
ExplainMask = Literal["none", "cls_sep", "sep"]
Long = Literal["error", "truncate", "stride"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, for models that answer with a span of the context."""

    question: str
    context: str


TextInput = str | tuple[str, str] | Question


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One text as the model reads it, without padding; every field has one entry a token.

    ``spans`` are character spans in ``texts[segment]``; special tokens have no span, no segment and
    no word. ``words`` counts words through the whole row and never joins two segments.
    """

    ids: tuple[int, ...]
    attention: tuple[int, ...]
    token_types: tuple[int, ...] | None
    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    spans: tuple[Span | None, ...]
    segments: tuple[int | None, ...]
    words: tuple[int | None, ...]
    texts: tuple[str, ...]
    cut: int = 0  # tokens that long="truncate" left out

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def surface(self) -> tuple[str, ...]:
        """Each token as the person wrote it; where that is unknown, the tokenizer's own piece."""
        return tuple(
            self.texts[segment][span[0] : span[1]].strip() or piece
            if span is not None and segment is not None
            else piece
            for span, segment, piece in zip(self.spans, self.segments, self.pieces, strict=True)
        )

    def masked(self, positions: Sequence[bool]) -> TokenRow:
        """The same row with attention 0 at ``positions``; ids and places stay."""
        kept = tuple(
            0 if hide else seen for hide, seen in zip(positions, self.attention, strict=True)
        )
        return replace(self, attention=kept)

    def take(self, positions: Sequence[int]) -> TokenRow:
        """The tokens at ``positions`` as a row of its own."""

        def taken(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[i] for i in positions)

        return TokenRow(
            ids=taken(self.ids),
            attention=taken(self.attention),
            token_types=None if self.token_types is None else taken(self.token_types),
            pieces=taken(self.pieces),
            special=taken(self.special),
            spans=taken(self.spans),
            segments=taken(self.segments),
            words=taken(self.words),
            texts=self.texts,
            cut=self.cut,
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Several rows of tokens. ``explain`` takes it wherever it takes texts."""

    rows: tuple[TokenRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TokenRow]:
        return iter(self.rows)

    @classmethod
    def from_ids(cls, ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Tokens:
        """Rows from 2-D arrays of token ids, one row a text; padding is dropped by the Explainer,
        which knows the padding id."""
        table = _table("ids", ids)
        mask = np.ones_like(table) if attention_mask is None else _table("mask", attention_mask)
        types = None if token_type_ids is None else _table("token_type_ids", token_type_ids)
        for name, other in (("attention_mask", mask), ("token_type_ids", types)):
            if other is not None and other.shape != table.shape:
                raise BadInput(
                    f"{name} has shape {other.shape} but ids have shape {table.shape}; "
                    "give arrays of one shape, a row for each text."
                )
        if not np.isin(mask, (0, 1)).all():
            raise BadInput("attention_mask holds values other than 0 and 1; give a 0/1 mask.")
        return cls(
            tuple(
                _bare_row(row, mask[i], None if types is None else types[i])
                for i, row in enumerate(table)
            )
        )


def _table(name: str, values: Any) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        table = np.asarray(values)
    except ValueError as ragged:
        raise BadInput(
            f"{name} has rows of different lengths; pad them to one length with the pad id and "
            "attention 0."
        ) from ragged
    if table.ndim != 2 or table.size == 0:
        raise BadInput(
            f"{name} has shape {table.shape}; give a 2-D array with a row for each text, "
            "for example ids[None] for a single text."
        )
    if table.dtype == bool:
        table = table.astype(np.int64)
    if not np.issubdtype(table.dtype, np.integer):
        raise BadInput(f"{name} has dtype {table.dtype}; token ids and masks are integers.")
    return table.astype(np.int64)


def _bare_row(ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None) -> TokenRow:
    n = len(ids)
    return TokenRow(
        ids=tuple(map(int, ids)),
        attention=tuple(map(int, mask)),
        token_types=None if types is None else tuple(map(int, types)),
        pieces=tuple(str(i) for i in ids),
        special=(False,) * n,
        spans=(None,) * n,
        segments=(None,) * n,
        words=tuple(range(n)),
        texts=(),
    )


def trimmed(row: TokenRow, pad_id: int | None) -> TokenRow:
    """Drop padding (attention 0 *and* the pad id) from both ends.

    Any other masked position keeps its place. Padding between real tokens would shift the
    positions behind it if it were dropped and is refused.
    """
    if pad_id is None or 0 not in row.attention:
        return row
    padding = [i == pad_id and seen == 0 for i, seen in zip(row.ids, row.attention, strict=True)]
    if all(padding):
        raise BadInput("a row of ids is all padding; there is no token to explain.")
    start = padding.index(False)
    stop = len(padding) - padding[::-1].index(False)
    if any(padding[start:stop]):
        raise BadInput(
            f"position {start + padding[start:stop].index(True)} is padding (pad id {pad_id}, "
            "attention 0) between real tokens; padding belongs at one end of the row."
        )
    return row if (start, stop) == (0, len(padding)) else row.take(range(start, stop))


def named(row: TokenRow, tokenizer: Any) -> TokenRow:
    """Give a row made from ids its pieces and special flags, where a tokenizer is at hand."""
    if tokenizer is None or row.texts:
        return row
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return replace(
        row,
        pieces=tuple(str(piece) for piece in tokenizer.convert_ids_to_tokens(list(row.ids))),
        special=tuple(i in special for i in row.ids),
    )


def encode(text: TextInput, tokenizer: Any, *, limit: int | None, long: Long = "error") -> TokenRow:
    """Tokenise one text, pair or question; never cuts it unless ``long="truncate"`` says so."""
    if tokenizer is None:
        raise BadInput(
            "this Explainer has no tokenizer, so it cannot read text; give Tokens.from_ids(…) or "
            "build it with Explainer(model, tokenizer)."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedTokenizer(
            f"{type(tokenizer).__name__} gives no character offsets, so words and highlights "
            "cannot be placed in the text; load the fast tokenizer (use_fast=True), or explain "
            "Tokens.from_ids(…)."
        )
    texts = _parts(text)
    whole = _encoded(tokenizer, texts, None, text)
    cut = 0
    if limit is not None and len(whole["input_ids"]) > limit:
        if long != "truncate":
            raise TextTooLong(
                f"the text has {len(whole['input_ids'])} tokens but this model reads at most "
                f"{limit}. Either give long='truncate' (explain the first {limit} tokens; what is "
                "cut is recorded), long='stride' (overlapping windows over the whole text; on the "
                "command line --long truncate or --long stride), or a shorter text."
            )
        total = len(whole["input_ids"])
        whole = _encoded(tokenizer, texts, limit, text)
        cut = total - len(whole["input_ids"])
    row = _row(whole, tokenizer, texts, cut)
    if all(row.special):
        raise BadInput(
            f"the text {texts[0][:40]!r} has no token besides the model's special tokens; "
            "give a text with at least one word."
        )
    return row


def _parts(text: TextInput) -> tuple[str, ...]:
    match text:
        case str():
            parts: tuple[Any, ...] = (text,)
        case Question(question=question, context=context):
            parts = (question, context)
        case (first, second):
            parts = (first, second)
        case _:
            raise BadInput(
                f"cannot explain {type(text).__name__} {str(text)[:60]!r}: give a text, a "
                "(text, text) pair, Question(question=…, context=…), Tokens, or a list of these."
            )
    for part in parts:
        if not isinstance(part, str):
            raise BadInput(f"expected text, got {type(part).__name__}: {str(part)[:60]!r}.")
        if not part.strip():
            raise BadInput(f"the text {part!r} is empty; give a text with at least one word.")
        if any(0xD800 <= ord(character) <= 0xDFFF for character in part):
            raise BadInput(
                f"the text {part[:40]!r} holds half of a surrogate pair, which is no character; "
                "decode the bytes again, for example with errors='replace'."
            )
    return parts


def _encoded(
    tokenizer: Any,
    texts: tuple[str, ...],
    limit: int | None,
    given: TextInput,
    overlap: int | None = None,
) -> Any:
    truncation: Any = False
    if overlap is not None:
        truncation = "only_first" if len(texts) == 1 else "only_second"
    elif limit is not None:
        truncation = "only_second" if isinstance(given, Question) else "longest_first"
    try:
        return tokenizer(
            *texts,
            truncation=truncation,
            max_length=limit,
            stride=overlap or 0,
            return_overflowing_tokens=overlap is not None,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,
        )
    except Exception as refused:
        raise TextTooLong(
            f"cannot cut this input to {limit} tokens: {refused}. The first part alone fills the "
            "window; give a shorter one."
        ) from refused


def _row(
    encoded: Any, tokenizer: Any, texts: tuple[str, ...], cut: int, window: int = 0
) -> TokenRow:
    piece = encoded.encodings[window]
    sequences = tuple(piece.sequence_ids)
    # A token the tokenizer adds itself (say [CLS]) belongs to no segment, whatever its offsets say.
    special = tuple(
        bool(flag) or segment is None
        for flag, segment in zip(piece.special_tokens_mask, sequences, strict=True)
    )
    segments = tuple(None if s else segment for s, segment in zip(special, sequences, strict=True))
    spans = tuple(
        None if segment is None else (int(a), int(b))
        for segment, (a, b) in zip(segments, piece.offsets, strict=True)
    )
    return TokenRow(
        ids=tuple(piece.ids),
        attention=(1,) * len(piece.ids),
        token_types=tuple(piece.type_ids) if "token_type_ids" in encoded else None,
        pieces=tuple(str(token) for token in tokenizer.convert_ids_to_tokens(piece.ids)),
        special=special,
        spans=spans,
        segments=segments,
        words=_words(texts, segments, spans, piece.word_ids),
        texts=texts,
        cut=cut,
    )


def encode_windows(
    text: TextInput, tokenizer: Any, *, limit: int, overlap: int
) -> list[tuple[TokenRow, tuple[int, ...]]]:
    """Overlapping windows of a long text, each with the places of its tokens in the whole text.

    Of a pair or question the second part is cut into windows, the first stands in every window.
    """
    texts = _parts(text)
    whole = _row(_encoded(tokenizer, texts, None, text), tokenizer, texts, 0)
    cut_part = len(texts) - 1
    encoded = _encoded(tokenizer, texts, limit, text, overlap)
    groups: dict[int | None, list[int]] = {}
    for place, segment in enumerate(whole.segments):
        groups.setdefault(segment, []).append(place)
    windows, start = [], 0
    for number in range(len(encoded.encodings)):
        row = _row(encoded, tokenizer, texts, 0, number)
        held = sum(segment == cut_part for segment in row.segments)
        begins = {segment: iter(places) for segment, places in groups.items()}
        begins[cut_part] = iter(groups[cut_part][start : start + held])
        places = tuple(next(begins[segment]) for segment in row.segments)
        if any(whole.ids[place] != i for place, i in zip(places, row.ids, strict=True)):
            raise UnsupportedTokenizer(
                f"{type(tokenizer).__name__} cuts its windows where they cannot be laid over the "
                "text; explain the text in parts of your own."
            )
        windows.append((row, places))
        start += held - overlap
    return windows


def _words(
    texts: tuple[str, ...],
    segments: Sequence[int | None],
    spans: Sequence[Span | None],
    word_ids: Sequence[int | None],
) -> tuple[int | None, ...]:
    """Number the words: a new one begins where the segment or the tokenizer's word changes, or
    where the text has white space between two tokens (some tokenizers keep no words of their own).
    """
    numbers: list[int | None] = []
    current, before = -1, None
    for position, (segment, span) in enumerate(zip(segments, spans, strict=True)):
        if segment is None or span is None:
            numbers.append(None)
            before = None
            continue
        text = texts[segment]
        start, end = span
        while start < end and text[start].isspace():
            start += 1
        joined = (
            before is not None
            and segment == before[0]
            and word_ids[position] == before[1]
            and not any(character.isspace() for character in text[before[2] : start])
            and start == span[0]
        )
        if not joined:
            current += 1
        numbers.append(current)
        before = (segment, word_ids[position], end)
    return tuple(numbers)


def explain_masked(row: TokenRow, how: ExplainMask, tokenizer: Any) -> TokenRow:
    """Attention 0 at [CLS] and [SEP] (``cls_sep``) or at [SEP] (``sep``), as the official codes of
    AttCAT and Mask-LRP feed their explanation pass; ids and positions stay."""
    if how == "none":
        return row
    if tokenizer is None or tokenizer.sep_token_id is None:
        raise BadInput(
            f"explain_mask={how!r} needs a tokenizer with a separator token; mask the positions "
            "yourself with Tokens.from_ids(ids, attention_mask)."
        )
    hidden = {tokenizer.sep_token_id} | ({tokenizer.cls_token_id} if how == "cls_sep" else set())
    return row.masked([i in hidden for i in row.ids])
