"""Attributions in the order a reader compares them: by text, then by target, then by method."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference
from tokenlight.errors import BadInput, UnknownName
from tokenlight.plots.pieces import piece_in_word
from tokenlight.plots.roles import laid_over


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """Explanations of one text and one target, one a method."""

    name: str
    attributions: tuple[Attribution, ...]

    @property
    def title(self) -> str:
        """What is explained, said so that it stands alone."""
        first = self.attributions[0]
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


@dataclass(frozen=True, slots=True)
class TextGroup:
    """All explanations of one text by one model, target by target."""

    targets: tuple[TargetGroup, ...]

    @property
    def first(self) -> Attribution:
        """Any of them: they share text, model and prediction."""
        return self.targets[0].attributions[0]

    def __iter__(self) -> Iterator[Attribution]:
        return (a for target in self.targets for a in target.attributions)

    def alike(self, attribution: Attribution) -> list[Attribution]:
        """The explanations by one method, of all targets: they share a colour scale, so that the
        classes of one method compare by eye."""
        mine = method_label(attribution)
        return [other for other in self if method_label(other) == mine]

    def by_class(self) -> list[tuple[Attribution, ...]]:
        """For each method its explanations of several classes; none for a method with one class, or
        for pictures, whose heat maps say it better than a table of patches."""
        methods: dict[str, list[Attribution]] = {}
        for attribution in self:
            if attribution.target.kind == "class" and attribution.row.image is None:
                methods.setdefault(method_label(attribution), []).append(attribution)
        return [tuple(found) for found in methods.values() if len(found) > 1]


def method_label(attribution: Attribution) -> str:
    """Method with its options, without the target."""
    return attribution.label.removesuffix(f" → {attribution.target.name}")


def strongest(attribution: Attribution) -> float:
    """Largest magnitude over the tokens of the text, or over all where all are special: one strong
    separator would make the text pale."""
    magnitude = np.abs(attribution.scores)
    counted = magnitude[~np.array(attribution.row.special, dtype=bool)]
    return float((counted if counted.size else magnitude).max(initial=0.0))


def grouped(attributions: Attribution | Iterable[Attribution]) -> list[TextGroup]:
    """Group by text (of a model that labels tokens: by the token) and model, then by target; first
    seen stays first."""
    given = [attributions] if isinstance(attributions, Attribution) else list(attributions)
    if not given:
        raise BadInput("there is no attribution to draw; give at least one.")
    texts: dict[object, dict[str, list[Attribution]]] = {}
    seen: Counter[object] = Counter()
    for a in laid_over(given):
        text = (a.model, a.row.texts, a.row.fingerprint, a.row.at, a.row.asked)
        # An explanation that comes a second time is that of another text with the same words.
        again = seen[text, a.label, a.steps]
        seen[text, a.label, a.steps] += 1
        targets = texts.setdefault((text, again), {})
        targets.setdefault(a.target.name, []).append(a)
    return [
        TextGroup(tuple(TargetGroup(name, tuple(found)) for name, found in targets.items()))
        for targets in texts.values()
    ]


def differences(group: TargetGroup, reference: str) -> list[Attribution]:
    """Every other method minus the reference (Mask-LRP paper, figure 6); none where the reference
    is not among them."""
    base = next((a for a in group.attributions if _is(a, reference)), None)
    if base is None:
        return []
    return [difference(a, base) for a in group.attributions if a is not base]


def check_reference(groups: Sequence[TextGroup], reference: str) -> None:
    """Refuse a reference that no attribution was made by."""
    everyone = [a for group in groups for a in group]
    if not any(_is(a, reference) for a in everyone):
        raise UnknownName.among("reference method", reference, {method_label(a) for a in everyone})


def _is(attribution: Attribution, reference: str) -> bool:
    """Whether ``reference`` (a name, a label or ``name:option=value``) means this method."""
    if reference in (attribution.method, method_label(attribution), attribution.label):
        return True
    name, options = registry.parse(reference) if ":" in reference else (reference, {})
    given = {option: str(value) for option, value in attribution.options.items()}
    return name == attribution.method and bool(options) and options.items() <= given.items()
