"""The base class of metrics, and the values that metrics read and return.

A metric has frozen options, names the perturbed texts whose logits it needs, and computes a number from them.
It reads Attributions and the model's outputs, never Methods.
"""

import abc
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np

from tokenlight.data.annotations import CharacterSpan
from tokenlight.data.attribution import Attribution
from tokenlight.data.head import Head
from tokenlight.data.intervals import Interval, bootstrap_curve, bootstrap_mean
from tokenlight.errors import BadTarget
from tokenlight.perturb.variants import Perturber, Variant
from tokenlight.registry import Component, format_spec

Direction = Literal["higher", "lower", "neither"]
DIRECTION_ARROWS: Mapping[str, str] = {"higher": "↑", "lower": "↓", "neither": ""}

VariantOutputs = Sequence[tuple[Variant, np.ndarray]]  # each perturbed text with the model's logits
Bounds = tuple[float, float]  # lowest and highest value that any explanation could have
Search = Generator[list[Variant], VariantOutputs, Bounds]  # yields texts, receives their logits


@dataclass(frozen=True, slots=True)
class Case:
    """One explanation under test, with what is known about its text.

    Attributes:
        attribution: The explanation.
        perturber: Builds perturbed variants of the text.
        head: The head of the model.
        label: Index of the true class, if it is known.
        spans: Annotated spans; None if there are none.
        extra_attributions: Further explanations of the text, if the metric's ``extra_explanations`` requests
            them.
        bounds: The result of the metric's :meth:`Metric.search`, if it has one.

    Example:
        >>> from tokenlight.plugin import Case
        >>> def find_top_token(case: Case) -> str:
        ...     positions = case.perturber.rankable_positions
        ...     scores = case.attribution.scores[positions]
        ...     return case.attribution.row.pieces[positions[scores.argmax()]]
    """

    attribution: Attribution
    perturber: Perturber
    head: Head
    label: int | None = None
    spans: tuple[CharacterSpan, ...] | None = None
    extra_attributions: tuple[Attribution, ...] = ()
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a metric for one explanation; JSON values only, so that a run can be resumed.

    Attributes:
        value: The number, which is averaged over texts.
        curve: Values at the metric's ``curve_points``, averaged over texts point by point.
        parts: Further numbers, each averaged on its own.
        detail: Values for a summary other than the mean.

    Example:
        >>> from tokenlight.plugin import Measurement
        >>> Measurement(0.5, parts={"chance": 0.25}).value
        0.5
    """

    value: float
    curve: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """A metric over many texts: the mean with its 95 % bootstrap interval, the curve, and the parts.

    Attributes:
        interval: The mean of the values with its interval.
        curve: The same for each point of the curve.
        parts: The same for each part, by its name.

    Example:
        >>> from tokenlight.plugin import Interval, MetricSummary
        >>> MetricSummary(Interval(0.5, 0.4, 0.6, count=20)).interval.mean
        0.5
    """

    interval: Interval
    curve: tuple[Interval, ...] = ()
    parts: Mapping[str, Interval] = field(default_factory=dict)


def check_has_probabilities(head: Head, metric_name: str) -> None:
    """Raise if the probability of this head cannot fall: a regression, or a single class.

    Args:
        head: The head of the model.
        metric_name: What needs the probability, as the subject of the message.

    Raises:
        BadTarget: The model has one output.
    """
    is_regression = head.problem_type == "regression"
    has_single_class = head.problem_type == "single" and len(head.labels) == 1
    if head.task != "question-answering" and (is_regression or has_single_class):
        raise BadTarget(
            f"{metric_name} needs a probability, but this model has one output ({head.labels[0]}), which "
            "has no alternatives. Measure its explanations with randomisation or, where a person marked "
            "what matters, with rationale or precision_at_k.",
            code="no-probabilities",
        )


class Metric(Component, abc.ABC):
    """Base class of metrics. Subclasses are frozen dataclasses whose fields are the options.

    A metric is one file. Its class implements :meth:`measure` and, if it runs the model on perturbed texts,
    :meth:`build_variants`. The class attributes say what it needs.

    Attributes:
        cites: Key of the paper in the bibliography.
        better: Whether higher or lower values are better, with the default options.
        needs_spans: Whether it needs spans that a person marked.
        needs_model: Whether it runs the model on perturbed texts.
        needs_probability: Whether it reads a probability that must be able to fall.
        needs_classes: Whether it compares classes.
        has_search: Whether :meth:`search` must run before :meth:`measure`.
        extra_explanations: Further explanations that it needs: for all ``classes``, or of the model with
            ``randomized`` weights.
        informational: Parts for which neither higher nor lower is better.
        presets: Named sets of options, such as those of a paper's official code.

    Example:
        >>> import numpy as np
        >>> from tokenlight.plugin import Measurement, Metric
        >>> class LargestScore(Metric, abstract=True):
        ...     needs_model = False
        ...     def measure(self, case, outputs):
        ...         return Measurement(float(np.max(case.attribution.scores)))
        >>> LargestScore.better
        'higher'
    """

    cites: ClassVar[str]
    better: ClassVar[Direction] = "higher"
    needs_spans: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    needs_probability: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    has_search: ClassVar[bool] = False
    extra_explanations: ClassVar[Literal["none", "classes", "randomized"]] = "none"
    informational: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    def direction(self) -> Direction:
        """Whether higher or lower values are better, with the present options."""
        return self.better

    @property
    def needs_labels(self) -> bool:
        """Whether it needs true labels, with the present options."""
        return False

    @property
    def curve_points(self) -> tuple[float, ...]:
        """Points of the curve on the x-axis (share of tokens, k, layer); empty without a curve."""
        return ()

    def check(self, head: Head) -> None:
        """Raise before any work if the number would mean nothing for this model.

        Args:
            head: The head of the model.

        Raises:
            BadTarget: The head has no probability or no classes, and the metric needs them.

        Example:
            >>> from tokenlight import Explainer, registry
            >>> head = Explainer.from_pretrained("tokenlight/sentiment").runner.head
            >>> registry.build("metrics", "aopc").check(head)
        """
        if self.needs_probability:
            check_has_probabilities(head, self.name)
        if self.needs_classes and not head.has_classes:
            raise BadTarget(
                f"{self.name} compares classes, but this model has none: {head.usage}. Use another metric.",
                code="no-classes",
            )

    def build_variants(self, case: Case) -> list[Variant]:  # noqa: ARG002 - some metrics need none
        """Return the perturbed texts whose logits :meth:`measure` needs.

        Args:
            case: The explanation under test; ``case.perturber`` builds the variants.

        Returns:
            The variants, in the order in which :meth:`measure` receives their logits.

        Example:
            >>> from tokenlight.plugin import Metric
            >>> class FirstTokenDrop(Metric, abstract=True):
            ...     '''What the first token adds to the logit.'''
            ...
            ...     def build_variants(self, case):
            ...         first = case.perturber.rankable_positions[:1]
            ...         return [case.perturber.make_unperturbed(), case.perturber.remove_tokens(first)]
            ...
            ...     def measure(self, case, outputs):
            ...         raise NotImplementedError
        """
        return []

    def search(self, case: Case) -> Search:
        """Search for the bounds of the metric on a text.

        The result must not depend on the explanation, so that one search serves all explanations of a text.

        Args:
            case: An explanation of the text.

        Yields:
            Perturbed texts; the generator receives them with their logits.

        Returns:
            The lowest and highest value that any explanation could have.

        Example:
            >>> from tokenlight.plugin import Metric
            >>> class Scaled(Metric, abstract=True):
            ...     '''A number between those of the whole and of the empty text.'''
            ...
            ...     has_search = True
            ...
            ...     def search(self, case):
            ...         everything = case.perturber.rankable_positions
            ...         outputs = yield [case.perturber.remove_tokens(everything)]
            ...         ((_, logits),) = outputs
            ...         return float(logits.min()), float(logits.max())
            ...
            ...     def measure(self, case, outputs):
            ...         raise NotImplementedError
        """
        raise NotImplementedError

    @abc.abstractmethod
    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        """Compute the number for one explanation.

        Args:
            case: The explanation under test.
            outputs: The variants of :meth:`build_variants` with their logits.

        Returns:
            The number, and what else is to be averaged or summarized.

        Raises:
            TokenlightError: This text cannot be measured; the record keeps the reason.

        Example:
            >>> from tokenlight.plugin import Measurement, Metric
            >>> class NumTokens(Metric, abstract=True):
            ...     '''The length of the text.'''
            ...
            ...     needs_model = False
            ...
            ...     def measure(self, case, outputs):
            ...         return Measurement(float(len(case.perturber)))
        """

    def combine(self, measurements: Sequence[Measurement]) -> Measurement:
        """Average the measurements of several explanations of one text, of each class for example.

        Override this if ``detail`` holds more than numbers.

        Args:
            measurements: One per explanation.

        Returns:
            One measurement for the text.

        Example:
            >>> from tokenlight import registry
            >>> from tokenlight.plugin import Measurement
            >>> registry.build("metrics", "aopc").combine([Measurement(0.25), Measurement(0.75)]).value
            0.5
        """
        if len(measurements) == 1:
            return measurements[0]
        # Curves, parts and details are averaged over the measurements that have them.
        curves = [measurement.curve for measurement in measurements if measurement.curve]
        return Measurement(
            fmean(measurement.value for measurement in measurements),
            tuple(map(fmean, zip(*curves, strict=True))),
            _average_by_name([measurement.parts for measurement in measurements]),
            _average_by_name([measurement.detail for measurement in measurements]),
        )

    def summarize(
        self,
        measurements: Sequence[Measurement],
        *,
        seed: int = 0,
        frequencies: Any = None,  # noqa: ARG002 - token_overlap reads it
    ) -> MetricSummary:
        """Average over texts, with intervals. Override this if the number is not a mean.

        Args:
            measurements: One measurement per text.
            seed: Seed of the intervals.
            frequencies: Document frequencies of token ids in a corpus, as ``counts`` and ``num_documents``.

        Returns:
            The mean of the values, and of each point of the curve and each part, with intervals.

        Example:
            >>> from tokenlight import registry
            >>> from tokenlight.plugin import Measurement
            >>> summary = registry.build("metrics", "aopc").summarize([Measurement(0.25), Measurement(0.75)])
            >>> summary.interval.mean
            0.5
        """
        values = [measurement.value for measurement in measurements]
        curves = [measurement.curve for measurement in measurements]
        parts = _group_by_name([measurement.parts for measurement in measurements])
        # Sorted, so that tables of different runs list the parts in the same order.
        part_intervals = {}
        for name in sorted(parts):
            part_intervals[name] = bootstrap_mean(parts[name], seed=seed)
        return MetricSummary(
            bootstrap_mean(values, seed=seed), bootstrap_curve(curves, seed=seed), part_intervals
        )

    @property
    def display_name(self) -> str:
        """The name with its preset or options, which tells two variants of one metric apart."""
        # A preset without settings is the default, which needs no name.
        for preset, settings in type(self).presets.items():
            if settings and self == type(self)(**settings):
                return f"{self.name}(preset={preset})"
        return format_spec(self.name, self.options)


def _group_by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Collect the values of each name, from the entries that have it."""
    groups: dict[str, list[float]] = {}
    for entry in entries:
        for name, value in entry.items():
            groups.setdefault(name, []).append(value)
    return groups


def _average_by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {name: fmean(values) for name, values in _group_by_name(entries).items()}
