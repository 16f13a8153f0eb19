"""Words to pieces: which piece asks, and which pieces would be the right answer."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenlight.data.tokens import TokenRow
from tokenlight.heads.sentence import ParsedSentence

Align = Literal["offsets", "official"]
_PUNCTUATION = frozenset(string.punctuation)


@dataclass(frozen=True, slots=True)
class Pair:
    """A dependent whose first piece stands at ``query``; ``keys``: the places of its head."""

    relation: str
    query: int
    keys: frozenset[int]


def pairs(
    sentence: ParsedSentence, row: TokenRow, relations: Sequence[str], align: Align
) -> list[Pair]:
    """Dependents of ``relations`` with the pieces of their heads."""
    wanted = frozenset(relations)
    if align == "official":
        return _official(sentence, row, wanted)
    places = [_pieces(word.span, row) for word in sentence.words]
    found = []
    for word, own in zip(sentence.words, places, strict=True):
        if word.relation not in wanted or word.head is None or not own:
            continue
        head = frozenset(places[word.head])
        # Dependent and head in one piece ("don't" as a word of the vocabulary): nothing to look at.
        if head and own[0] not in head:
            found.append(Pair(word.relation, own[0], head))
    return found


def _pieces(span: tuple[int, int], row: TokenRow) -> list[int]:
    """Positions of the pieces that overlap a character span."""
    found = []
    for position, place in enumerate(row.spans):
        if place is None or row.segments[position] != 0:
            continue
        start, end = place
        text = row.texts[0][start:end]
        start += len(text) - len(text.lstrip())  # some tokenizers count the space before a word
        if max(start, span[0]) < min(end, span[1]):
            found.append(position)
    return found


def _official(sentence: ParsedSentence, row: TokenRow, wanted: frozenset[str]) -> list[Pair]:
    """The pairing of the official Mask-LRP code: the t-th kept word with the t-th kept token, strings
    not compared, so that it drifts after a word such as "mr."; a hit is any equal string."""
    assembled = _assembled(row)
    places: dict[str, set[int]] = {}
    for positions, name in assembled:
        places.setdefault(name, set()).update(positions)
    tokens = [entry for entry in assembled[:-1] if len(entry[1]) > 1 and not entry[1].isdigit()]
    words = [word for word in sentence.words if _kept(word.form)]
    found = []
    for word, (positions, _) in zip(words, tokens, strict=False):
        if word.relation in wanted and word.head is not None:
            head = sentence.words[word.head].form.lower()
            found.append(Pair(word.relation, positions[0], frozenset(places.get(head, ()))))
    return found


def _assembled(row: TokenRow) -> list[tuple[list[int], str]]:
    byte_level = any("Ġ" in piece for piece in row.pieces)
    groups: list[tuple[list[int], str]] = []
    for position, piece in enumerate(row.pieces):
        name = "" if row.special[position] or set(piece) <= _PUNCTUATION else piece
        joined = not ("Ġ" in piece or piece[:1].isupper()) if byte_level else piece[:2] == "##"
        follows_word = position > 0 and not row.special[position - 1]
        if not joined or not follows_word or row.special[position]:
            groups.append(([position], name))
        else:
            before = groups.pop()
            groups.append(([*before[0], position], before[1] + name.removeprefix("##")))
    unwritten = str.maketrans("", "", "Ġ" + string.punctuation)
    return [(positions, name.translate(unwritten)) for positions, name in groups]


def _kept(form: str) -> bool:
    digits = form[0].isdigit() and form[-1].isdigit()
    return len(form) > 1 and not digits and not _PUNCTUATION & set(form)
