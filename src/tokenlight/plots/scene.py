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
from tokenlight.plots.passages import is_continuation, laid_over
from tokenlight.plots.views import ScoreTable, View, class_table

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
class Group:
    """Explanations side by side: of one target by several methods, with their differences from a
    reference; or of several classes by one, on one scale."""

    name: str
    methods: Sequence[MethodScene]
    differences: Sequence[MethodScene] = ()

    @property
    def title(self) -> str:
        """What is explained, said so that it stands alone."""
        first = self.methods[0].attribution
        row = first.row
        asked = row.asked if row.at is None or first.prediction.ids else (row.at,)
        if not asked:
            return self.name
        words = {row.words[i] for i in asked}
        places = [i for i, word in enumerate(row.words) if word in words]
        return f"‘{row.written(places, ' ').strip()}’ as {self.name}"

    @property
    def tables(self) -> list[tuple[str, ScoreTable]]:
        """Of classes, one a view."""
        views = zip(*(method.views for method in self.methods), strict=True)
        return [(own[0].kind, class_table([one.attribution for one in own])) for own in views]


@dataclass(frozen=True)
class TextScene:
    """All explanations of one text by one model, target by target."""

    targets: Sequence[Group]

    @property
    def methods(self) -> list[MethodScene]:
        return [method for target in self.targets for method in target.methods]

    @property
    def first(self) -> Attribution:
        """Any of them: they share text, model and prediction."""
        return self.targets[0].methods[0].attribution

    @cached_property
    def classes(self) -> list[Group]:
        """For each method its explanations of several classes; not of pictures, which have heat maps."""
        found: dict[str, list[MethodScene]] = {}
        for method in self.methods:
            a = method.attribution
            if a.target.kind == "class" and a.row.image is None:
                found.setdefault(method.label, []).append(method)
        return [Group(label, own) for label, own in found.items() if len(own) > 1]

    def compared(self, target: Group) -> bool:
        """Whether all of a target is shown among the classes already."""
        return {*target.methods} <= {method for one in self.classes for method in one.methods}


def scenes(
    attributions: Attribution | Iterable[Attribution],
    kinds: tuple[str, ...] = (TOKENS, WORDS),
    reference: str | None = None,
) -> list[TextScene]:
    """By text (or the token that is labelled) and model, then by target; first seen stays first.
    ``reference``: a method to compare with."""
    given = laid_over([attributions] if isinstance(attributions, Attribution) else [*attributions])
    if not given:
        raise BadInput("there is no attribution to draw; give at least one.")
    texts: dict[object, dict[str, list[MethodScene]]] = {}
    alike: dict[object, list[MethodScene]] = {}
    seen: Counter[object] = Counter()
    told: set[str] = set()
    for a in given:
        text = (a.model, a.row.texts, a.row.fingerprint, a.row.at, a.row.asked)
        # An explanation that comes a second time is that of another text with the same words.
        again = seen[text, a.label, a.steps]
        seen[text, a.label, a.steps] += 1
        made = MethodScene(a, kinds, untold(a.notes, told))
        made.alike = alike.setdefault((text, again, made.label), [])
        made.alike.append(made)
        texts.setdefault((text, again), {}).setdefault(a.target.name, []).append(made)
    everyone = [one for own in alike.values() for one in own]
    if reference is not None and not any(_is(one, reference) for one in everyone):
        raise UnknownName.among("reference method", reference, {one.label for one in everyone})
    return [
        TextScene([Group(name, own, _apart(own, reference)) for name, own in targets.items()])
        for targets in texts.values()
    ]


def _apart(found: Sequence[MethodScene], reference: str | None) -> list[MethodScene]:
    """Every other method minus the reference, where it is among them (Mask-LRP, figure 6)."""
    base = next((one for one in found if reference is not None and _is(one, reference)), None)
    if base is None:
        return []
    apart = (difference(one.attribution, base.attribution) for one in found if one is not base)
    # What is known about a method is not known about a difference.
    return [MethodScene(replace(a, extras={}, notes=()), base.kinds) for a in apart]


def _is(method: MethodScene, reference: str) -> bool:
    """Whether ``reference`` (a name, a label or ``name:option=value``) means this method."""
    a = method.attribution
    name, options = registry.parse(reference) if ":" in reference else (reference, {})
    given = {option: str(value) for option, value in a.options.items()}
    named = name == a.method and options.items() <= given.items()
    return named or reference in (method.label, a.label)


def _strongest(attribution: Attribution) -> float:
    """Largest magnitude of the text's own tokens: one strong separator would make the text pale."""
    magnitude = np.abs(attribution.scores)
    counted = magnitude[~np.array(attribution.row.special, dtype=bool)]
    return float((counted if counted.size else magnitude).max(initial=0.0))


def by_words(attributions: Sequence[Attribution]) -> bool:
    """Not of what a model writes: a full stop that brought the next word would be the word before it."""
    return not any(map(is_continuation, attributions))


def untold(notes: Sequence[str], told: set[str]) -> tuple[str, ...]:
    """The notes; how a method was chosen (``method='auto': …``) is told once."""
    new = tuple(note for note in notes if note not in told)
    told |= {note for note in new if note.startswith("method=")}
    return new
