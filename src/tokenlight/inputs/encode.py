"""From text to tokens: what a tokenizer makes of a text, a pair or a question, and never a silent cut.

What is too long is cut here and not by the tokenizer, which would cut for every thread that reads with
it; and tokenizers 0.23.1 and 0.23.2 lose what comes after the second window (their issue 2091).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tokenlight.data.tokenizer import apart
from tokenlight.data.tokens import Long, Question, Span, TextInput, TokenRow, Tokens, is_half, named
from tokenlight.errors import BadInput, TextTooLong, UnsupportedTokenizer, long_way
from tokenlight.inputs.accents import carries_on, is_inside_word, with_marks

Encoding = Any  # tokenizers.Encoding: what a fast tokenizer made of one text
ASKED = {"return_attention_mask": False, "verbose": False}  # all else stands in the encodings
SOURCE = "source"  # the name of the text an encoder reads among a row's texts
FULL = "what must stay, special tokens and the first of two parts, fills the window with {}; shorten it."


def encode(
    text: TextInput,
    tokenizer: Any,
    *,
    limit: int | None,
    long: Long = "error",
    whole: Encoding = None,
) -> TokenRow:
    """Tokenise one text, pair or question; never cuts it unless ``long="truncate"`` says so. ``whole``: the
    text as :func:`encoded_together` has read it already."""
    check_tokenizer(tokenizer)
    texts = _parts(text, checked=whole is not None)
    piece = encodings(tokenizer, *texts)[0] if whole is None else whole
    row = laid_row(piece, texts, typed="token_type_ids" in tokenizer.model_input_names)
    if limit is not None and len(piece) > limit:
        if long != "truncate":
            raise TextTooLong(
                f"the text has {len(piece)} tokens but this model reads at most {limit}. Give "
                f"{long_way('truncate')} (explain the first {limit} tokens), {long_way('stride')} "
                "(overlapping windows over the whole text), or a shorter text."
            )
        left, last_only = tokenizer.truncation_side == "left", isinstance(text, Question)
        stay = beginning(piece.sequence_ids, len(texts), limit, last_only=last_only, from_left=left)
        row = replace(row.take(stay), cut=len(row) - len(stay))
    # Which are special is slow to come by: where there are more tokens than a tokenizer adds, none asks.
    if len(row) <= tokenizer.num_special_tokens_to_add(len(texts) > 1) and all(row.special):
        given = f"the text {texts[0][:40]!r}"
        raise BadInput(f"{given} has no token besides the model's special tokens; give a word.")
    return row


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse what cannot tell where its tokens stand in a text."""
    if tokenizer is None:
        give = "Tokens.from_ids(…), or build it with Explainer(model, tokenizer)"
        raise BadInput(f"this Explainer has no tokenizer, so it cannot read text; give {give}.")
    if not getattr(tokenizer, "is_fast", False):
        said = f"{type(tokenizer).__name__} gives no character offsets, by which words are placed"
        raise UnsupportedTokenizer(f"{said}; load the fast one, or explain Tokens.from_ids(…).")


def encoded_together(texts: Sequence[Any], tokenizer: Any) -> list[Encoding]:
    """Each text as the tokenizer reads it, in one call for all: its threads share the work. None for what
    is no plain text or has something wrong: read alone, it says what."""
    found: list[Encoding] = [None] * len(texts)
    if not getattr(tokenizer, "is_fast", False):
        return found
    parts: dict[int, tuple[str, ...]] = {}
    for place, text in enumerate(texts):
        with suppress(BadInput):
            parts[place] = _parts(text)
    for count in {*map(len, parts.values())}:
        group = [place for place, own in parts.items() if len(own) == count]
        columns = zip(*(parts[place] for place in group), strict=True)
        for place, one in zip(group, encodings(tokenizer, *map(list, columns)), strict=True):
            found[place] = one
    return found


def _parts(text: TextInput, *, checked: bool = False) -> tuple[str, ...]:
    parts: Any = (text,) if isinstance(text, str) else text
    if isinstance(text, Question):
        parts = text.question, text.context
    if not isinstance(parts, tuple | list) or len(parts) != 2 - isinstance(text, str):
        raise BadInput(
            f"cannot explain {type(text).__name__} {str(text)[:60]!r}: give a text, a "
            "(text, text) pair, Question(question=…, context=…), Tokens, or a list of these."
        )
    for part in () if checked else parts:
        readable(part)
    return tuple(parts)


def readable(part: Any) -> None:
    """Refuse what is no text, or has nothing to read in it."""
    if not isinstance(part, str):
        raise BadInput(f"expected text, got {type(part).__name__}: {str(part)[:60]!r}.")
    if not part.strip():
        raise BadInput(f"the text {part!r} is empty; give a text with at least one word.")
    if is_half(part):
        said = f"the text {part[:40]!r} holds half of a surrogate pair, which is not a character"
        raise BadInput(f"{said}; decode the bytes again, for example with errors='replace'.")


