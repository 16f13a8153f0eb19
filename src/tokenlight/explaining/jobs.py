"""From what a person gives to what one model reads: rows of tokens, each with the target asked of it."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import stream_logits
from tokenlight.data.target import Continuation, NextToken, ResolvedTarget, TokenTarget
from tokenlight.data.tokens import Question, TokenRow, named, trimmed
from tokenlight.data.units import WRITTEN, segments_of
from tokenlight.errors import (
    BadInput,
    BadTarget,
    TextTooLong,
    TokenlightError,
    UnsupportedModel,
    long_way,
    way,
)
from tokenlight.explaining.options import How, Job
from tokenlight.explaining.session import Session
from tokenlight.explaining.token_labels import labelled, masked
from tokenlight.inputs.encode import Encoding, beginning, begun, encode, encoded_together, foretold
from tokenlight.inputs.picture import Picture, is_picture, opened
from tokenlight.inputs.picture_prompt import PictureReader
from tokenlight.inputs.prompt import Chat, Context, encode_prompt, extended, generated, written_from
from tokenlight.progress import progress as progress_bar

ONE_TEXT = ("next", "mask", "token")


def together(session: Session, texts: Sequence[Any], how: How) -> list[TokenRow | None]:
    """Texts as the model will read them, all by one call of the tokenizer; None for each that has a way of
    its own, or that is refused: read alone, it says why."""
    rows: list[TokenRow | None] = [None] * len(texts)
    reads = session.live.head.reads in ("text", "mask", "token")
    if len(texts) < 2 or not reads or how.long == "stride":
        return rows
    if _read_as_they_stand(session, texts, how):
        return [*texts]
    written = [None if isinstance(text, TokenRow) else text for text in texts]
    for place, whole in enumerate(encoded_together(written, session.tokenizer)):
        if whole is not None or written[place] is None:
            with suppress(TokenlightError):
                rows[place] = read(session, texts[place], how, whole)
    return rows


def _read_as_they_stand(session: Session, texts: Sequence[Any], how: How) -> bool:
    """Whether all are rows of ids that :func:`read` would leave as they are, looked at together: what is
    wrong with one of them, it says when it is read alone."""
    limit, unnamed = session.max_tokens or 1 << 62, session.tokenizer is None
    if session.live.ends or how.explain_mask != "none":
        return False
    for row in texts:
        if not isinstance(row, TokenRow) or not row.all_seen or row.token_types is not None:
            return False
        if not 0 < len(row.ids) <= limit or not (unnamed or row.texts):
            return False
    with suppress(BadInput, struct.error):
        ids = np.concatenate([row.array for row in texts])
        session.live.check_ids(ids.min(), ids.max())
        return True
    return False


def jobs(
    session: Session, text: Any, target: Any, how: How, row: TokenRow | None = None
) -> list[Job]:
    """The rows that answer one question about one text, each with its target: mostly one; a continuation has
    a row for each of its tokens, a text labelled token by token one for each word when all are asked for.
    ``row``: the text as :func:`together` has it."""
    check_target(session, target)
    if isinstance(target, Continuation):
        return _continued(session, text, target, how)
    row = read(session, text, how) if row is None else row
    match session.live.head.reads:
        case "mask":
            return [masked(session, row, target)]
        case "token":
            return labelled(session, row, target)
    return [(row, target)]


def check_target(session: Session, target: Any) -> None:
    """Refuse a kind of target that this model has for no text."""
    head, name = session.live.head, name_of(session)
    if isinstance(target, Continuation):
        if head.reads != "next":
            raise BadTarget(f"{name} does not write on: {head.does}.")
        tokens = target.tokens
        if target.text is None and (type(tokens) is not int or tokens < 1):
            asked = way(f"Continuation(tokens={tokens!r})", f"--generate {tokens}")
            raise BadTarget(f"{asked} writes nothing; give 1 or more.")
    elif isinstance(target, TokenTarget) and head.reads not in ("mask", "token"):
        asked = way(repr(target), f"--token {target.at}")
        raise BadTarget(f"{asked} asks for one token's label, but {name} gives none: {head.does}.")
    elif head.reads == "pair" and target not in ("predicted", "all", 0, head.labels[0]):
        raise BadTarget(f"target {target!r} is none: {head.does}, by the {head.labels[0]}.")


def read(session: Session, text: Any, how: How, whole: Encoding = None) -> TokenRow:
    """One text as the model will read it in the explanation pass; ``whole``: as :func:`together` has it."""
    if session.live.patches is not None:
        return _pictured(session, text, how)
    if isinstance(text, TokenRow):
        row = _read_ids(session, text, how)
    elif session.live.sight is not None:
        row = _sighted(session, text, how)
    else:
        check_kind(session, text)
        if session.live.writes_from_source:
            # A decoder begins with its start token, and a first one its generation config forces.
            model = session.live.model
            forced = getattr(model.generation_config, "forced_bos_token_id", None)
            start = (model.config.decoder_start_token_id, *([] if forced is None else [forced]))
            row = begun(_source(session, text, how), start, session.tokenizer)
        elif session.live.head.reads == "next":
            row = encode_prompt(text, session.tokenizer, limit=session.max_tokens, long=how.long)
        else:
            limit = session.max_tokens
            row = encode(text, session.tokenizer, limit=limit, long=how.long, whole=whole)
    return session.prepared(row, how)


def name_of(session: Session) -> str:
    """The class of the model, which messages name."""
    return type(session.live.model).__name__


def check_kind(session: Session, text: object) -> None:
    """Refuse what this model does not read, and say what it does."""
    head, name = session.live.head, name_of(session)
    if isinstance(text, str) and head.reads == "text" and head.kind != "span":
        return  # as most are, of many texts
    if isinstance(text, str | tuple) and head.kind == "span":
        give = way("Question(question=…, context=…)", "--question and --context")
        raise BadInput(f"{name} answers questions about a context; give {give}.")
    lone, on = "has no head, so a text alone has no output to explain", head.reads == "next"
    for wrong, why in (
        (is_picture(text), "does not read images"),
        (isinstance(text, Question) and head.kind != "span", "does not answer questions"),
        (isinstance(text, Chat) and not on, "does not take chats"),
        (isinstance(text, Context) and not on, "writes nothing from documents"),
        (isinstance(text, tuple) and head.reads in ONE_TEXT, "reads one text, not a pair"),
        (isinstance(text, str) and head.reads == "pair", lone),
    ):
        if wrong:
            raise UnsupportedModel(f"{name} {why}: {head.does}.")


def _read_ids(session: Session, given: TokenRow, how: How) -> TokenRow:
    """A row of ids given instead of a text: padding dropped, ids checked, cut to fit."""
    if session.live.writes_from_source and given.source is None:
        why = "reads a source, and a row of ids does not say where it ends; give the text"
        raise BadInput(f"{name_of(session)} {why}.")
    if session.live.sight is not None:
        return session.live.sight.checked(given)
    row = trimmed(given, session.pad_id)
    session.live.check_ids(min(row.ids), max(row.ids))
    types, count = row.token_types or (0,), session.token_types
    if count is not None and not 0 <= min(types) <= max(types) < count:
        given_as = f"token_type_ids run from {min(types)} to {max(types)}"
        raise BadInput(f"{given_as}, but this model knows 0 to {count - 1}.")
    return _fitting(session, named(row, session.tokenizer), how)


def _fitting(session: Session, row: TokenRow, how: How) -> TokenRow:
    """The row, cut where asked for: special tokens stay, and each part's beginning; of a prompt the end."""
    limit, head = session.max_tokens, session.live.head
    if limit is None or len(row) <= limit:
        return row
    if session.tokenizer is None or how.long != "truncate":
        raise TextTooLong(
            f"the row has {len(row)} tokens but this model reads at most {limit}. Give fewer ids, the text "
            f"itself with {long_way('stride')}, or, with a tokenizer, {long_way('truncate')}."
        )
    parts: Sequence[int | None] = segments_of(row)
    texts = 1 + max((part for part in parts if part is not None), default=0)
    if head.reads == "next" or texts > 2:
        parts, texts = [None if special else 0 for special in row.special], 1
    left = head.reads == "next" or session.tokenizer.truncation_side == "left"
    stay = beginning(parts, texts, limit, last_only=head.kind == "span", from_left=left)
    return replace(row.take(stay), cut=len(row) - len(stay))


