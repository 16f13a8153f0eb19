"""Numbers of a report, ours beside the published ones. The templates (Markdown, LaTeX, HTML) read these."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tokenlight.metrics._metric import ARROWS

LONGEST = 40  # characters of a reason in a cell


def digits(value: float, *, sign: bool = False) -> str:
    """Three decimals, as the papers print; two for per cents."""
    places = 3 if abs(value) < 10 else 2
    return f"{value:+.{places}f}" if sign else f"{value:.{places}f}"


@dataclass(frozen=True)
class Number:
    """A mean over ``count`` texts with its 95 % interval, or over ``draws`` runs with their ``sd``."""

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 0
    sd: float | None = None
    draws: int = 1
    left_out: int = 0  # texts that the metric or the model refused

    def edges(self, deviations: int) -> tuple[float, float]:
        """The interval; of draws as many standard deviations to each side."""
        spread = deviations * (self.sd or 0.0)
        low = self.mean - spread if self.low is None else self.low
        return low, self.mean + spread if self.high is None else self.high

    def __str__(self) -> str:
        if self.sd is not None:
            return f"{digits(self.mean)} ± {self.sd:.3f} ({self.draws} draws)"
        if self.low is None or self.high is None:
            return digits(self.mean)
        return f"{digits(self.mean)} [{digits(self.low)}, {digits(self.high)}]"


@dataclass(frozen=True)
class Score:
    """One method by one metric: ours, what the paper prints, and why there is nothing of ours."""

    ours: Number | None = None
    published: float | None = None
    published_sd: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the published number."""
        if self.ours is None or self.published is None:
            return None
        return self.ours.mean - self.published

    @property
    def shown(self) -> str:
        """Our number with its interval, or why there is none, as far as a cell holds it; the whole
        stands at the head of the report."""
        if self.ours is not None:
            return str(self.ours)
        return "not run (see above)" if len(self.reason) > LONGEST else self.reason or "–"

    @property
    def mean(self) -> str:
        """Our number without its interval."""
        return "–" if self.ours is None else _with_spread(self.ours.mean, self.ours.sd, ".3f")

    @property
    def printed(self) -> str:
        """The published number."""
        return "–" if self.published is None else _with_spread(self.published, self.published_sd)

    @property
    def change(self) -> str:
        """The difference, with its sign."""
        return "–" if self.difference is None else digits(self.difference, sign=True)


def _with_spread(mean: float, spread: float | None, form: str = "g") -> str:
    return digits(mean) if spread is None else f"{digits(mean)} ± {spread:{form}}"


class Column(NamedTuple):
    """One metric of a panel: ``compared`` where the paper prints a number of it; its best numbers."""

    metric: str
    arrow: str
    compared: bool
    best: float | None
    best_printed: float | None


@dataclass(frozen=True)
class Panel:
    """One model on one data set: methods by metrics."""

    model: str
    data: str
    title: str
    metrics: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Score]]
    checkpoint: str = ""
    planned: int = 0
    skipped_since: str = ""  # why some texts were not measured
    reason: str = ""  # why nothing of it was run
    accuracy: float | None = None  # of the explained passes, in per cent, where labels are known

    @property
    def ran(self) -> bool:
        """Whether it has any number of ours."""
        return any(score.ours for row in self.rows.values() for score in row.values())

    @property
    def texts(self) -> int:
        """How many texts were measured."""
        numbers = (score.ours for row in self.rows.values() for score in row.values())
        return max((number.count for number in numbers if number), default=0)

    def score(self, method: str, metric: str) -> Score:
        """A method's score, empty where there is none."""
        return self.rows.get(method, {}).get(metric, Score())

    def columns(self, better: Mapping[str, str]) -> Iterator[Column]:
        """The columns behind the method's name; ``better``: metric to which way is better."""
        for metric in self.metrics:
            scores = [row[metric] for row in self.rows.values()]
            ours = [score.ours.mean for score in scores if score.ours is not None]
            printed = [score.published for score in scores if score.published is not None]
            way = better.get(metric, "neither")
            end = {"higher": max, "lower": min}.get(way, lambda _: None)
            best, best_printed = (end(known) if known else None for known in (ours, printed))
            yield Column(metric, ARROWS[way], bool(printed), best, best_printed)


class Verdict(NamedTuple):
    """What became of a claim on one panel: holds, weakly (no more than chance gives), ties, undecided
    (behind by no more than chance gives), fails, untestable, or not run."""

    panel: str
    verdict: str
    words: str


class Ranking(NamedTuple):
    """How the order of the methods agrees with the published one, on one panel by one metric."""

    panel: str
    metric: str
    methods: int
    kendall: float
    spearman: float
    best: str  # the paper's best
    place: int  # its place here


class MethodCost(NamedTuple):
    """What one method costs a text, and how faithful it is; means over what was run."""

    method: str
    seconds: float
    forwards: float
    backwards: float
    value: float | None
    texts: int
