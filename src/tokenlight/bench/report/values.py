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
class Score:
    """One method by one metric: our mean over ``count`` texts with its 95 % interval, or over ``draws`` runs
    with their ``sd``; what the paper prints; and why there is nothing of ours."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    sd: float | None = None
    draws: int | None = None
    left_out: int | None = None  # texts that the metric or the model refused
    published: float | None = None
    published_sd: float | None = None
    reason: str = ""

    def edges(self, deviations: int) -> tuple[float, float]:
        """The interval; of draws as many standard deviations to each side."""
        mean, spread = self.mean or 0.0, deviations * (self.sd or 0.0)
        low = mean - spread if self.low is None else self.low
        return low, mean + spread if self.high is None else self.high

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published

    @property
    def shown(self) -> str:
        """Our number with its interval, or why there is none, as far as a cell holds it."""
        if self.mean is None:
            return "not run (see above)" if len(self.reason) > LONGEST else self.reason or "–"
        if self.sd is not None:
            return f"{digits(self.mean)} ± {self.sd:.3f} ({self.draws} draws)"
        if self.low is None or self.high is None:
            return digits(self.mean)
        return f"{digits(self.mean)} [{digits(self.low)}, {digits(self.high)}]"

    @property
    def bare(self) -> str:
        """Our number without its interval."""
        return _with_spread(self.mean, self.sd, ".3f")

    @property
    def printed(self) -> str:
        return _with_spread(self.published, self.published_sd)

    @property
    def change(self) -> str:
        return "–" if self.difference is None else digits(self.difference, sign=True)


def _with_spread(mean: float | None, spread: float | None, form: str = "g") -> str:
    if mean is None:
        return "–"
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
        return any(score.mean is not None for row in self.rows.values() for score in row.values())

    @property
    def texts(self) -> int:
        counts = (one.count or 0 for row in self.rows.values() for one in row.values())
        return max(counts, default=0)

    def score(self, method: str, metric: str) -> Score:
        """A method's score, empty where there is none."""
        return self.rows.get(method, {}).get(metric, Score())

    def columns(self, better: Mapping[str, str]) -> Iterator[Column]:
        """The columns behind the method's name; ``better``: metric to which way is better."""
        for metric in self.metrics:
            scores = [row[metric] for row in self.rows.values()]
            ours = [score.mean for score in scores if score.mean is not None]
            printed = [score.published for score in scores if score.published is not None]
            way = better.get(metric, "neither")
            end = {"higher": max, "lower": min}.get(way, lambda _: None)
            best, best_printed = (end(known) if known else None for known in (ours, printed))
            yield Column(metric, ARROWS[way], bool(printed), best, best_printed)
