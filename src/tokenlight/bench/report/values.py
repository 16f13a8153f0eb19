"""The numbers of a report, ours next to the published ones. The templates of all formats read these."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenlight.metrics.base import DIRECTION_ARROWS

MAX_REASON_LENGTH = 40  # characters of a reason in a cell of a table
MISSING = "–"  # shown where there is no number


def format_number(value: float, *, sign: bool = False) -> str:
    """Format with three decimals, as the papers print numbers; with two for percentages."""
    num_decimals = 3 if abs(value) < 10 else 2  # percentages are the only numbers above 10
    if sign:
        return f"{value:+.{num_decimals}f}"
    return f"{value:.{num_decimals}f}"


@dataclass(frozen=True)
class Score:
    """One method measured by one metric, and its published value.

    Args:
        mean: Our mean; None if there is none.
        low: Lower bound of its 95 % interval over texts.
        high: Upper bound.
        count: Number of texts.
        sd: Standard deviation over repeated runs, which replaces the interval.
        draws: Number of repeated runs.
        left_out: Texts that the metric or the model refused.
        published: Mean in the paper.
        published_sd: Standard deviation in the paper.
        reason: Why there is no number of ours.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    sd: float | None = None
    draws: int | None = None
    left_out: int | None = None
    published: float | None = None
    published_sd: float | None = None
    reason: str = ""

    def get_bounds(self, num_deviations: int) -> tuple[float, float]:
        """Return the interval; for repeated runs, that many standard deviations to each side."""
        mean = self.mean or 0.0
        spread = num_deviations * (self.sd or 0.0)
        if self.low is None or self.high is None:
            return mean - spread, mean + spread
        return self.low, self.high

    @property
    def difference(self) -> float | None:
        """Ours minus the published number."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published

    @property
    def formatted(self) -> str:
        """Our number with its interval, or why there is none if that fits into a cell."""
        if self.mean is None:
            if len(self.reason) > MAX_REASON_LENGTH:
                return "not run (see above)"
            return self.reason or MISSING
        mean = format_number(self.mean)
        if self.sd is not None:
            return f"{mean} ± {self.sd:.3f} ({self.draws} draws)"
        if self.low is None or self.high is None:
            return mean
        return f"{mean} [{format_number(self.low)}, {format_number(self.high)}]"

    @property
    def formatted_mean(self) -> str:
        """Our number without its interval."""
        return _format_with_spread(self.mean, self.sd, ".3f")

    @property
    def formatted_published(self) -> str:
        return _format_with_spread(self.published, self.published_sd)

    @property
    def formatted_difference(self) -> str:
        if self.difference is None:
            return MISSING
        return format_number(self.difference, sign=True)


def _format_with_spread(mean: float | None, spread: float | None, number_format: str = "g") -> str:
    if mean is None:
        return MISSING
    if spread is None:
        return format_number(mean)
    return f"{format_number(mean)} ± {spread:{number_format}}"


@dataclass(frozen=True)
class Column:
    """One metric of a panel: its direction, whether the paper has numbers of it, and the best numbers."""

    metric: str
    arrow: str
    has_published: bool
    best: float | None
    best_published: float | None


@dataclass(frozen=True)
class Ranking:
    """How our order of the methods of a panel by a metric compares with the published order.

    Args:
        panel: Title of the panel.
        metric: The metric.
        methods: Number of methods that have both numbers.
        best: The best method in the paper.
        rank: Its rank here, counted from 1.
        kendall: Kendall's rank correlation.
        spearman: Spearman's rank correlation.
    """

    panel: str
    metric: str
    methods: int
    best: str
    rank: int
    kendall: float
    spearman: float


@dataclass(frozen=True)
class MethodCost:
    """Cost of a method per text, without measuring, and its mean of the cost metric."""

    method: str
    seconds: float
    forwards: float
    backwards: float
    value: float | None
    texts: int


@dataclass(frozen=True)
class Panel:
    """One model on one data set: a table of methods by metrics.

    Args:
        model: Name of the model in the suite.
        data: Name of the data set in the suite.
        title: Title in the report.
        metrics: Labels of the metrics.
        rows: Method → metric → score.
        checkpoint: Folder or hub id that was loaded.
        num_planned: Number of texts in the plan.
        skip_reasons: Why some texts were not measured.
        reason: Why nothing of the panel was run.
        accuracy: Percentage of texts that the model predicts correctly, where labels are known.
    """

    model: str
    data: str
    title: str
    metrics: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Score]]
    checkpoint: str = ""
    num_planned: int = 0
    skip_reasons: str = ""
    reason: str = ""
    accuracy: float | None = None

    def iter_scores(self) -> Iterator[Score]:
        for row in self.rows.values():
            yield from row.values()

    @property
    def has_scores(self) -> bool:
        return any(score.mean is not None for score in self.iter_scores())

    @property
    def num_texts(self) -> int:
        """Largest number of texts that a score of the panel covers."""
        return max((score.count or 0 for score in self.iter_scores()), default=0)

    def get_score(self, method: str, metric: str) -> Score:
        """Return the score of a method, an empty one if there is none."""
        return self.rows.get(method, {}).get(metric, Score())

    def build_columns(self, directions: Mapping[str, str]) -> Iterator[Column]:
        """Yield the columns of the table.

        Args:
            directions: Metric → ``"higher"``, ``"lower"`` or ``"neither"``, whichever is better.
        """
        for metric in self.metrics:
            our_means = []
            published_means = []
            for row in self.rows.values():
                score = row[metric]
                if score.mean is not None:
                    our_means.append(score.mean)
                if score.published is not None:
                    published_means.append(score.published)
            direction = directions.get(metric, "neither")
            yield Column(
                metric,
                DIRECTION_ARROWS[direction],
                has_published=bool(published_means),
                best=_find_best(our_means, direction),
                best_published=_find_best(published_means, direction),
            )


def _find_best(values: list[float], direction: str) -> float | None:
    if not values or direction == "neither":
        return None
    return max(values) if direction == "higher" else min(values)
