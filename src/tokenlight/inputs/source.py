"""Rows of a model that writes after a source: what its encoder reads, then what its decoder does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenlight.data.tokenizer import apart
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import ASKED, laid_row, readable
from tokenlight.inputs.prompt import decoded_spans

SOURCE = "source"  # the name of the text an encoder reads among a row's texts


def begun(source: TokenRow, start: Sequence[int], tokenizer: Any) -> TokenRow:
    """The row of a source with the tokens its decoder begins with, which nobody wrote."""
    count = len(start)
    return replace(
        source,
        ids=(*source.ids, *start),
        attention=(*source.attention, *(1,) * count),
        token_types=None,
        pieces=(*source.pieces, *map(str, tokenizer.convert_ids_to_tokens(list(start)))),
        special=(*source.special, *(True,) * count),
        spans=(*source.spans, *(None,) * count),
        segments=(*source.segments, *(None,) * count),
        words=(*source.words, *(None,) * count),
        names=source.names or (SOURCE,) * len(source.texts),
        source=len(source),
    )


def foretold(
    text: str, tokenizer: Any, start: int, limit: int | None
) -> tuple[tuple[int, ...], TokenRow]:
    """What a decoder begins with, and a given text as it would have written it: a row of its own."""
    readable(text)
    encoded = apart(tokenizer)(text_target=text, **ASKED).encodings[0]
    added = list(encoded.special_tokens_mask)
    first = added.index(0) if 0 in added else len(added)
    last = len(added) - (added[::-1].index(0) if 0 in added else 0)
    if first == last:
        raise BadInput(f"the continuation {text!r} has no token of its own; give a word.")
    if limit is not None and last > limit:
        raise TextTooLong(
            f"the continuation has {last} tokens but this model writes at most {limit}; give a shorter "
            "one."
        )
    segments = tuple(None if flag else 0 for flag in added)
    row = laid_row(encoded, (text,), segments, encoded.offsets).take(range(first, last))
    lead = tuple(encoded.ids[:first])
    return (start, *lead), row


def generated(ids: Sequence[int], tokenizer: Any) -> TokenRow:
    """What a decoder wrote by itself, as a row of its own."""
    text, spans, words = decoded_spans((), ids, tokenizer)
    count = len(ids)
    return TokenRow(
        ids=tuple(ids),
        attention=(1,) * count,
        token_types=None,
        pieces=tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids)))),
        special=(False,) * count,
        spans=spans,
        segments=(0,) * count,
        words=words,
        texts=(text,),
    )


def joined(before: TokenRow, written: TokenRow) -> TokenRow:
    """A source and its decoder's beginning, with what was written after them as the last segment."""
    segment = len(before.texts)
    last = max((word for word in before.words if word is not None), default=-1)
    words = (None if word is None else last + 1 + word for word in written.words)
    return replace(
        before,
        ids=before.ids + written.ids,
        attention=before.attention + written.attention,
        pieces=before.pieces + written.pieces,
        special=before.special + written.special,
        spans=before.spans + written.spans,
        segments=(*before.segments, *(None if s is None else segment for s in written.segments)),
        words=(*before.words, *words),
        texts=before.texts + written.texts,
        names=(*before.names, WRITTEN),
    )
