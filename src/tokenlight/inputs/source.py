"""Rows of a model that writes after a source: what its encoder reads, then what its decoder does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenlight.data.tokens import TokenRow, Tokens, named
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import encodings, laid_row, readable

SOURCE = "source"  # the name of the text an encoder reads among a row's texts


def begun(source: TokenRow, start: Sequence[int], tokenizer: Any) -> TokenRow:
    """The row of a source with the tokens its decoder begins with, which nobody wrote."""
    lead, count = named(Tokens.from_ids([start]).rows[0], tokenizer), len(start)
    return source.joined(
        replace(lead, special=(True,) * count, words=(None,) * count),
        token_types=None,
        names=source.names or (SOURCE,) * len(source.texts),
        source=len(source),
    )


def foretold(
    text: str, tokenizer: Any, start: int, limit: int | None
) -> tuple[tuple[int, ...], TokenRow]:
    """What a decoder begins with, and a given text as it would have written it: a row of its own."""
    readable(text)
    encoded = encodings(tokenizer, text_target=text)[0]
    own = [place for place, added in enumerate(encoded.special_tokens_mask) if not added]
    if not own:
        raise BadInput(f"the continuation {text!r} has no token of its own; give a word.")
    first, last = own[0], own[-1] + 1
    if limit is not None and last > limit:
        said = f"the continuation has {last} tokens but this model writes at most {limit}"
        raise TextTooLong(f"{said}; give a shorter one.")
    row = laid_row(encoded, (text,)).take(range(first, last))
    return (start, *encoded.ids[:first]), row