def _pictured(session: Session, given: Any, how: How) -> TokenRow:
    patches, does = session.live.patches, session.live.head.does
    assert patches is not None
    image = given.image if isinstance(given, TokenRow) else None
    texts = isinstance(given, str | tuple | Question | Chat | Context)
    if texts or getattr(given, "text", None) or (isinstance(given, TokenRow) and image is None):
        raise UnsupportedModel(f"{name_of(session)} does not read text: {does}.")
    if how.explain_mask != "none":
        given = way(f"explain_mask={how.explain_mask!r}", f"--explain-mask {how.explain_mask}")
        raise BadInput(f"{given} hides separators of a text; a picture has none. Leave it out.")
    if image is None:
        return patches.read(opened(given, session.tokenizer, patches.patch))
    if image.patch != patches.patch or len(given) != len(patches.read(image)):
        there, here = ("{1} × {0}".format(*one) for one in (image.patch, patches.patch))
        given_as = f"the picture was cut into patches of {there} for another model"
        raise BadInput(f"{given_as}; this one cuts {here}. Explain the picture itself.")
    return given  # type: ignore[no-any-return]  # a row


def _sighted(session: Session, given: Any, how: How, continuation: str | None = None) -> TokenRow:
    sight = session.live.sight
    assert sight is not None
    if how.explain_mask != "none" or how.token_types == "zeros" or how.long == "stride":
        raise BadInput("explain_mask, token_types and long='stride' are of texts; leave them out.")
    if not is_picture(given):
        give = way("Picture('cat.png', text='What is this?')", "--image FILE beside the text")
        raise BadInput(f"{name_of(session)} reads a picture with a text; give {give}.")
    picture = given if isinstance(given, Picture) else Picture(given)
    processor = picture.processor or session.processor
    reader = PictureReader(session.tokenizer, processor, sight.token, sight.grid)
    # The last token of a continuation is never read, only foretold.
    limit = None if session.max_tokens is None else session.max_tokens + (continuation is not None)
    return sight.typed(reader.row(picture, limit, continuation))


