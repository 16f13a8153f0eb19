"""One reading of an explanation, by tokens or by words: lines of marked characters, what they weigh, and
tables of scores, a column a token: a row a layer and their sum (AttCAT, figure 5), or a row a class."""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import SegmentShare, sentence_spans
from tokenlight.errors import BadInput
from tokenlight.plots import facts, passages
from tokenlight.plots.colours import step
from tokenlight.plots.facts import number
from tokenlight.plots.passages import TOP, Piece, SegmentText, Stretch

ROLLOUT = "Rollout"  # AttCAT's word for the product of a token's terms; no attention is rolled out
SUM = "Sum"
LONG = 250  # tokens from which a text is shown by sentences first


class Mark(NamedTuple):
    """Characters in a row with the score of the tokens on them; text between tokens has none."""

    text: str
    score: float | None
    strength: int  # step of its colour; 0 for special tokens, which are no part of the text
    roles: tuple[str, ...]
    special: bool
    masked: bool
    hover: str | None

    @property
    def looks(self) -> str:
        """Its part, as classes of the style sheet."""
        return " ".join([*["chip"] * self.special, *self.roles, *["masked"] * self.masked])


class MarkedLine(NamedTuple):
    """A segment or a sentence, numbered from 1; ``share``: what a segment that begins with it weighs."""

    place: int
    marks: tuple[Mark, ...]
    share: SegmentShare | None

    @property
    def text(self) -> str:
        """As the person wrote it."""
        return "".join(mark.text for mark in self.marks if not mark.special).strip()

    @property
    def scores(self) -> list[float]:
        """Of its own tokens; none where it was cut off."""
        return [m.score for m in self.marks if m.score is not None and not m.special]

    @property
    def score(self) -> float:
        return sum(self.scores)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """``values[row, column]``; ``unread[row, column]``: the token was not yet written when the row's
    was explained. ``summed``: whether the last row is the sum of the others."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    special: tuple[bool, ...]
    values: np.ndarray
    unread: np.ndarray
    summed: bool = False
    left_out: int = 0  # weak tokens left out to keep the table readable

    @property
    def scales(self) -> tuple[float, ...]:
        """Strength of the full colour, row by row, of the text's own tokens: all share one, but the sum, or
        it would leave the layers pale, and the product, which is tiny."""
        peaks = np.abs(self._own_values).max(axis=1, initial=0.0)
        alone = np.isin(self.rows, (ROLLOUT, SUM)) & self.summed
        peaks[~alone] = peaks[~alone].max(initial=0.0)
        return tuple(map(float, peaks))

    def normalised(self) -> "ScoreTable":
        """Divided by the Frobenius norm of the text's own tokens, as the paper's figure is."""
        peak = float(np.abs(self._own_values).max(initial=0.0)) or 1.0  # squares must not overflow
        norm = float(np.linalg.norm(self._own_values / peak)) or 1.0
        return replace(self, values=self.values / peak / norm)

    def without_special(self) -> "ScoreTable":
        """Only the text's own tokens."""
        return self._chosen(np.flatnonzero(~np.array(self.special, dtype=bool)), self.left_out)

    def strongest(self, most: int) -> "ScoreTable":
        """At most ``most`` columns: the tokens with the largest value in any row, in text order."""
        if len(self.columns) <= most:
            return self
        kept = np.sort(np.argsort(-np.abs(self.values).max(axis=0), kind="stable")[:most])
        return self._chosen(kept, len(self.columns) - most)

    @property
    def _own_values(self) -> np.ndarray:
        """The cells of the text's own tokens, or of all where all are special."""
        own = ~np.array(self.special, dtype=bool)
        return self.values[:, own] if own.any() else self.values

    def _chosen(self, kept: np.ndarray, left_out: int) -> "ScoreTable":
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            special=tuple(self.special[i] for i in kept),
            values=self.values[:, kept],
            unread=self.unread[:, kept],
            left_out=left_out,
        )


def layer_table(attribution: Attribution, *, rollout: bool = False) -> ScoreTable:
    """The terms of each layer and their sum; ``rollout``: with their product, as in the paper's figure."""
    if attribution.layers is None:
        raise BadInput(f"{attribution.method} has no per-layer terms; attcat and cat have them.")
    terms = attribution.layers
    rows = {f"L{number}": own for number, own in enumerate(terms)}
    rows |= {ROLLOUT: terms.prod(axis=0)} if rollout else {}
    rows[SUM] = terms.sum(axis=0)
    values = np.vstack(list(rows.values()))
    row, nothing = attribution.row, np.zeros(values.shape, dtype=bool)
    return ScoreTable(tuple(rows), attribution.tokens, row.special, values, nothing, summed=True)


def class_table(attributions: Sequence[Attribution]) -> ScoreTable:
    """One method's scores for several classes of one text, a row each."""
    first = attributions[0]
    return ScoreTable(
        tuple(a.target.name for a in attributions),
        first.tokens,
        first.row.special,
        np.vstack([a.scores for a in attributions]),
        np.vstack([passages.unread(a) for a in attributions]),
    )


