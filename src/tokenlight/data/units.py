"""Units of a row of tokens: segments, documents, sentences, words and tokens, and their scores.

A sentence ends at ``.``, ``!``, ``?`` or ``…`` before white space, at the corresponding marks of other
scripts, and at an empty line. A full stop after an abbreviation or an initial, or before a lower-case letter,
does not end it; one that is preceded by white space, as in texts already split into tokens, does. Tags such
as B-LOC and I-LOC mark names of several words.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnknownName

Unit = Literal["token", "word", "sentence", "document", "role"]
# Names of segments, as they appear in results and files.
QUESTION_SEGMENT = "question"  # the question about documents
CONTINUATION_SEGMENT = "written"  # what the model wrote
THINKING_SEGMENT = "thinking"  # the text between <think> and </think>
TOOL_CALL_SEGMENT = "tool call"  # an assistant's call of a tool
SPECIAL_SEGMENT = "special"  # all special tokens together

_SENTENCE_END = re.compile(
    r"""(?P<stop>[.!?…]+)["'”’»)\]]*(?=\s|$)   # an ordinary stop needs white space after it
      |[。！？｡؟।॥።]+["'”’»」』）]*               # these need none
      |\n[^\S\n]*\n""",
    re.VERBOSE,
)
OUTSIDE_TAG = "O"
_TAG_PATTERN = re.compile(r"([BIESLU])-(.+)")  # IOB, and BIOES, which others spell BILOU
_ABBREVIATION_PATTERN = re.compile(
    r"mrs?|ms|dr|prof|st|[js]r|vs|etc|e\.g|i\.e|cf|inc|ltd|co|corp|fig|vol|pp|al|gen|col|sgt|capt|rep|"
    r"sen|gov|u\.[sk]|[ap]\.m|jan|feb|apr|aug|sept?|oct|nov|dec|[^\W\d_]"
)


@dataclass(frozen=True, slots=True)
class SegmentShare:
    """The scores of one segment of the input.

    Args:
        name: Name of the segment.
        segment: 0 the text or question, 1 its pair; None for all special tokens together.
        share: Its share of Σ|score|.
        total: The signed sum of its scores.
    """

    name: str
    segment: int | None
    share: float
    total: float


@dataclass(frozen=True, slots=True)
class UnitScore:
    """The score of one unit.

    Args:
        name: Name of a document or role; the text of any other unit.
        text: The text of the unit.
        segment: Index into the row's texts.
        positions: Its tokens.
        share: Its share of Σ|score|.
        total: The signed sum of its scores.
        low: Lower end of a 95 % interval of the sum, if the method measured this unit by sampling.
        high: Upper end of that interval.
    """

    name: str
    text: str
    segment: int | None
    positions: tuple[int, ...]
    share: float
    total: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence with the sum of its tokens' scores.

    Args:
        segment: Index into the row's texts.
        start: First character in ``texts[segment]``.
        end: Character after the last one.
        text: The sentence.
        positions: Its tokens.
        score: The signed sum of its scores.
    """

    segment: int
    start: int
    end: int
    text: str
    positions: tuple[int, ...]
    score: float


def find_segments(row: TokenRow) -> tuple[int | None, ...]:
    """Return the segment of every token; a row made from ids has only its token types to tell."""
    token_types = row.token_type_ids or (0,) * len(row)
    segments: list[int | None] = []
    for position, segment in enumerate(row.segments):
        # Only rows of ids have regular tokens without a segment.
        if segment is None and not row.special_tokens_mask[position]:
            segments.append(token_types[position])
        else:
            segments.append(segment)
    return tuple(segments)


def compute_share_and_sum(scores: np.ndarray, total_magnitude: float) -> tuple[float, float]:
    """Return the share of some tokens' scores in ``total_magnitude``, which is Σ|score|, and their sum."""
    return float(np.abs(scores).sum()) / total_magnitude, float(scores.sum())


def find_sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the (first, after the last) character of every sentence, without surrounding white space."""
    boundaries = [0]
    for match in _SENTENCE_END.finditer(text):
        if _is_sentence_end(text, boundaries[-1], match):
            boundaries.append(match.end())
    boundaries.append(len(text))
    spans = []
    for start, end in pairwise(boundaries):
        sentence = text[start:end]
        stripped = sentence.strip()
        if stripped:
            # White space at both ends belongs to no sentence.
            first = end - len(sentence.lstrip())
            spans.append((first, first + len(stripped)))
    return spans


def _is_sentence_end(text: str, start: int, match: re.Match[str]) -> bool:
    """Return whether a stop or an empty line ends the sentence that begins at ``start``."""
    if match["stop"] != ".":
        return bool(match["stop"]) or bool(match.group().strip()) or match.group().count("\n") > 1
    sentence = text[start : match.start()]
    # In texts that are split into tokens, a full stop is a token of its own.
    is_separate = not sentence[-1:].strip()
    last_word = re.split(r"[\s(\[\"'“‘]", sentence)[-1].lower()
    is_abbreviation = _ABBREVIATION_PATTERN.fullmatch(last_word) is not None
    is_continued = text[match.end() :].lstrip()[:1].islower()
    return is_separate or not (is_abbreviation or is_continued)


def score_sentences(row: TokenRow, scores: np.ndarray) -> list[Sentence]:
    """Return the sentences of a row in order, each with the sum of its tokens' scores.

    A token belongs to the sentence that holds its last character. A sentence without a token, because the
    text was truncated, is left out: it has no score, rather than the score 0.
    """
    sentences = []
    for segment, text in enumerate(row.texts):
        spans = find_sentence_spans(text)
        groups = _group_by_sentence(row, segment, spans)
        for (start, end), positions in zip(spans, groups, strict=True):
            if positions:
                score = float(scores[positions].sum())
                sentence = Sentence(
                    segment=segment,
                    start=start,
                    end=end,
                    text=text[start:end],
                    positions=tuple(positions),
                    score=score,
                )
                sentences.append(sentence)
    return sentences


def _group_by_sentence(
    row: TokenRow, segment: int, sentence_spans: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Return the token positions of each sentence of one segment."""
    groups: list[list[int]] = [[] for _ in sentence_spans]
    if not groups:
        return groups
    # Tokens after the end of the second to last sentence belong to the last one.
    ends = [end for _, end in sentence_spans[:-1]]
    for position, span in enumerate(row.spans):
        if row.segments[position] == segment and span is not None:
            groups[bisect_left(ends, span[1])].append(position)
    return groups


def group_by_word(row: TokenRow) -> list[list[int]]:
    """Return the token positions of each word, in order; a token of no word is a group of its own."""
    groups: list[list[int]] = []
    previous_word = None
    for position, word in enumerate(row.word_ids):
        if word is not None and groups and word == previous_word:
            groups[-1].append(position)
        else:
            groups.append([position])
        previous_word = word
    return groups


def check_unit(unit: object) -> None:
    """Refuse anything but the name of a unit."""
    if not isinstance(unit, str) or unit not in get_args(Unit):
        raise UnknownName.from_choices("unit", unit, get_args(Unit))


def group_by_unit(row: TokenRow, unit: Unit) -> list[list[int]]:
    """Return the token positions of each unit, in order; special tokens belong to none.

    Args:
        row: The tokens.
        unit: A document is one of the row's texts (half of a pair, a message of a chat), a role all
            texts with the same name.

    Raises:
        UnknownName: There is no such unit.
        BadInput: Sentences of a row without a text were asked for.
    """
    check_unit(unit)
    if unit == "sentence":
        groups = _group_sentences(row)
    elif unit in ("document", "role"):
        groups = _group_documents(row, by_role=unit == "role")
    elif unit == "word":
        groups = group_by_word(row)
    else:
        groups = [[position] for position in range(len(row))]
    return _filter_groups(groups, row.special_tokens_mask)


def _group_sentences(row: TokenRow) -> list[list[int]]:
    if not row.texts:
        raise BadInput(
            "A text given as ids has no sentences. Give the text, or units='token'.",
            code="sentences-need-text",
        )
    sentences = score_sentences(row, np.zeros(len(row)))
    return [list(sentence.positions) for sentence in sentences]


def _group_documents(row: TokenRow, *, by_role: bool) -> list[list[int]]:
    """Return the token positions of each segment, or of all segments with the same name."""
    names: dict[int | None, str] = dict(enumerate(row.segment_names)) if by_role else {}
    groups: dict[int | str, list[int]] = {}
    for position, segment in enumerate(find_segments(row)):
        if segment is not None:
            groups.setdefault(names.get(segment, segment), []).append(position)
    return list(groups.values())


def _filter_groups(
    groups: Sequence[Sequence[int]], excluded: Sequence[bool] | np.ndarray
) -> list[list[int]]:
    """Drop excluded positions, and groups that have no other."""
    # A list is read several times as fast as an array, element by element.
    is_excluded = np.asarray(excluded, dtype=bool).tolist()
    filtered = []
    for group in groups:
        remaining = [position for position in group if not is_excluded[position]]
        if remaining:
            filtered.append(remaining)
    return filtered


def find_removable_units(row: TokenRow, unit: Unit, protected: np.ndarray) -> list[np.ndarray]:
    """Return the token positions of each unit that may be removed.

    Args:
        row: The tokens.
        unit: The kind of unit.
        protected: ``token``, true where a token must stay. The question about documents and what a
            model wrote stay, too.
    """
    protected_segments = set()
    for segment, name in enumerate(row.segment_names):
        if name in (QUESTION_SEGMENT, CONTINUATION_SEGMENT):
            protected_segments.add(segment)
    excluded = protected
    if protected_segments:
        excluded = protected | np.array([segment in protected_segments for segment in row.segments])
    if unit == "token":
        # As below, for all tokens at once: methods of many passes ask for thousands.
        is_removable = ~(excluded | np.array(row.special_tokens_mask, dtype=bool))
        return list(np.flatnonzero(is_removable)[:, None])
    groups = _filter_groups(group_by_unit(row, unit), excluded)
    return [np.array(group) for group in groups]


def make_unit_mask(groups: Sequence[Sequence[int] | np.ndarray], num_tokens: int) -> np.ndarray:
    """Return ``unit token``: true at the token positions of each unit."""
    mask = np.zeros((len(groups), num_tokens), dtype=bool)
    if groups:
        units = np.repeat(np.arange(len(groups)), [len(positions) for positions in groups])
        mask[units, np.concatenate(groups).astype(np.intp)] = True
    return mask


def split_tag(tag: str) -> tuple[str, str]:
    """Split ``B-LOC`` into its prefix and its type; a label without a prefix counts as I."""
    match = _TAG_PATTERN.fullmatch(tag)
    return (match[1], match[2]) if match else ("I", tag)


def group_labels_by_type(labels: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the labels of each entity type; empty if no label has a prefix."""
    indices_by_type: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        if _TAG_PATTERN.fullmatch(label):
            indices_by_type.setdefault(split_tag(label)[1], []).append(index)
    return indices_by_type


def group_entities(tags: Sequence[str]) -> list[range]:
    """Return the words of each entity, given the tags of all words in order.

    An entity begins at B, S or U, at another type, or after a word outside, and ends at E, L, S or U.
    """
    entities: list[range] = []
    for word, tag in enumerate(tags):
        if tag == OUTSIDE_TAG:
            continue
        is_adjacent = bool(entities) and entities[-1].stop == word
        if is_adjacent and _continues_entity(tags[word - 1], tag):
            entities[-1] = range(entities[-1].start, word + 1)
        else:
            entities.append(range(word, word + 1))
    return entities


def _continues_entity(previous_tag: str, tag: str) -> bool:
    # I, E and L continue an entity; S, U, E and L close one.
    previous_prefix, previous_type = split_tag(previous_tag)
    prefix, entity_type = split_tag(tag)
    return prefix in "IEL" and previous_type == entity_type and previous_prefix in "BI"


def find_common_tag_type(tags: Sequence[str]) -> str:
    """Return the type that tags have in common; where they differ, the tags themselves."""
    types = {split_tag(tag)[1] for tag in tags}
    return types.pop() if len(types) == 1 else " ".join(tags)
