"""What a picture shows, as plain values: one walk over texts, targets, methods and their views.

The terminal, the page and the figures read it; none decides what there is to see, only how it looks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference, merge_words
from tokenlight.errors import BadInput, UnknownName
from tokenlight.plots.passages import piece_in_word
from tokenlight.plots.roles import is_continuation, laid_over
from tokenlight.plots.tables import ScoreTable, class_table
from tokenlight.plots.views import View

TOKENS, WORDS = "tokens", "words"


@dataclass(eq=False)
class MethodScene:
    """One explanation and its views. ``notes``: those that the picture has not told yet. ``alike``: those
    by the same method, of all targets, which share a colour scale, so that classes compare by eye."""

    attribution: Attribution
    kinds: tuple[str, ...]
    notes: tuple[str, ...] = ()
    alike: list["MethodScene"] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Method with its options, without the target."""
        return self.attribution.label.removesuffix(f" → {self.attribution.target.name}")

    @cached_property
    def words(self) -> Attribution:
        return merge_words(self.attribution)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """By tokens, by words, or one where both agree."""
        several, views = len(self.kinds) > 1, []
        agree = len(self.words) == len(self.attribution)
        for kind in ("",) if several and agree else self.kinds:
            # A word may be stronger than its tokens.
            read = [one.words if kind == WORDS else one.attribution for one in (self, *self.alike)]
            scale = max(map(_strongest, read))
            views.append(View(kind if several else "", read[0], self.attribution, scale))
        return tuple(views)


@dataclass(frozen=True)
class TargetScene:
    """Explanations of one text and one target, one a method, and their differences from a reference."""

    name: str
    methods: Sequence[MethodScene]
    differences: Sequence[MethodScene]

    @property
    def title(self) -> str:
        """What is explained, said so that it stands alone."""
        first = self.methods[0].attribution
        row, said = first.row, first.prediction
        if row.at is not None and not said.ids:
            piece = piece_in_word(row, row.at)
            return f"‘{piece.before}{piece.text}{piece.after}’ as {self.name}"
        if row.asked:
            words = {row.words[i] for i in row.asked}
            places = [i for i, word in enumerate(row.words) if word in words]
            return f"‘{row.written(places, ' ').strip()}’ as {self.name}"
        if first.target.kind == "class" and not said.probabilities and self.name == "LABEL_0":
            return "the predicted number"
        return self.name


@dataclass(frozen=True)
class ClassScene:
    """One method's classes, or the tokens of a continuation, on one scale."""

    methods: Sequence[MethodScene]

    @property
    def tables(self) -> list[tuple[str, ScoreTable]]:
        """One a view."""
        views = zip(*(method.views for method in self.methods), strict=True)
        return [(own[0].kind, class_table([one.attribution for one in own])) for own in views]

    @property
    def written(self) -> bool:
        return is_continuation(self.methods[0].attribution)


@dataclass(frozen=True)
class TextScene:
    """All explanations of one text by one model, target by target."""

    targets: Sequence[TargetScene]

    @property
    def methods(self) -> list[MethodScene]:
        return [method for target in self.targets for method in target.methods]

    @property
    def first(self) -> Attribution:
        """Any of them: they share text, model and prediction."""
        return self.targets[0].methods[0].attribution

    @cached_property
    def classes(self) -> list[ClassScene]:
        """For each method its explanations of several classes; none for a method with one class, or
        for pictures, whose heat maps say it better than a table of patches."""
        found: dict[str, list[MethodScene]] = {}
        for method in self.methods:
            a = method.attribution
            if a.target.kind == "class" and a.row.image is None:
                found.setdefault(method.label, []).append(method)
        return [ClassScene(own) for own in found.values() if len(own) > 1]

    def compared(self, target: TargetScene) -> bool:
        """Whether all of a target is shown among the classes already."""
        return {*target.methods} <= {method for one in self.classes for method in one.methods}


def scenes(
    attributions: Attribution | Iterable[Attribution],
    kinds: tuple[str, ...] = (TOKENS, WORDS),
    reference: str | None = None,
) -> list[TextScene]:
    """In the order a reader compares them: by text (of a model that labels tokens: by the token) and
    model, then by target; first seen stays first. ``reference``: a method to compare with."""
    given = laid_over([attributions] if isinstance(attributions, Attribution) else [*attributions])
    if not given:
        raise BadInput("there is no attribution to draw; give at least one.")
    texts: dict[object, dict[str, list[MethodScene]]] = {}
    alike: dict[object, list[MethodScene]] = {}
    seen: Counter[object] = Counter()
    for a in given:
        text = (a.model, a.row.texts, a.row.fingerprint, a.row.at, a.row.asked)
        # An explanation that comes a second time is that of another text with the same words.
        again = seen[text, a.label, a.steps]
        seen[text, a.label, a.steps] += 1
        made = MethodScene(a, kinds)
        made.alike = alike.setdefault((text, again, made.label), [])
        made.alike.append(made)
        texts.setdefault((text, again), {}).setdefault(a.target.name, []).append(made)
    everyone = [one for own in alike.values() for one in own]
    if reference is not None and not any(_is(one, reference) for one in everyone):
        known = {one.label for one in everyone}
        raise UnknownName.among("reference method", reference, known)
    told: set[str] = set()
    return [
        TextScene([_target(name, own, reference, told) for name, own in targets.items()])
        for targets in texts.values()
    ]


def _target(
    name: str, found: Sequence[MethodScene], reference: str | None, told: set[str]
) -> TargetScene:
    """With every other method minus the reference, where it is among them (Mask-LRP, figure 6)."""
    base = next((one for one in found if reference is not None and _is(one, reference)), None)
    apart = [
        # What is known about a method is not known about a difference.
        replace(difference(one.attribution, base.attribution), extras={}, notes=())
        for one in found
        if base is not None and one is not base
    ]
    for one in found:
        one.notes = untold(one.attribution.notes, told)
    return TargetScene(name, found, [MethodScene(a, found[0].kinds) for a in apart])


def _is(method: MethodScene, reference: str) -> bool:
    """Whether ``reference`` (a name, a label or ``name:option=value``) means this method."""
    a = method.attribution
    if reference in (a.method, method.label, a.label):
        return True
    name, options = registry.parse(reference) if ":" in reference else (reference, {})
    given = {option: str(value) for option, value in a.options.items()}
    return name == a.method and bool(options) and options.items() <= given.items()


def _strongest(attribution: Attribution) -> float:
    """Largest magnitude over the tokens of the text, or over all where all are special: one strong
    separator would make the text pale."""
    magnitude = np.abs(attribution.scores)
    counted = magnitude[~np.array(attribution.row.special, dtype=bool)]
    return float((counted if counted.size else magnitude).max(initial=0.0))


def by_words(attributions: Sequence[Attribution]) -> bool:
    """Whether words are what a reader wants: not of what a model writes, where a full stop that brought
    the next word would be shown as the word before it."""
    return not any(map(is_continuation, attributions))


def untold(notes: Sequence[str], told: set[str]) -> tuple[str, ...]:
    """The notes; how a method was chosen (``method='auto': …``) is told once."""
    new = tuple(note for note in notes if note not in told)
    told |= {note for note in new if note.startswith("method=")}
    return new