def layer_maps(attribution: Attribution) -> np.ndarray:
    """The terms of a picture's patches, ``layer row column``."""
    return attribution.row.image.grid(attribution.layers)  # type: ignore[union-attr, arg-type]


@dataclass(frozen=True)
class View:
    """``kind`` is empty where tokens and words agree. ``tokens``: what ``attribution`` was merged of.
    ``scale``: the score of the full colour."""

    kind: str
    attribution: Attribution
    tokens: Attribution
    scale: float

    @cached_property
    def _passages(self) -> list[SegmentText]:
        return passages.passages(self.attribution.row)

    @property
    def _patches(self) -> int:
        """Those of a picture beside the text."""
        image = self.attribution.row.image
        return 0 if image is None else len(image.places)

    @cached_property
    def _shares(self) -> dict[int | None, SegmentShare]:
        """What each of several parts weighs, by tokens always: in a word scores of unlike sign cancel."""
        several = self._patches or len(self._passages) > 1
        return {one.segment: one for one in self.tokens.segment_shares()} if several else {}

    @property
    def picture(self) -> SegmentShare | None:
        """What a picture beside the text weighs."""
        return self._shares[0] if self._patches else None

    @property
    def special(self) -> SegmentShare | None:
        """What special tokens weigh, where the words alone would tell another story."""
        least = 0.005 if self._shares else facts.HALF  # 0 % tells nothing, even beside other parts
        own = (part for part in self.tokens.segment_shares() if part.segment is None)
        return next((part for part in own if part.share > least), None)

    @property
    def top(self) -> list[tuple[Piece, float]]:
        return passages.strongest_pieces(self.attribution)

    @cached_property
    def layers(self) -> ScoreTable | None:
        a = self.attribution
        return None if a.layers is None or a.row.image is not None else layer_table(a)

    @cached_property
    def lines(self) -> tuple[MarkedLine, ...]:
        """The segments."""
        return tuple(self._lines(self._passages))

    @property
    def long(self) -> bool:
        """Whether it is read better by sentences: it is long, or the model read it in windows."""
        return len(self.attribution) - self._patches > LONG or "windows" in self.attribution.extras

    @cached_property
    def sentences(self) -> tuple[MarkedLine, ...]:
        """Of a long text; none where there is just one."""
        found = [one for passage in self._passages if self.long for one in self._cut(passage)]
        return tuple(self._lines(found)) if len(found) > 1 else ()

    @property
    def largest(self) -> float:
        """Magnitude of the strongest sentence."""
        return max((abs(one.score) for one in self.sentences), default=0.0)

    @property
    def strongest(self) -> list[MarkedLine]:
        """The strongest sentences that were read, in the order of the text."""
        found = [one for one in self.sentences if one.scores]
        few = sorted(found, key=lambda one: -abs(one.score))[:TOP]
        return sorted(few, key=lambda one: one.place)

    def _cut(self, passage: SegmentText) -> list[SegmentText]:
        """Its sentences. Special tokens and the white space behind a sentence go with it."""
        if passage.segment is None:
            return []
        text = self.attribution.row.texts[passage.segment]
        starts = [start for start, _ in sentence_spans(text)]
        groups: list[list[Stretch]] = [[] for _ in starts]
        offset = 0
        for stretch in passage.stretches if starts else ():
            # White space belongs to the sentence before it, a special token to where it stands.
            groups[max(0, bisect(starts, offset) - 1)].append(stretch)
            offset += 0 if stretch.special else len(stretch.text)
        return [SegmentText(passage.segment, tuple(group)) for group in groups]

    def _lines(self, found: list[SegmentText]) -> Iterator[MarkedLine]:
        a, shares = self.attribution, dict(self._shares)
        roles = passages.roles_of(self.tokens, words=a is not self.tokens)
        for place, one in enumerate(found, 1):
            marks = tuple(self._mark(*pair) for pair in passages.with_roles(a, one, roles))
            yield MarkedLine(place, marks, shares.pop(one.segment, None))

    def _mark(self, stretch: Stretch, roles: tuple[str, ...]) -> Mark:
        a, later = self.attribution, None  # what hovering says of a token that was not read
        if passages.EXPLAINED in roles:
            later = f"explained here: {facts.chance_of_written(a) or a.target.name}"
        elif passages.LATER in roles:
            later = "not yet written"
        if not stretch.positions:
            return Mark(stretch.text, None, 0, roles, False, False, later)
        places = list(stretch.positions)
        score = float(sum(a.scores[places]))
        seen = any(a.row.attention[place] for place in places)
        masked = not seen and later is None
        said = ["masked out"] * masked if later is None else [later]
        if seen or masked:  # a word may be half written
            pieces = [a.row.pieces[place] for place in places]
            if len(places) > 1:
                pieces = [f"{p} {number(a.scores[i])}" for p, i in zip(pieces, places, strict=True)]
            said = [f"{stretch.text}  {number(score)}  · piece {' + '.join(pieces)}", *said]
        strength = 0 if stretch.special else step(score, self.scale)
        return Mark(stretch.text, score, strength, roles, stretch.special, masked, " · ".join(said))
