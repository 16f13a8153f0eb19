"""Parsed sentences from CoNLL-U files and spaCy, and the tokens that their words are made of."""

import gzip
import os
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, MissingExtra

# spaCy's English models follow an older scheme than Universal Dependencies.
_SPACY_RELATIONS = {"dobj": "obj"}
# spaCy's small English pipeline; it is not on PyPI.
SPACY_PIPELINE = "en_core_web_sm"
_PUNCTUATION = frozenset(string.punctuation)
Alignment = Literal["offsets", "official"]

# Columns of a CoNLL-U file.
_NUM_FIELDS = 10
_ID = 0
_FORM = 1
_HEAD = 6
_DEPREL = 7
_MISC = 9


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a parsed sentence.

    Attributes:
        form: The word as it is written.
        span: Its characters in the text of the sentence.
        head: The index of its syntactic head; None for the root.
        relation: Its relation to the head, such as ``nsubj``.
    """

    form: str
    span: tuple[int, int]
    head: int | None
    relation: str


@dataclass(frozen=True, slots=True)
class ParsedSentence:
    """A text and its words in order."""

    text: str
    words: tuple[Word, ...]


@dataclass(slots=True)
class _WrittenForm:
    """A contraction such as "don't", and the CoNLL-U lines of its words."""

    form: str
    gap: str  # the white space after it
    word_fields: list[list[str]] = field(default_factory=list)


def read_conllu(path: str | os.PathLike[str]) -> list[ParsedSentence]:
    """Read the sentences of a CoNLL-U file, plain or ``.gz`` (universaldependencies.org/format).

    Raises:
        DamagedFile: The file cannot be read, a sentence is malformed, or there is none.
    """
    path = Path(path)
    text = _read_text(path)
    sentences: list[ParsedSentence] = []
    # Not splitlines(), which also splits at characters that words may hold, such as U+2028.
    numbered_lines = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    for is_written, block in groupby(numbered_lines, key=lambda line: bool(line[1].strip())):
        numbers, lines = zip(*block, strict=True)
        # Blank lines separate sentences; a block of only comments is not one.
        if not is_written or all(line[0] == "#" for line in lines):
            continue
        try:
            sentences.append(_parse_sentence(lines))
        except (ValueError, IndexError) as error:
            raise DamagedFile(
                f"The sentence at line {numbers[0]} of {path} is malformed: {error}.",
                code="conllu-sentence-malformed",
            ) from error
    if not sentences:
        raise DamagedFile(
            f"{path} contains no sentence. Give another file.", code="conllu-no-sentence"
        )
    return sentences


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (UnicodeDecodeError, OSError, EOFError) as error:
        raise DamagedFile(
            f"{path} is not a CoNLL-U file: {error}.", code="conllu-unreadable"
        ) from error


def _parse_sentence(lines: Sequence[str]) -> ParsedSentence:
    """Parse the lines of one sentence.

    Words of a form that is written as one ("don't") get their own characters where these can be found in
    it (do + n't), else the rest of the form.
    """
    forms = _group_forms([line.split("\t") for line in lines if line[0] != "#"])
    text = _find_text_comment(lines)
    if text is None:
        text = "".join(form.form + form.gap for form in forms).strip()
    words: list[Word] = []
    end = 0
    for written_form in forms:
        start = text.find(written_form.form, end)
        if start < 0:
            raise ValueError(
                f"the word {written_form.form!r} is not in the text {text[end : end + 40]!r}"
            )
        end = start + len(written_form.form)
        words += _parse_words(written_form, text, start, end)
    for word in words:
        if word.head is not None and word.head >= len(words):
            raise ValueError("a head points beyond the last word")
    return ParsedSentence(text, tuple(words))


def _parse_words(written_form: _WrittenForm, text: str, start: int, end: int) -> list[Word]:
    """Parse the words of a form that stands at ``text[start:end]``."""
    words = []
    for fields in written_form.word_fields:
        form = fields[_FORM]
        span = (start, end)
        word_start = text.find(form, start, end)
        if word_start >= 0:
            span = (word_start, word_start + len(form))
            start = span[1]
        head = int(fields[_HEAD]) - 1  # The file counts from 1; 0 is the root.
        words.append(
            Word(form=form, span=span, head=head if head >= 0 else None, relation=fields[_DEPREL])
        )
    return words


def _find_text_comment(lines: Sequence[str]) -> str | None:
    """Return the text of the sentence from its comment ``# text = …``; None if there is none."""
    text = None
    for line in lines:
        if line[0] == "#":
            name, _, value = line[1:].partition("=")
            if name.strip() == "text":
                text = value.strip()
    return text


def _group_forms(rows: list[list[str]]) -> list[_WrittenForm]:
    """Group the lines of a sentence by what is written as one.

    A line ``1-2`` gives the form of the words 1 and 2; a line ``1.1`` is a word that was never written.
    """
    forms: list[_WrittenForm] = []
    last_number = 0
    for fields in rows:
        if len(fields) != _NUM_FIELDS:
            raise ValueError(
                f"a line has {len(fields)} fields, not {_NUM_FIELDS} separated by tabs"
            )
        if "." in fields[_ID]:
            continue
        first, _, last = fields[_ID].partition("-")
        # A new form begins, unless this word lies within the range of the last one.
        if last or int(first) > last_number:
            gap = "" if "SpaceAfter=No" in fields[_MISC] else " "
            forms.append(_WrittenForm(fields[_FORM], gap))
            last_number = int(last or first)
        if not last:
            forms[-1].word_fields.append(fields)
    return forms


def parse_spacy(texts: Iterable[str], model: Any = SPACY_PIPELINE) -> list[ParsedSentence]:
    """Parse texts into sentences with spaCy.

    Args:
        texts: The texts.
        model: A pipeline of spaCy, or the name of its package.

    Raises:
        MissingExtra: spaCy is not installed.
        BadInput: The pipeline is not installed.
    """
    spacy = MissingExtra.import_or_raise("spacy", "parse", "parsing raw text")
    pipeline = model
    if isinstance(model, str):
        try:
            pipeline = spacy.load(model)
        except OSError as error:
            raise BadInput(
                f"spaCy has no pipeline {model!r}. Get one from its publisher, for example with: python -m "
                f"spacy download {SPACY_PIPELINE}",
                code="spacy-pipeline-missing",
            ) from error
    sentences = []
    for document in pipeline.pipe(texts):
        for sentence in document.sents:
            sentences.append(_convert_spacy_sentence(sentence))
    return sentences


def _convert_spacy_sentence(sentence: Any) -> ParsedSentence:
    tokens = [token for token in sentence if not token.is_space]
    # Index in the document → index in the sentence, without white space.
    indices = {token.i: index for index, token in enumerate(tokens)}
    words = []
    for token in tokens:
        start = token.idx - sentence.start_char
        is_root = token.head.i == token.i
        head = None if is_root else indices.get(token.head.i)
        relation = _SPACY_RELATIONS.get(token.dep_, token.dep_)
        words.append(
            Word(
                form=token.text, span=(start, start + len(token.text)), head=head, relation=relation
            )
        )
    return ParsedSentence(sentence.text, tuple(words))


@dataclass(frozen=True, slots=True)
class DependencyPair:
    """A dependent and its syntactic head, as positions in a row of tokens.

    Attributes:
        relation: The relation of the dependent to its head.
        dependent_position: The position of the dependent's first token.
        head_positions: The positions of the head's tokens.
    """

    relation: str
    dependent_position: int
    head_positions: frozenset[int]


def find_pairs(
    sentence: ParsedSentence, row: TokenRow, relations: Sequence[str], align: Alignment
) -> list[DependencyPair]:
    """Find the dependents of some relations, with the tokens of their heads.

    Args:
        sentence: A parsed sentence.
        row: The tokens of its text.
        relations: The relations to find.
        align: ``"offsets"`` finds words by their characters; ``"official"`` as the official Mask-LRP code.
    """
    if align == "official":
        return _find_pairs_official(sentence, row, frozenset(relations))
    positions_by_word = [_find_overlapping_positions(word.span, row) for word in sentence.words]
    pairs = []
    for word, positions in zip(sentence.words, positions_by_word, strict=True):
        if word.relation not in relations or word.head is None or not positions:
            continue
        head_positions = frozenset(positions_by_word[word.head])
        # Dependent and head may share a token ("don't"): then there is nothing to attend to.
        if head_positions and positions[0] not in head_positions:
            pairs.append(DependencyPair(word.relation, positions[0], head_positions))
    return pairs


def _find_overlapping_positions(span: tuple[int, int], row: TokenRow) -> list[int]:
    """Return the positions of the tokens that overlap a character span."""
    positions = []
    for position, token_span in enumerate(row.spans):
        if token_span is None or row.segments[position] != 0:
            continue
        start, end = token_span
        surface = row.texts[0][start:end]
        # Some tokenizers count the space before a word.
        start += len(surface) - len(surface.lstrip())
        if max(start, span[0]) < min(end, span[1]):
            positions.append(position)
    return positions


def _find_pairs_official(
    sentence: ParsedSentence, row: TokenRow, relations: frozenset[str]
) -> list[DependencyPair]:
    """Pair words and tokens as the official Mask-LRP code does.

    It takes the t-th counted word for the t-th counted token without comparing them, so that it drifts
    after a word such as "mr."; every token with the head's string is a hit.
    """
    merged_tokens = _merge_pieces(row)
    # The official code compares strings, so equal words share their positions.
    positions_by_form: dict[str, set[int]] = {}
    for positions, form in merged_tokens:
        positions_by_form.setdefault(form, set()).update(positions)
    # The official code skips the last token, single characters and numbers.
    counted_tokens = []
    for positions, form in merged_tokens[:-1]:
        if len(form) > 1 and not form.isdigit():
            counted_tokens.append(positions)
    counted_words = [word for word in sentence.words if _is_counted_form(word.form)]
    pairs = []
    for word, positions in zip(counted_words, counted_tokens, strict=False):
        if word.relation not in relations or word.head is None:
            continue
        head_form = sentence.words[word.head].form.lower()
        head_positions = frozenset(positions_by_form.get(head_form, ()))
        pairs.append(DependencyPair(word.relation, positions[0], head_positions))
    return pairs


def _merge_pieces(row: TokenRow) -> list[tuple[list[int], str]]:
    """Merge the pieces of each word: positions and form, which is empty for punctuation."""
    is_byte_level = any("Ġ" in piece for piece in row.pieces)
    merged: list[tuple[list[int], str]] = []
    is_after_special = True
    for position, piece in enumerate(row.pieces):
        is_special = row.special_tokens_mask[position]
        form = "" if is_special or set(piece) <= _PUNCTUATION else piece
        if is_special or is_after_special or _starts_word(piece, is_byte_level=is_byte_level):
            merged.append(([position], form))
        else:
            positions, word_form = merged.pop()
            merged.append(([*positions, position], word_form + form.removeprefix("##")))
        is_after_special = is_special
    deleted_characters = str.maketrans("", "", "Ġ" + string.punctuation)
    return [(positions, form.translate(deleted_characters)) for positions, form in merged]


def _starts_word(piece: str, *, is_byte_level: bool) -> bool:
    """Return whether a piece begins a word, as the official code decides."""
    if is_byte_level:
        return "Ġ" in piece or piece[:1].isupper()
    return piece[:2] != "##"


def _is_counted_form(form: str) -> bool:
    """Return whether the official code counts a word: more than a character, no number, no punctuation."""
    is_number = form[0].isdigit() and form[-1].isdigit()
    return len(form) > 1 and not is_number and not _PUNCTUATION & set(form)