def _continued(session: Session, text: Any, target: Continuation, how: How) -> list[Job]:
    """Teacher forcing: for each token of the continuation, the row before it and that token; all of
    them together in one row, whose last tokens foretell them."""
    if isinstance(text, TokenRow):
        raise BadInput("a Continuation goes with a prompt or a Chat, not with Tokens.")
    if session.live.sight is None:
        check_kind(session, text)
    if session.live.writes_from_source:
        whole = _after_source(session, text, target, how)
    elif target.text is None:
        whole = _written_on(session, read(session, text, how), target.tokens)
    elif session.live.sight is not None:
        whole = _sighted(session, text, how, target.text)
    else:
        # The last token is never read, only foretold: one more than the model reads may stand there.
        limit = None if session.max_tokens is None else session.max_tokens + 1
        whole = encode_prompt(
            text, session.tokenizer, limit=limit, continuation=target.text, long=how.long
        )
    first = written_from(whole)
    asked_for = _spanned(whole, target.span) if target.span else [*range(first, len(whole))]
    if not target.together:
        return [
            (session.prepared(whole.take(range(place)), how), NextToken(whole.ids[place]))
            for place in asked_for
        ]
    row = replace(whole.take(range(len(whole) - 1)), answer=whole.ids[first:])
    terms = tuple(((place - first, 0), 1.0) for place in asked_for)
    name = f"‘{(target.span or whole.texts[-1]).strip()}’"
    return [(session.prepared(row, how), ResolvedTarget("answer", name, terms))]


def _spanned(whole: TokenRow, words: str) -> list[int]:
    """The places of the written tokens that reach into ``words``."""
    text, last = whole.texts[-1], len(whole.texts) - 1
    if (times := text.count(words)) != 1:
        where = f"{times} times in what was written ({text!r})"
        raise BadTarget(f"the span {words!r} occurs {where}; give one.")
    begin = text.index(words)
    spans = zip(whole.segments, whole.spans, strict=True)
    return [
        place
        for place, (segment, span) in enumerate(spans)
        if segment == last and span and span[0] < begin + len(words) and span[1] > begin
    ]


def _written_on(session: Session, row: TokenRow, tokens: int) -> TokenRow:
    """The prompt and what the model writes after it, the likeliest token each time, until its end."""
    model = session.live.model
    ends = getattr(model, "generation_config", None) or model.config
    stops = ends.eos_token_id if isinstance(ends.eos_token_id, list) else [ends.eos_token_id]
    written: list[int] = []
    kind = 0 if session.live.sight is None else session.live.sight.written
    room = (session.max_tokens or len(row) + tokens) - len(row) + 1
    with progress_bar("writing", min(tokens, room), None) as advance:
        for _ in range(min(tokens, room)):
            types, ones = row.token_types, (1,) * len(written)
            types = None if types is None else types + (kind,) * len(written)
            ids = (*row.ids, *written)
            given = replace(row, ids=ids, attention=row.attention + ones, token_types=types)
            (logits,) = stream_logits(session.live, [given])
            best = int(np.argmax(logits))
            if best in stops:
                break
            written.append(best)
            advance(1)
    if not written:
        give = way("Continuation('…') or explain 'predicted'", "--continue TEXT or no --generate")
        why = "its likeliest next token ends the text"
        raise BadInput(f"{name_of(session)} writes nothing after this prompt: {why}. Give {give}.")
    return extended(row, written, session.tokenizer, kind)


def _source(session: Session, text: Any, how: How) -> TokenRow:
    limit = session.max_tokens
    if isinstance(text, Context):
        return encode_prompt(text, session.tokenizer, limit=limit, long=how.long, ends=True)
    return encode(text, session.tokenizer, limit=limit, long=how.long)


def _after_source(session: Session, text: Any, target: Continuation, how: How) -> TokenRow:
    """The source and a text written after it: the one given, or the model's, by its generation config."""
    source, tokenizer = _source(session, text, how), session.tokenizer
    if target.text is not None:
        start = session.live.model.config.decoder_start_token_id
        lead, written = foretold(target.text, tokenizer, start, session.max_tokens)
    else:
        ids = session.live.generate(source, target.tokens)
        special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        first = next((i for i, own in enumerate(ids) if own not in special), len(ids))
        stop = next((i for i in range(first, len(ids)) if ids[i] in special), len(ids))
        if first == stop:
            raise BadInput(f"{name_of(session)} writes nothing after this source.")
        lead, written = tuple(ids[:first]), generated(ids[first:stop], tokenizer)
    before = begun(source, lead, tokenizer)
    return before.joined(written, names=(*before.names, WRITTEN))
