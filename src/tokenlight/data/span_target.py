"""Answer spans of question-answering models: the predicted span, or one that a person names.

Models trained on questions without an answer (SQuAD v2) say "no answer" by the span of the first token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenlight.data.tokens import Span, TokenRow
from tokenlight.errors import BadTarget, join_first, short_repr
from tokenlight.errors.arguments import check_fields

MAX_ANSWER_TOKENS = 30  # the limit that the pipelines of transformers use
NO_ANSWER = "no answer"

SpanBoundary = Literal["best", "argmax"] | int | None
LogitTerms = tuple[tuple[tuple[int, ...], float], ...]


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """Start logit + end logit of an answer span.

    ``start`` and ``end`` choose the span by tokens. ``answer``, ``characters`` or ``no_answer`` name it
    instead; only one of these ways may be used.

    Args:
        start: ``"best"``: the best valid span (start ≤ end, inside the context, at most 30 tokens).
            ``"argmax"``: the highest start logit by itself, as the official AttCAT code takes it. A
            number: that token. None: leave this side out.
        end: The same for the end of the span.
        answer: The text of the answer, as written in the context.
        occurrence: Which one, counted from 0, if the answer occurs more than once.
        characters: The (first, after the last) character of the answer in the context.
        no_answer: The span of the first token, which stands for "the context holds no answer".

    Raises:
        BadTarget: The span is named in two ways, or in none that is complete.

    Example:
        >>> from tokenlight import SpanTarget
        >>> SpanTarget(answer="Jane Austen").has_named_answer
        True
    """

    start: SpanBoundary = "best"
    end: SpanBoundary = "best"
    answer: str | None = None
    occurrence: int | None = None
    characters: tuple[int, int] | None = None
    no_answer: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "no_answer", error=BadTarget)
        names = (self.answer is not None, self.characters is not None, self.no_answer)
        has_boundaries = not (_is_word(self.start, "best") and _is_word(self.end, "best"))
        if sum(names) > 1 or (any(names) and has_boundaries):
            raise BadTarget(
                f"{self!r} specifies the span in two ways. Give only one.",
                code="span-named-twice",
            )
        has_text = isinstance(self.answer, str | None)
        has_offsets = self.characters is None or _is_integer_pair(self.characters)
        # An occurrence counts the places of an answer, so it needs one.
        has_occurrence_of_nothing = self.occurrence is not None and self.answer is None
        if not has_text or not has_offsets or has_occurrence_of_nothing:
            raise BadTarget(
                f"{short_repr(self, 120)} specifies no answer. Give answer='its words', or "
                "characters=(start, end), where end is exclusive.",
                code="span-without-answer",
            )

    @property
    def has_named_answer(self) -> bool:
        """Whether the answer is given by its text or its characters."""
        return self.answer is not None or self.characters is not None


def _is_word(boundary: object, word: str) -> bool:
    # An array compares element by element, so the type is asked first.
    return isinstance(boundary, str) and boundary == word


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_integer_pair(pair: object) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_integer, pair))


def to_span_target(target: object) -> SpanTarget:
    """Convert a target of a span head: ``"predicted"``, the text of an answer, or a SpanTarget."""
    if isinstance(target, SpanTarget):
        return target
    if not isinstance(target, str):
        raise BadTarget(
            f"{target!r} is not an answer. Give the answer's text, or SpanTarget(…).",
            code="span-target-type",
        )
    return SpanTarget() if target == "predicted" else SpanTarget(answer=target)


def resolve_span(target: SpanTarget, logits: np.ndarray, row: TokenRow) -> tuple[str, LogitTerms]:
    """Resolve a span target.

    Args:
        target: The span.
        logits: ``token 2``, start and end.
        row: The tokens of question and context.

    Returns:
        The name of the target, and its weighted logits.

    Raises:
        BadTarget: The context has no such span.
    """
    coordinates = []
    for side, boundary in enumerate(_find_boundaries(target, row)):
        if boundary is not None:
            position = _resolve_boundary(boundary, side, logits, row)
            coordinates.append((position, side))
    if not coordinates:
        raise BadTarget(
            "SpanTarget(start=None, end=None) leaves nothing to explain. Give a start or an end.",
            code="span-without-sides",
        )
    terms = tuple((coordinate, 1.0) for coordinate in coordinates)
    return _name_span(target, coordinates, row), terms


def _find_boundaries(target: SpanTarget, row: TokenRow) -> tuple[SpanBoundary, SpanBoundary]:
    """Return start and end, as token positions where the answer is named."""
    if target.has_named_answer:
        boundaries = find_answer_tokens(target, row)
        if boundaries is None:
            raise BadTarget(
                "The answer was truncated. Explain it with long='stride'.",
                code="answer-truncated",
            )
        return boundaries
    if not target.no_answer:
        return target.start, target.end
    if not row.special_tokens_mask[0]:
        raise BadTarget(
            "no_answer=True means the span of the first special token ([CLS]), but this model's input "
            "does not begin with one. Explain 'predicted' or a given answer.",
            code="no-answer-token",
        )
    return 0, 0


def _name_span(target: SpanTarget, coordinates: list[tuple[int, int]], row: TokenRow) -> str:
    """Return the name of a span; ``coordinates`` are pairs of a token position and a side."""
    if target.no_answer:
        return NO_ANSWER
    if len(coordinates) == 2 and coordinates[0][0] <= coordinates[1][0]:
        start, end = coordinates[0][0], coordinates[1][0]
        return f"the answer ‘{extract_span_text(row, start, end)}’"
    names = []
    for position, side in coordinates:
        word = extract_span_text(row, position, position)
        names.append(f"{('start', 'end')[side]} at ‘{word}’")
    return " + ".join(names)


def _resolve_boundary(boundary: Any, side: int, logits: np.ndarray, row: TokenRow) -> int:
    """Return the token position of one side of a span."""
    if _is_word(boundary, "best"):
        return find_best_span(logits, row)[side]
    if _is_word(boundary, "argmax"):
        return int(np.argmax(logits[:, side]))
    if not _is_integer(boundary) or not 0 <= boundary < len(row):
        raise BadTarget(
            f"{boundary!r} is not a valid span boundary. Give 'best', 'argmax', None or a token of the text, "
            f"0 to {len(row) - 1}.",
            code="span-side",
        )
    return int(boundary)


def find_answer_tokens(target: SpanTarget, row: TokenRow) -> tuple[int, int] | None:
    """Return the first and last token that share a character with a named answer.

    None if the row does not hold the whole answer, because the context was truncated.
    """
    answer_start, answer_end = _find_answer_characters(target, row)
    token_spans: list[tuple[int, Span]] = []
    for position in _find_context_positions(row):
        span = row.spans[position]
        if span is not None:
            token_spans.append((position, span))
    overlapping = []
    for position, (start, end) in token_spans:
        if start < answer_end and answer_start < end:
            overlapping.append(position)
    if not overlapping:
        return None
    # A part of the answer may lie before or after the tokens that truncation kept.
    first_character = token_spans[0][1][0]
    last_character = token_spans[-1][1][1]
    if first_character > answer_start or answer_end > last_character:
        return None
    return overlapping[0], overlapping[-1]


def _find_answer_characters(target: SpanTarget, row: TokenRow) -> Span:
    """Return the (first, after the last) character of a named answer in the context."""
    if not row.texts:
        raise BadTarget(
            "An answer is found by its characters, but token ids have no text. Give token positions: "
            "SpanTarget(start=…, end=…).",
            code="answer-needs-text",
        )
    context = row.texts[-1]
    if target.characters is not None:
        start, end = target.characters
        if not 0 <= start < end <= len(context) or not context[start:end].strip():
            raise BadTarget(
                f"Characters {start} to {end} contain no word of the context, which has {len(context)} "
                "characters. Give (start, end), where end is exclusive.",
                code="answer-characters",
            )
        return start, end
    answer = (target.answer or "").strip()
    # The lookahead finds overlapping occurrences, too.
    starts = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
    if not answer or not starts:
        raise BadTarget(
            f"The answer {answer!r} is not in the context. Give words exactly as they are written there, "
            "or no_answer=True.",
            code="answer-not-in-context",
        )
    description = f"the answer {answer!r}"
    start = pick_occurrence(starts, target.occurrence, description, "the context", "characters")
    return start, start + len(answer)


def find_best_span(logits: np.ndarray, row: TokenRow) -> tuple[int, int]:
    """Return start and end (inclusive) of the valid span with the highest start + end logit."""
    positions = np.array(_find_context_positions(row))
    start_logits = logits[positions, 0]
    end_logits = logits[positions, 1]
    # scores[i, j] belongs to the span from the i-th to the j-th token of the context.
    scores = start_logits[:, None] + end_logits[None, :]
    lengths = positions[None, :] - positions[:, None]
    # Spans that end before they begin, or are too long, are not valid.
    scores[(lengths < 0) | (lengths >= MAX_ANSWER_TOKENS)] = -np.inf
    start, end = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return int(positions[start]), int(positions[end])


def _find_context_positions(row: TokenRow) -> list[int]:
    """Return the tokens that may answer: the last segment.

    A row of ids has no segments; there it is the second token type, or all tokens.
    """
    parts: Sequence[int | None] = row.segments
    context = max((segment for segment in parts if segment is not None), default=None)
    if context is None:
        parts = row.token_type_ids or ()
        context = 1
    positions = [i for i, part in enumerate(parts) if part == context]
    return positions or list(range(len(row)))


def extract_span_text(row: TokenRow, start: int, end: int) -> str:
    """Return the characters of a span, or its pieces where the text is unknown.

    Args:
        row: The tokens of the question and the context.
        start: The position of the first token.
        end: The position of the last token, which is part of the span.
    """
    return row.extract_text(range(start, end + 1), " ").strip()


def pick_occurrence(
    positions: Sequence[int], occurrence: int | None, description: str, location: str, units: str
) -> int:
    """Choose among several positions of the same words.

    Args:
        positions: Where the words stand, in order.
        occurrence: Which one, counted from 0; None if the user did not say.
        description: The words, for the message.
        location: The text they stand in, for the message.
        units: What positions count, for the message.

    Raises:
        BadTarget: There are several and the user did not say which, or there is no such occurrence.
    """
    if occurrence is None and len(positions) == 1:
        return positions[0]
    if occurrence is None:
        raise BadTarget(
            f"The target is ambiguous: {description} occurs {len(positions)} times in "
            f"{location} (at {units} {join_first(positions, 6)}). Say which with occurrence=0 to "
            f"{len(positions) - 1}.",
            code="occurrence-missing",
        )
    if not 0 <= occurrence < len(positions):
        raise BadTarget(
            f"occurrence={occurrence} does not exist: {description} occurs {len(positions)} times in "
            f"{location} (at {units} {join_first(positions, 6)}). Say which with occurrence=0 to "
            f"{len(positions) - 1}.",
            code="occurrence-range",
        )
    return positions[occurrence]