def encodings(tokenizer: Any, *texts: Any, **how: Any) -> list[Encoding]:
    """What the tokenizer makes of texts, neither cut nor padded."""
    return list(apart(tokenizer)(*texts, **ASKED, **how).encodings)


def laid_row(
    piece: Encoding,
    texts: tuple[str, ...],
    segments: tuple[int | None, ...] | None = None,
    offsets: Sequence[Span] | None = None,
    typed: bool = False,
) -> TokenRow:
    """Each token laid over its segment of ``texts``; without one, special. ``typed``: with segment ids."""
    ids = tuple(piece.ids)

    def places() -> dict[str, Any]:
        """What tokens are, and where each stands in its text, the marks on its letters with it."""
        homes, laid = segments, piece.offsets if offsets is None else offsets
        if homes is None:
            # A token the tokenizer adds itself (say [CLS]) belongs to no segment, whatever its offsets say.
            flags = zip(piece.special_tokens_mask, piece.sequence_ids, strict=True)
            homes = tuple(None if flag else segment for flag, segment in flags)
        spans = [None if home is None else span for home, span in zip(homes, laid, strict=True)]
        for number, text in enumerate(texts):
            if not text.isascii():
                own = [place for place, home in enumerate(homes) if home == number]
                for place, span in zip(own, with_marks(text, [laid[i] for i in own]), strict=True):
                    spans[place] = span
        return {
            "pieces": tuple(piece.tokens),
            "special": tuple(home is None for home in homes),
            "spans": tuple(spans),
            "segments": homes,
            "words": number_words(texts, homes, spans, piece.word_ids),
        }

    types = tuple(piece.type_ids) if typed else None
    return TokenRow.later(
        places, ids=ids, attention=(1,) * len(ids), token_types=types, texts=texts
    )


def encode_windows(
    text: TextInput, tokenizer: Any, *, limit: int, overlap: int
) -> list[tuple[TokenRow, tuple[int, ...]]]:
    """Overlapping windows of a long text, each with the places of its tokens in the whole text. Of a pair or
    question the second part is cut into windows, each of which shares ``overlap`` tokens with the next; the
    first part stands in every window, and so do special tokens."""
    whole = encode(text, tokenizer, limit=None)
    cut = [place for place, part in enumerate(whole.segments) if part == len(whole.texts) - 1]
    others = {*range(len(whole))}.difference(cut)
    room = limit - len(others)
    if room <= overlap:
        said = f"cannot cut this input into windows of {limit} tokens that share {overlap}"
        raise TextTooLong(f"{said}: {FULL.format(len(others))}")
    starts = range(0, max(1, len(cut) - overlap), room - overlap)
    found = (sorted(others.union(cut[start : start + room])) for start in starts)
    return [(whole.take(places), tuple(places)) for places in found]


def beginning(
    parts: Sequence[int | None], texts: int, limit: int, *, last_only: bool, from_left: bool = False
) -> list[int]:
    """Places of the ``limit`` tokens that stay; ``parts``: for each token its text, 0 or 1, None where it is
    special and stays. Of two texts the longer is cut until both are as long, then both, as tokenizers do it
    (``longest_first``); ``last_only`` cuts the second alone. ``from_left``: the ends stay."""
    places = [[i for i, part in enumerate(parts) if part == text] for text in range(texts)]
    lengths = [len(own) for own in places]
    room = limit - (len(parts) - sum(lengths))
    kept = [*lengths[:-1], room - sum(lengths[:-1])]
    if texts > 1 and not last_only:
        short = min(*lengths, room // 2)  # the odd token goes to the longer text, or the second
        kept = [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]
    # A text may have no token at all, such as one of a zero-width space.
    if any(count < min(1, length) for count, length in zip(kept, lengths, strict=True)):
        taken = len(parts) - lengths[-1]
        raise TextTooLong(f"cannot cut this input to {limit} tokens: {FULL.format(taken)}")
    stay = {place for place, part in enumerate(parts) if part is None}
    for own, count in zip(places, kept, strict=True):
        stay.update(own[-count:] if from_left else own[:count])
    return sorted(stay)


def number_words(
    texts: tuple[str, ...],
    segments: Sequence[int | None],
    spans: Sequence[Span | None],
    word_ids: Sequence[int | None],
) -> tuple[int | None, ...]:
    """Number the words: a new one begins where the segment or the tokenizer's word changes, or where the
    text has white space between two tokens; none with an accent, nor right behind one."""
    numbers: list[int | None] = []
    current, before = -1, None
    for segment, span, word in zip(segments, spans, word_ids, strict=True):
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
            and (word == before[1] or (not text.isascii() and is_inside_word(text, start)))
            and start == span[0]
            and not any(map(str.isspace, text[before[2] : start]))
        )
        current += not joined
        numbers.append(current)
        # Some tokenizers put an accent and what is behind it into one word.
        marked = joined and not text.isascii() and carries_on(text, start)
        before = (segment, before[1] if before and marked else word, end)
    return tuple(numbers)


# --- after a source --------------------------------------------------------------------------------


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
