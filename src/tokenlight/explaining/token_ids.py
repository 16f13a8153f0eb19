"""Rows of token ids that a person gives instead of a text: padding dropped, ids checked, cut to fit."""

from collections.abc import Sequence
from dataclasses import replace

from tokenlight.data.tokens import TokenRow, named, trimmed
from tokenlight.data.units import segments_of
from tokenlight.errors import BadInput, TextTooLong, long_way
from tokenlight.explaining.options import How
from tokenlight.explaining.session import Session
from tokenlight.inputs.truncation import beginning


def read_ids(session: Session, given: TokenRow, how: How) -> TokenRow:
    """One row as the model will read it."""
    if session.live.writes_from_source and given.source is None:
        raise BadInput(
            f"{type(session.live.model).__name__} reads a source and writes after it, and a row of ids "
            "does not say where the one ends; give the text."
        )
    if session.live.sight is not None:
        return session.live.sight.checked(given)
    row = trimmed(given, session.pad_id)
    session.live.check_ids(min(row.ids), max(row.ids))
    types, count = row.token_types or (0,), session.token_types
    if count is not None and not 0 <= min(types) <= max(types) < count:
        raise BadInput(
            f"token_type_ids run from {min(types)} to {max(types)}, but this model knows 0 to "
            f"{count - 1}."
        )
    return _fitting(session, named(row, session.tokenizer), how)


def _fitting(session: Session, row: TokenRow, how: How) -> TokenRow:
    """The row, cut to what the model reads where that is asked for: special tokens stay, and the
    beginning of each part; of a prompt, as ever, the end."""
    limit, head = session.max_tokens, session.live.head
    if limit is None or len(row) <= limit:
        return row
    said = f"the row has {len(row)} tokens but this model reads at most {limit}."
    if session.tokenizer is None:
        raise TextTooLong(
            f"{said} Give fewer ids: without a tokenizer it is not known which of them are special "
            "and have to stay."
        )
    if how.long != "truncate":
        windows = "" if how.long == "error" else " Windows are made of texts, not of ids."
        raise TextTooLong(
            f"{said}{windows} Give {long_way('truncate')} (explain {limit} of the tokens, special ones "
            f"among them; what is cut is recorded), the text itself with {long_way('stride')}, or fewer "
            "ids."
        )
    parts: Sequence[int | None] = segments_of(row)
    texts = 1 + max((part for part in parts if part is not None), default=0)
    if head.reads == "next" or texts > 2:
        parts, texts = [None if special else 0 for special in row.special], 1
    stay = beginning(
        parts,
        texts,
        limit,
        last_only=head.kind == "span",
        from_left=head.reads == "next" or session.tokenizer.truncation_side == "left",
    )
    return replace(row.take(stay), cut=len(row) - len(stay))
