"""A parsed sentence, its sources, CoNLL-U files and spaCy, and which pieces its words are."""

import gzip
import os
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, MissingExtra

# spaCy's English models follow an older scheme than Universal Dependencies.
_SPACY_RELATIONS = {"dobj": "obj"}
_FIELDS = 10
Align = Literal["offsets", "official"]
_PUNCTUATION = frozenset(string.punctuation)


@dataclass(frozen=True, slots=True)
class Word:
    """A word: its form, its characters in the sentence's text, where its head stands (None: it is the
    root), and its relation to it."""

    form: str
    span: tuple[int, int]
    head: int | None
    relation: str


@dataclass(frozen=True, slots=True)
class ParsedSentence:
    """A text and its words in order."""

    text: str
    words: tuple[Word, ...]


def read_conllu(path: str | os.PathLike[str]) -> list[ParsedSentence]:
    """The sentences of a CoNLL-U file, plain or ``.gz`` (universaldependencies.org/format)."""
    place = Path(path)
    troubles = UnicodeDecodeError, OSError, EOFError
    with DamagedFile.telling(f"{place} is not a CoNLL-U file: ", *troubles):
        raw = place.read_bytes()
        text = (gzip.decompress(raw) if place.suffix == ".gz" else raw).decode("utf-8-sig")
    found: list[ParsedSentence] = []
    # Not splitlines: it cuts at characters that words may hold, such as U+2028.
    numbered = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    for written, block in groupby(numbered, key=lambda line: bool(line[1].strip())):
        numbers, lines = zip(*block, strict=True)
        if not written or all(line[0] == "#" for line in lines):
            continue
        where = f"the sentence at line {numbers[0]} of {place}"
        with DamagedFile.telling(f"{where} is garbled: ", ValueError, IndexError):
            found.append(_sentence(lines))
    if not found:
        raise DamagedFile(f"{place} holds no sentence.")
    return found


def _sentence(lines: Sequence[str]) -> ParsedSentence:
    """Words with their character spans, those of a form that is written as one ("don't") inside it
    where they can be seen there (do + n't), else with the rest of it."""
    comments = (line[1:].partition("=") for line in lines if line[0] == "#")
    given = [value.strip() for name, _, value in comments if name.strip() == "text"]
    forms = _forms([line.split("\t") for line in lines if line[0] != "#"])
    text = given[-1] if given else "".join(form + gap for form, gap, _ in forms).strip()
    words: list[Word] = []
    end = 0
    for form, _, parts in forms:
        start = text.find(form, end)
        if start < 0:
            raise ValueError(f"the word {form!r} is not in the text {text[end : end + 40]!r}")
        end = start + len(form)
        for fields in parts:
            seen = text.find(fields[1], start, end)
            span = (start, end) if seen < 0 else (seen, seen + len(fields[1]))
            start = start if seen < 0 else span[1]
            head = int(fields[6]) - 1
            words.append(Word(fields[1], span, head if head >= 0 else None, fields[7]))
    if any(word.head is not None and word.head >= len(words) for word in words):
        raise ValueError("a head points behind the last word")
    return ParsedSentence(text, tuple(words))


def _forms(rows: list[list[str]]) -> list[tuple[str, str, list[list[str]]]]:
    """What is written: each form, the gap behind it, its words. ``1-2`` lines give the form of the
    words they span; ``1.1`` lines are words that were never written."""
    found: list[tuple[str, str, list[list[str]]]] = []
    until = 0
    for fields in rows:
        if len(fields) != _FIELDS:
            raise ValueError(f"a line has {len(fields)} fields, not {_FIELDS} separated by tabs")
        if "." in fields[0]:
            continue
        first, _, last = fields[0].partition("-")
        if last or int(first) > until:
            found.append((fields[1], "" if "SpaceAfter=No" in fields[9] else " ", []))
            until = int(last or first)
        if not last:
            found[-1][2].append(fields)
    return found


PIPELINE = "en_core_web_sm"  # spaCy's small English one; its publisher puts it on no package index


def parse_spacy(texts: Iterable[str], model: Any = PIPELINE) -> list[ParsedSentence]:
    """The sentences of ``texts`` as spaCy parses them; ``model``: a pipeline or its package's name."""
    spacy = MissingExtra.importing("spacy", "parse", "parsing raw text")
    try:
        pipeline = spacy.load(model) if isinstance(model, str) else model
    except OSError as missing:
        get = f"get one from its publisher, for example with: python -m spacy download {PIPELINE}"
        raise BadInput(f"spaCy has no pipeline {model!r}; {get}") from missing
    found = []
    for sentence in (one for document in pipeline.pipe(texts) for one in document.sents):
        kept = [token for token in sentence if not token.is_space]
        places = {token.i: position for position, token in enumerate(kept)}
        words = []
        for token in kept:
            start = token.idx - sentence.start_char
            head = None if token.head.i == token.i else places.get(token.head.i)
            relation = _SPACY_RELATIONS.get(token.dep_, token.dep_)
            words.append(Word(token.text, (start, start + len(token.text)), head, relation))
        found.append(ParsedSentence(sentence.text, tuple(words)))
    return found


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
