"""Names of several words: tags such as B-LOC and I-LOC, and the spans of words that they mark."""

import re
from collections.abc import Sequence

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)")  # of IOB, and of BIOES, which others spell BILOU


def parted(tag: str) -> tuple[str, str]:
    """``B-LOC`` as its prefix and its type; a label without a prefix goes on with its like."""
    found = _TAG.fullmatch(tag)
    return (found[1], found[2]) if found else ("I", tag)


def types_of(labels: Sequence[str]) -> dict[str, list[int]]:
    """The labels by their numbers that each type of name has; none where no label has a prefix."""
    found: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        if _TAG.fullmatch(label):
            found.setdefault(parted(label)[1], []).append(number)
    return found


def merged(tags: Sequence[str]) -> list[range]:
    """The words of each name, by the tags of all words in order.

    A name begins at B, S or U, at another type, or behind what is outside, and ends at E, L, S or U.
    """
    found: list[range] = []
    for word, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        prefix, kind = parted(tag)
        last = found[-1] if found and found[-1].stop == word else None
        before = ("", "") if last is None else parted(tags[last[-1]])
        if last is not None and prefix in "IEL" and before[1] == kind and before[0] in "BI":
            found[-1] = range(last.start, word + 1)
        else:
            found.append(range(word, word + 1))
    return found


def type_name(tags: Sequence[str]) -> str:
    """The type that tags have in common; where they differ, the tags themselves."""
    kinds = {parted(tag)[1] for tag in tags}
    return kinds.pop() if len(kinds) == 1 else " ".join(tags)
