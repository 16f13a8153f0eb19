"""One view of an explanation, by tokens or by words: lines of marked text and the shares of its parts."""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tokenlight.data.attribution import MIN_ERRORS_FROM_ZERO, Attribution
from tokenlight.data.units import find_sentence_spans
from tokenlight.plots import descriptions, text_segments
from tokenlight.plots.colours import score_to_step
from tokenlight.plots.descriptions import RoundedShare, format_error, format_score
from tokenlight.plots.score_tables import ScoreTable, build_layer_table
from tokenlight.plots.text_segments import SegmentText, TextRun
from tokenlight.plots.token_roles import (
    EXPLAINED_ROLE,
    LATER_ROLE,
    TokenRoles,
    assign_roles,
    iter_with_roles,
)
from tokenlight.plots.word_pieces import NUM_TOP, StrongToken, describe_strongest_tokens

LONG_TEXT_TOKENS = 250  # a text with more tokens is shown by sentences first


class Mark(NamedTuple):
    """Consecutive characters with the score of the tokens on them.

    Args:
        text: The characters.
        score: The sum of the tokens' scores; None for text between tokens.
        strength: Colour step of the score; 0 for special tokens, which are no part of the text.
        roles: Roles of the tokens, such as ``answer``.
        is_special: Whether it is a special token.
        is_masked: Whether attention to all of its tokens was masked.
        hover: Tooltip text.
        is_uncertain: Whether the score could be 0, by its standard error.
    """

    text: str
    score: float | None = None
    strength: int = 0
    roles: tuple[str, ...] = ()
    is_special: bool = False
    is_masked: bool = False
    hover: str | None = None
    is_uncertain: bool = False

    @property
    def css_classes(self) -> str:
        """Its roles as classes of the style sheet."""
        classes = list(self.roles)
        if self.is_special:
            classes.insert(0, "chip")
        if self.is_masked:
            classes.append("masked")
        if self.is_uncertain:
            classes.append("uncertain")
        return " ".join(classes)


class MarkedLine(NamedTuple):
    """A segment or a sentence.

    Args:
        line_number: Its number, from 1.
        marks: Its characters.
        share: The share of the segment that begins with this line, if there are several segments.
    """

    line_number: int
    marks: tuple[Mark, ...]
    share: RoundedShare | None

    @property
    def text(self) -> str:
        """The original text, without special tokens."""
        return "".join(mark.text for mark in self.marks if not mark.is_special).strip()

    @property
    def scores(self) -> list[float]:
        """The scores of its tokens; empty if the text was truncated."""
        scores = []
        for mark in self.marks:
            if mark.score is not None and not mark.is_special:
                scores.append(mark.score)
        return scores

    @property
    def score(self) -> float:
        """The sum of its scores."""
        return sum(self.scores)


