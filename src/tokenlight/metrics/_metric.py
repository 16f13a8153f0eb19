"""What every metric is: frozen options, changed texts to ask the model about, and a measure. It reads
Attributions and the model's answers, never Methods."""

import abc
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np

from tokenlight.capture.perturbation import Original, Variant
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Head
from tokenlight.errors import BadTarget
from tokenlight.metrics._interval import Interval, curve_intervals, mean_interval
from tokenlight.registry import Count, Registered, spelled

# Beside what is written here: what the files of metrics import.
__all__ = ["Count", "Head", "Variant"]

Better = Literal["higher", "lower", "neither"]
ARROWS: Mapping[str, str] = {"higher": "↑", "lower": "↓", "neither": ""}
CharacterSpan = tuple[int, int, int]  # segment, first character, behind the last character
Answers = Sequence[tuple[Variant, np.ndarray]]  # each changed text with the model's logits
Bounds = tuple[float, float]  # lowest and highest value that any explanation could have
Search = Generator[list[Variant], Answers, Bounds]  # asks step by step


@dataclass(frozen=True, slots=True)
class Case:
    """One explanation under test, with all that may be known about its text.

    ``label``: the true class. ``spans``: what a person marked, None if nobody did. ``others``:
    further explanations of the text, as the metric's ``further`` asks for them. ``bounds``: what its
    search found.
    """

    attribution: Attribution
    original: Original
    head: Head
    label: int | None = None
    spans: tuple[CharacterSpan, ...] | None = None
    others: tuple[Attribution, ...] = ()
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a metric found for one explanation; JSON values only, so that a run can be resumed.

    ``value`` is averaged over texts; ``curve`` over texts point by point (its grid is the metric's);
    ``parts`` are further numbers, each averaged by itself; ``detail`` is what a summary other
    than a mean needs.
    """

    value: float
    curve: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """A metric over many texts: means with 95 % bootstrap intervals, curve, and parts."""

    interval: Interval
    curve: tuple[Interval, ...] = ()
    parts: Mapping[str, Interval] = field(default_factory=dict)


def needs_probabilities(head: Head, metric: str) -> None:
    """Refuse heads whose probability cannot fall: one number, or one class."""
    alone = head.problem == "regression" or (head.problem == "single" and len(head.labels) == 1)
    if head.kind == "classification" and alone:
        raise BadTarget(
            f"{metric} watches a probability, but this model has one output ({head.labels[0]}), which "
            "competes with no other; measure its explanations with randomisation or, where a person "
            "marked what matters, with rationale or precision_at_k."
        )


class Metric(Registered, abc.ABC):
    """A measure of an explanation. Subclasses are frozen dataclasses whose fields are the options.

    ``cites``: key of the paper; ``better``: which way is better by default; ``labelled``, ``marked``:
    whether it needs true labels, human spans; ``asks``: whether it asks the model about changed texts;
    ``watches``, ``compares``: whether it reads a probability, the classes; ``searches``: whether
    :meth:`search` asks first; ``further``: which further explanations it needs, those for all classes or
    those of the model with randomised weights; ``asides``: parts of which neither more nor less is better;
    ``presets``: official readings.
    """

    cites: ClassVar[str]
    better: ClassVar[Better] = "higher"
    marked: ClassVar[bool] = False
    asks: ClassVar[bool] = True
    watches: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    searches: ClassVar[bool] = False
    further: ClassVar[Literal["none", "classes", "randomised"]] = "none"
    asides: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    def direction(self) -> Better:
        """Which way is better with its present options."""
        return self.better

    @property
    def labelled(self) -> bool:
        """Whether it needs true labels with its present options."""
        return False

    @property
    def points(self) -> tuple[float, ...]:
        """Where the points of the curve stand (share of tokens, k, layer); empty without curve."""
        return ()

    def check(self, head: Head) -> None:
        """Refuse, before any work, a model for which the number would mean nothing."""
        if self.watches:
            needs_probabilities(head, self.name)
        if self.compares and not head.chooses:
            raise BadTarget(f"{self.name} compares classes, and this model has none: {head.does}.")

    def variants(self, case: Case) -> list[Variant]:  # noqa: ARG002 - some ask nothing
        """The changed texts whose logits :meth:`measure` needs, in order."""
        return []

    def search(self, case: Case) -> Search:
        """Yields changed texts, is sent the answers, and returns the bounds; the same whatever the
        explanation, so one search serves all of a text's."""
        raise NotImplementedError

    @abc.abstractmethod
    def measure(self, case: Case, answers: Answers) -> Measured:
        """The number for one explanation."""

    def joined(self, measured: Sequence[Measured]) -> Measured:
        """What was found for several explanations of one text (of each class, say) as one: every
        number its mean. Overridden where ``detail`` holds more than numbers."""
        if len(measured) == 1:
            return measured[0]
        curves = [one.curve for one in measured if one.curve]
        return Measured(
            fmean(one.value for one in measured),
            tuple(map(fmean, zip(*curves, strict=True))),
            {name: fmean(own) for name, own in _by_name([m.parts for m in measured]).items()},
            {name: fmean(own) for name, own in _by_name([m.detail for m in measured]).items()},
        )

    def summarise(
        self,
        measured: Sequence[Measured],
        *,
        seed: int = 0,
        frequencies: Any = None,  # noqa: ARG002 - token_overlap reads it
    ) -> MetricSummary:
        """Means over texts, one entry each, with intervals; overridden where a number is no mean.

        ``frequencies``: in how many of ``documents`` texts each token id stands, as ``counts``.
        """
        parts = _by_name([one.parts for one in measured])
        return MetricSummary(
            mean_interval([one.value for one in measured], seed=seed),
            curve_intervals([one.curve for one in measured], seed=seed),
            {name: mean_interval(parts[name], seed=seed) for name in sorted(parts)},
        )

    @property
    def label(self) -> str:
        """The name with its preset or options: what tells two readings of one metric apart."""
        for preset, settings in type(self).presets.items():
            if settings and self == type(self)(**settings):
                return f"{self.name}(preset={preset})"
        return spelled(self.name, self.options)


def _by_name(numbers: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Each number of those that have it."""
    names = dict.fromkeys(name for one in numbers for name in one)
    return {name: [one[name] for one in numbers if name in one] for name in names}
