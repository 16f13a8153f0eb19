"""What a picture shows, as plain values: one walk over texts, targets, methods and their marks.

The terminal and the page read it; neither decides what there is to see, only how it looks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.units import SegmentShare
from tokenlight.plots import facts
from tokenlight.plots.colours import step
from tokenlight.plots.facts import number
from tokenlight.plots.groups import (
    TargetGroup,
    TextGroup,
    check_reference,
    differences,
    grouped,
    method_label,
    strongest,
)
from tokenlight.plots.passages import (
    SegmentText,
    Stretch,
    is_long,
    passages,
    sentence_texts,
    stretch_score,
)
from tokenlight.plots.pieces import TOP, Piece, strongest_pieces
from tokenlight.plots.roles import (
    EXPLAINED,
    LATER,
    Roles,
    is_continuation,
    token_roles,
    unread_whole,
    with_roles,
    word_roles,
)
from tokenlight.plots.tables import ScoreTable, class_table, layer_table

TOKENS, WORDS = "tokens", "words"


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters in a row with the score of the tokens on them; text between tokens has none."""

    text: str
    score: float | None
    strength: int  # step of its colour; 0 for special tokens, which are no part of the text
    roles: tuple[str, ...]
    special: bool
    masked: bool
    hover: str | None


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """One segment; ``share``: what it weighs, where the input is a pair."""

    marks: tuple[Mark, ...]
    share: SegmentShare | None
    unread: bool  # none of it was there yet


@dataclass(frozen=True, slots=True)
class SentenceLine:
    """One sentence of a long text, numbered from 1; ``share``: of the segment that begins with it."""

    place: int
    text: str
    score: float
    read: bool  # what was cut off has no score
    marks: tuple[Mark, ...]
    share: SegmentShare | None


@dataclass(frozen=True, slots=True)
class View:
    """One reading of an attribution: by tokens or by words; ``kind`` is empty where both agree.

    ``scale``: the score of the full colour. ``special``: what special tokens weigh, where it is
    worth saying.
    """

    kind: str
    attribution: Attribution
    scale: float
    picture: SegmentShare | None  # what a picture beside the text weighs
    lines: tuple[SegmentLine, ...]
    special: SegmentShare | None
    sentences: tuple[SentenceLine, ...]
    top: tuple[tuple[Piece, float], ...]
    layers: ScoreTable | None

    @property
    def long(self) -> bool:
        return is_long(self.attribution)

    @property
    def largest(self) -> float:
        """Magnitude of the strongest sentence."""
        return max((abs(one.score) for one in self.sentences), default=0.0)

    @property
    def strongest(self) -> tuple[SentenceLine, ...]:
        """The strongest sentences that were read, in the order of the text."""
        found = [one for one in self.sentences if one.read]
        few = sorted(found, key=lambda one: -abs(one.score))[:TOP]
        return tuple(sorted(few, key=lambda one: one.place))


@dataclass(frozen=True, slots=True)
class MethodScene:
    """One explanation: what is known of it in words, and its views. ``notes``: those that the picture
    has not told yet."""

    attribution: Attribution
    views: tuple[View, ...]
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return method_label(self.attribution)

    @property
    def badges(self) -> tuple[str, ...]:
        return facts.badges(self.attribution)

    @property
    def provenance(self) -> tuple[tuple[str, str], ...]:
        return facts.provenance(self.attribution)


@dataclass(frozen=True, slots=True)
class TargetScene:
    """One target; ``compared``: whether its text is shown among the classes already."""

    group: TargetGroup
    methods: tuple[MethodScene, ...]
    differences: tuple[MethodScene, ...]
    compared: bool


@dataclass(frozen=True, slots=True)
class ClassScene:
    """One method's classes, or the tokens of a continuation, on one scale; a table a view."""

    methods: tuple[MethodScene, ...]
    tables: tuple[tuple[str, ScoreTable], ...]

    @property
    def written(self) -> bool:
        return is_continuation(self.methods[0].attribution)


@dataclass(frozen=True, slots=True)
class TextScene:
    """One text with all that explains it."""

    group: TextGroup
    classes: tuple[ClassScene, ...]
    targets: tuple[TargetScene, ...]

    @property
    def methods(self) -> tuple[MethodScene, ...]:
        return tuple(method for target in self.targets for method in target.methods)


