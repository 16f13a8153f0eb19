"""Which tokens of an input that is too long stay: its beginning, or windows over all of it.

Cut here and not by the tokenizer, which would cut for every thread that reads with it; and tokenizers
0.23.1 and 0.23.2 lose what comes after the second window (huggingface/tokenizers issue 2091).
"""

from collections.abc import Sequence

from tokenlight.errors import TextTooLong

FULL = "what must stay, special tokens and the first of two parts, fills the window with {}; shorten it."
Parts = Sequence[int | None]  # for each token the text it stands in, 0 or 1; None: special


def beginning(
    parts: Parts, texts: int, limit: int, *, last_only: bool, from_left: bool = False
) -> list[int]:
    """Places of the ``limit`` tokens that stay, special ones among them.

    Of two texts the longer is cut until both are as long, then both, as tokenizers do it
    (``longest_first``); ``last_only`` cuts the second alone. ``from_left``: the ends stay.
    """
    places = _places(parts, texts)
    lengths = [len(own) for own in places]
    room = limit - (len(parts) - sum(lengths))
    kept = [*lengths[:-1], room - sum(lengths[:-1])]
    if texts > 1 and not last_only:
        kept = _shared(lengths, room)
    # A text may have no token at all, such as one of a zero-width space.
    if any(count < min(1, length) for count, length in zip(kept, lengths, strict=True)):
        taken = len(parts) - lengths[-1]
        raise TextTooLong(f"cannot cut this input to {limit} tokens: {FULL.format(taken)}")
    stay = {place for place, part in enumerate(parts) if part is None}
    for own, count in zip(places, kept, strict=True):
        stay.update(own[-count:] if from_left else own[:count])
    return sorted(stay)


def windows(parts: Parts, texts: int, limit: int, overlap: int) -> list[list[int]]:
    """Places of the tokens of each window of at most ``limit``. The last text is cut into windows of
    which each shares ``overlap`` tokens with the next; all else stands in every window."""
    cut = _places(parts, texts)[-1]
    others = set(range(len(parts))).difference(cut)
    room = limit - len(others)
    if room <= overlap:
        raise TextTooLong(
            f"cannot cut this input into windows of {limit} tokens that share {overlap}: "
            f"{FULL.format(len(others))}"
        )
    return [
        sorted(others.union(cut[start : start + room]))
        for start in range(0, max(1, len(cut) - overlap), room - overlap)
    ]


def _places(parts: Parts, texts: int) -> list[list[int]]:
    return [[place for place, part in enumerate(parts) if part == text] for text in range(texts)]


def _shared(lengths: list[int], room: int) -> list[int]:
    """How many tokens of each of two texts stay; the odd one goes to the longer, or the second."""
    short = min(*lengths, room // 2)
    first_is_short = lengths[0] <= lengths[1]
    return [short, room - short] if first_is_short else [room - short, short]