@dataclass(frozen=True)
class View:
    """One view of an explanation.

    Args:
        kind: ``tokens`` or ``words``; empty if both look the same.
        attribution: The scores to show.
        token_attribution: The explanation by tokens that ``attribution`` was merged from.
        scale: The magnitude that gets the full colour.
    """

    kind: str
    attribution: Attribution
    token_attribution: Attribution
    scale: float

    @cached_property
    def _segment_texts(self) -> list[SegmentText]:
        return text_segments.split_segments(self.attribution.row)

    @property
    def _num_patches(self) -> int:
        """Patches of a picture next to the text."""
        image = self.attribution.row.image
        if image is None:
            return 0
        return len(image.token_positions)

    @cached_property
    def _all_shares(self) -> dict[int | None, RoundedShare]:
        """Shares by segment, None for special tokens.

        They are computed from tokens in both views: scores of opposite sign cancel within a word.
        """
        shares = descriptions.round_segment_shares(self.token_attribution)
        return {part.segment: part for part in shares}

    @property
    def _has_several_parts(self) -> bool:
        return self._num_patches > 0 or len(self._segment_texts) > 1

    @property
    def image_share(self) -> RoundedShare | None:
        """The share of a picture next to the text."""
        if self._num_patches == 0:
            return None
        return self._all_shares[0]

    @property
    def special_share(self) -> RoundedShare | None:
        """The share of special tokens, if it is shown.

        Beside shares of other parts it is shown unless it is 0 %, otherwise only if it is large.
        """
        share = self._all_shares.get(None)
        if share is None:
            return None
        if self._has_several_parts:
            return share if share.percent > 0 else None
        return share if share.share > descriptions.SPECIAL_SHARE_THRESHOLD else None

    @property
    def top_tokens(self) -> list[StrongToken]:
        """The strongest tokens with their scores and standard errors."""
        return describe_strongest_tokens(self.attribution)

    @property
    def bar_scale(self) -> float:
        """The magnitude of a full bar in the list of the strongest: room for the whiskers, too."""
        ends = [abs(token.score) + (token.error or 0.0) for token in self.top_tokens]
        return max(self.scale, *ends, 0.0)

    @cached_property
    def layer_table(self) -> ScoreTable | None:
        """The per-layer terms; None for a method without them, and for pictures."""
        if self.attribution.layers is None or self.attribution.row.image is not None:
            return None
        return build_layer_table(self.attribution)

    @cached_property
    def lines(self) -> tuple[MarkedLine, ...]:
        """The segments of the text."""
        return tuple(self._mark_lines(self._segment_texts))

    @property
    def is_long(self) -> bool:
        """Whether to show sentences first: the text is long, or the model read it in windows."""
        num_text_tokens = len(self.attribution) - self._num_patches
        return num_text_tokens > LONG_TEXT_TOKENS or "windows" in self.attribution.extras

    @cached_property
    def sentences(self) -> tuple[MarkedLine, ...]:
        """The sentences of a long text; empty if there is only one."""
        if not self.is_long:
            return ()
        sentence_texts: list[SegmentText] = []
        for segment_text in self._segment_texts:
            sentence_texts += self._split_sentences(segment_text)
        if len(sentence_texts) < 2:
            return ()
        return tuple(self._mark_lines(sentence_texts))

    @property
    def max_sentence_score(self) -> float:
        """The magnitude of the strongest sentence."""
        return max((abs(sentence.score) for sentence in self.sentences), default=0.0)

    @property
    def strongest_sentences(self) -> list[MarkedLine]:
        """The strongest sentences that the model read, in text order."""
        read_sentences = [sentence for sentence in self.sentences if sentence.scores]
        ranked = sorted(read_sentences, key=lambda sentence: -abs(sentence.score))
        return sorted(ranked[:NUM_TOP], key=lambda sentence: sentence.line_number)

    def _split_sentences(self, segment_text: SegmentText) -> list[SegmentText]:
        """Split a segment into sentences; special tokens and white space stay with the one before."""
        segment = segment_text.segment
        if segment is None:
            return []
        starts = [start for start, _ in find_sentence_spans(self.attribution.row.texts[segment])]
        if not starts:
            return []
        runs_by_sentence: list[list[TextRun]] = [[] for _ in starts]
        offset = 0  # of the next run in the text of the segment
        for run in segment_text.runs:
            sentence = max(0, bisect(starts, offset) - 1)
            runs_by_sentence[sentence].append(run)
            if not run.is_special:
                offset += len(run.text)
        return [SegmentText(segment, tuple(runs)) for runs in runs_by_sentence]

    def _mark_lines(self, segment_texts: list[SegmentText]) -> Iterator[MarkedLine]:
        is_merged = self.attribution is not self.token_attribution
        roles = assign_roles(self.token_attribution, merge_words=is_merged)
        # Each share is taken out once, so that only the first sentence of a segment shows it.
        shares: dict[int | None, RoundedShare] = {}
        if self._has_several_parts:
            shares.update(self._all_shares)
        for number, segment_text in enumerate(segment_texts, start=1):
            marks = tuple(self._build_marks(segment_text, roles))
            yield MarkedLine(number, marks, shares.pop(segment_text.segment, None))

    def _build_marks(self, segment_text: SegmentText, roles: TokenRoles) -> Iterator[Mark]:
        for run, run_roles in iter_with_roles(self.attribution, segment_text, roles):
            yield self._build_mark(run, run_roles)

    def _build_mark(self, run: TextRun, roles: tuple[str, ...]) -> Mark:
        unread_reason = self._explain_unread(roles)
        if not run.positions:
            return Mark(text=run.text, roles=roles, hover=unread_reason)
        positions = list(run.positions)
        score = float(sum(self.attribution.scores[positions]))
        attention_mask = self.attribution.row.attention_mask
        is_read = any(attention_mask[position] for position in positions)
        is_masked = not is_read and unread_reason is None
        strength = 0
        if not run.is_special:
            strength = score_to_step(score, self.scale)
        is_uncertain = self._is_uncertain(positions, score) and is_read and not run.is_special

        remarks = []
        # A word can be half written; then both its score and the reason are given.
        if is_read or is_masked:
            remarks.append(self._describe_score(run.text, positions, score))
        if is_masked:
            remarks.append("masked out")
        if unread_reason is not None:
            remarks.append(unread_reason)
        if is_uncertain:
            remarks.append("could be 0")
        return Mark(
            text=run.text,
            score=score,
            strength=strength,
            roles=roles,
            is_special=run.is_special,
            is_masked=is_masked,
            hover=" · ".join(remarks),
            is_uncertain=is_uncertain,
        )

    def _describe_score(self, text: str, positions: list[int], score: float) -> str:
        """Say the score of a mark, its standard error and the tokenizer's pieces."""
        stated_score = format_score(score)
        error = self._find_error(positions)
        if error is not None:
            stated_score += f" {format_error(error)}"
        return f"{text}  {stated_score}  · piece {self._describe_pieces(positions)}"

    def _find_error(self, positions: list[int]) -> float | None:
        """Return the standard error of a sum of scores, the largest that it can be."""
        errors = self.attribution.standard_errors
        if errors is None:
            return None
        return float(errors[positions].sum())

    def _is_uncertain(self, positions: list[int], score: float) -> bool:
        error = self._find_error(positions)
        return error is not None and abs(score) < MIN_ERRORS_FROM_ZERO * error

    def _explain_unread(self, roles: tuple[str, ...]) -> str | None:
        """Say why a token has not been read; None for any token that has."""
        if EXPLAINED_ROLE in roles:
            probability = descriptions.describe_token_probability(self.attribution)
            return f"explained here: {probability or self.attribution.target.name}"
        if LATER_ROLE in roles:
            return "not yet written"
        return None

    def _describe_pieces(self, positions: list[int]) -> str:
        """Name the tokenizer's pieces; if there are several, each with its score."""
        pieces = self.attribution.row.pieces
        if len(positions) == 1:
            return pieces[positions[0]]
        scores = self.attribution.scores
        return " + ".join(f"{pieces[i]} {format_score(scores[i])}" for i in positions)