@dataclass(frozen=True, slots=True)
class Scenery:
    """What is wanted beside the scores: the kinds of views, and a method to compare with."""

    kinds: tuple[str, ...] = (TOKENS, WORDS)
    reference: str | None = None

    def of(self, attributions: Attribution | Iterable[Attribution]) -> list[TextScene]:
        """The texts in the order a reader compares them."""
        groups = grouped(attributions)
        if self.reference is not None:
            check_reference(groups, self.reference)
        told: set[str] = set()
        return [self._text(group, told) for group in groups]

    def _text(self, group: TextGroup, told: set[str]) -> TextScene:
        made = {}
        for a in group:
            made[id(a)] = replace(self._method(a, group.alike(a)), notes=untold(a.notes, told))
        classes = [
            ClassScene(tuple(made[id(a)] for a in found), tuple(self._tables(found)))
            for found in group.by_class()
        ]
        compared = {id(method) for one in classes for method in one.methods}
        targets = []
        for target in group.targets:
            methods = tuple(made[id(a)] for a in target.attributions)
            apart = [] if self.reference is None else differences(target, self.reference)
            # What is known about a method is not known about a difference.
            bare = [replace(a, extras={}, notes=()) for a in apart]
            unlike = tuple(self._method(a, [a]) for a in bare)
            seen = all(id(method) in compared for method in methods)
            targets.append(TargetScene(target, methods, unlike, seen))
        return TextScene(group, tuple(classes), tuple(targets))

    def _method(self, attribution: Attribution, alike: Sequence[Attribution]) -> MethodScene:
        """``alike``: the explanations that share its colour scale."""
        views = []
        for kind in self._kinds(attribution):
            made, roles, others = attribution, token_roles(attribution), alike
            if kind == WORDS:
                made, roles = merge_words(attribution), word_roles(attribution)
                others = [merge_words(a) for a in alike]  # a word may be stronger than its tokens
            scale = max(strongest(a) for a in others)
            views.append(
                self._view(kind if len(self.kinds) > 1 else "", made, attribution, scale, roles)
            )
        return MethodScene(attribution, tuple(views))

    def _kinds(self, attribution: Attribution) -> tuple[str, ...]:
        whole = len(merge_words(attribution)) == len(attribution)
        return ("",) if len(self.kinds) > 1 and whole else self.kinds

    def _tables(self, found: Sequence[Attribution]) -> Iterator[tuple[str, ScoreTable]]:
        for kind in self._kinds(found[0]):
            read = [merge_words(a) for a in found] if kind == WORDS else found
            yield kind, class_table(read)

    def _view(
        self, kind: str, a: Attribution, tokens: Attribution, scale: float, roles: Roles
    ) -> View:
        """``tokens``: what ``a`` was merged of. Shares are those of the tokens, whatever is shown: in a
        word scores of unlike sign cancel, and one number has one value."""
        layered = a.layers is not None and a.row.image is None
        found = passages(a.row)
        beside = a.row.image is not None and bool(a.row.image.places)
        several = len(found) > 1 or beside
        shares = {part.segment: part for part in tokens.segment_shares()} if several else {}
        return View(
            kind,
            a,
            scale,
            shares[0] if beside else None,
            tuple(
                SegmentLine(
                    _marks(a, one, scale, roles),
                    shares.get(one.segment),
                    unread_whole(a, one.segment),
                )
                for one in found
            ),
            facts.weight_on_special(tokens, always=several),
            tuple(_sentences(a, scale, roles, shares)),
            tuple(strongest_pieces(a)),
            layer_table(a) if layered else None,
        )


def by_words(attributions: Sequence[Attribution]) -> bool:
    """Whether words are what a reader wants: not of what a model writes, where a full stop that brought
    the next word would be shown as the word before it."""
    return not any(map(is_continuation, attributions))


def untold(notes: Sequence[str], told: set[str]) -> tuple[str, ...]:
    """The notes; how a method was chosen (``method='auto': …``) is told once."""
    new = tuple(note for note in notes if note not in told)
    told |= {note for note in new if note.startswith("method=")}
    return new


def _sentences(
    a: Attribution, scale: float, roles: Roles, shares: dict[int | None, SegmentShare]
) -> Iterator[SentenceLine]:
    segment = None
    for place, one in enumerate(sentence_texts(a), 1):
        begins, segment = one.segment != segment, one.segment
        share = shares.get(segment) if begins else None
        marks = _marks(a, one, scale, roles)
        score = sum(m.score for m in marks if m.score is not None and not m.special)
        yield SentenceLine(place, one.written, score, one.read, marks, share)


def _marks(a: Attribution, line: SegmentText, scale: float, roles: Roles) -> tuple[Mark, ...]:
    marks = []
    for stretch, played in with_roles(a, line, roles):
        if not stretch.positions:
            hover = _said_of(a, played)
            marks.append(Mark(stretch.text, None, 0, played, False, False, hover))
            continue
        score = stretch_score(a, stretch)
        seen = any(a.row.attention[position] for position in stretch.positions)
        later = _said_of(a, played)
        masked = not seen and later is None
        said = [_pieces(a, stretch, score)] if seen or masked else []  # a word may be half written
        hover = " · ".join([*said, *["masked out"] * masked, *filter(None, [later])])
        strength = 0 if stretch.special else step(score, scale)
        marks.append(Mark(stretch.text, score, strength, played, stretch.special, masked, hover))
    return tuple(marks)


def _said_of(attribution: Attribution, played: tuple[str, ...]) -> str | None:
    """What hovering says of a token that was not read."""
    if EXPLAINED in played:
        return f"explained here: {facts.chance_of_written(attribution) or attribution.target.name}"
    return "not yet written" if LATER in played else None


def _pieces(a: Attribution, stretch: Stretch, score: float) -> str:
    several = len(stretch.positions) > 1
    pieces = [
        f"{a.row.pieces[p]}" + (f" {number(a.scores[p])}" if several else "")
        for p in stretch.positions
    ]
    return f"{stretch.text}  {number(score)}  · piece {' + '.join(pieces)}"
