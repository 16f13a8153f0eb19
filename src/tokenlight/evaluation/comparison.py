"""What changed between two models on the same texts: for the terminal, as JSON, and as a page."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from tokenlight.data.attribution import Attribution
from tokenlight.data.intervals import Interval, to_json_value
from tokenlight.evaluation.results import MIN_TEXTS_FOR_INTERVALS
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.comparison_page import ChangedTextScene, render_comparison

MAX_LISTED_CHARACTERS = 70  # of a text in the terminal; it is cut between words
INTERVAL_TITLES = {
    "accuracy_before": "accuracy of A",
    "accuracy_after": "accuracy of B",
    "accuracy_change": "accuracy, B − A",
    "flip_rate": "predictions changed",
    "rank_correlation": "rank correlation of word scores",
    "aopc_before": "AOPC of A",
    "aopc_after": "AOPC of B",
    "aopc_change": "AOPC, B − A",
}


class ChangedText(NamedTuple):
    """A text on which the two models differ.

    Attributes:
        rank_correlation: Of the word scores of A and B.
        text: The text.
        before: Prediction and strongest words of A.
        after: Prediction and strongest words of B.
        location: Where the text stands in its file; empty if it is not from a file.
        id: The value of its column ``id``; empty without one.
        label: The true label, under the models' name for it; None without one.
    """

    rank_correlation: float
    text: str
    before: str
    after: str
    location: str = ""
    id: str = ""
    label: str | None = None

    def describe_source(self) -> str:
        """Return id, or location, and true label on one line."""
        parts = [f"id {self.id}" if self.id else self.location]
        if self.label is not None:
            parts.append(f"true label {self.label}")
        return to_single_line(", ".join(filter(None, parts)))


@dataclass(frozen=True)
class Comparison:
    """The changes from model A ("before") to model B ("after"), as means over texts with 95 % intervals.

    Attributes:
        method: The method that explained both.
        num_texts: Number of texts that were compared.
        omitted: Texts without words, by their location.
        flip_rate: Share of texts with another prediction.
        rank_correlation: Rank correlation of the word scores.
        aopc_before: AOPC of A.
        aopc_after: AOPC of B.
        aopc_change: AOPC of B − AOPC of A, text by text.
        most_changed: Texts with another prediction or the largest change of focus, with the strongest words
            of both sides.
        attributions: The explanations of these texts, those of A before those of B; not part of the JSON.
        accuracy_before: Accuracy of A on the texts that have a true label; None if none has.
        accuracy_after: Accuracy of B on them.
        accuracy_change: Accuracy of B − accuracy of A.
        models: Names of A and B, with precision and prompt where these tell them apart.
    """

    method: str
    num_texts: int
    omitted: tuple[str, ...]
    flip_rate: Interval
    rank_correlation: Interval
    aopc_before: Interval
    aopc_after: Interval
    aopc_change: Interval
    most_changed: tuple[ChangedText, ...]
    attributions: tuple[Attribution, ...] = ()
    accuracy_before: Interval | None = None
    accuracy_after: Interval | None = None
    accuracy_change: Interval | None = None
    models: tuple[str, str] | None = None

    def _list_intervals(self) -> Iterator[tuple[str, Interval]]:
        """Yield title and value of all that was measured."""
        for name, title in INTERVAL_TITLES.items():
            interval: Interval | None = getattr(self, name)
            if interval is not None:
                yield title, interval

    def list_failures(
        self,
        max_flip_rate: float = 0.01,
        min_rank_correlation: float = 0.8,
        max_aopc_drop: float = 0.02,
    ) -> list[str]:
        """Return one line for each limit that is exceeded.

        Args:
            max_flip_rate: Largest share of changed predictions.
            min_rank_correlation: Smallest mean rank correlation of the word scores.
            max_aopc_drop: Largest drop of the mean AOPC.
        """
        failures = []
        flip_rate = self.flip_rate.mean
        if flip_rate > max_flip_rate:
            failures.append(f"{flip_rate:.1%} of predictions changed (limit {max_flip_rate:.1%})")
        correlation = self.rank_correlation.mean
        if self.rank_correlation.count and correlation < min_rank_correlation:
            failures.append(
                f"the correlation of word scores is only {correlation:.3f} (limit {min_rank_correlation:.3f})"
            )
        aopc_drop = -self.aopc_change.mean
        if self.aopc_change.count and aopc_drop > max_aopc_drop:
            failures.append(f"AOPC fell by {aopc_drop:.3f} (limit {max_aopc_drop:.3f})")
        return failures

    def describe(self) -> Iterator[str]:
        """Yield the models, the numbers line by line, then the texts that changed."""
        for side, name in zip("AB", self.models or (), strict=False):
            yield f"{side}  {to_single_line(name)}"
        intervals = list(self._list_intervals())
        width = max(len(title) for title, _ in intervals) + 2
        for title, interval in intervals:
            yield f"{title:{width}}{interval.mean:z.3f} [{interval.low:z.3f}, {interval.high:z.3f}]"
        if self.num_texts < MIN_TEXTS_FOR_INTERVALS:
            yield f"Only {self.num_texts} texts: a change that none of them shows may still be common."
        if self.most_changed:
            yield "texts that changed most, by the rank correlation of word scores (for A's class):"
        for changed_text in self.most_changed:
            text = textwrap.shorten(
                to_single_line(changed_text.text), MAX_LISTED_CHARACTERS, placeholder=" …"
            )
            yield f"  {changed_text.rank_correlation:+.2f}  {text}"
            source = changed_text.describe_source()
            if source:
                yield f"         {source}"
            yield f"         A {to_single_line(changed_text.before)}"
            yield f"         B {to_single_line(changed_text.after)}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        values = {}
        for name, value in asdict(replace(self, attributions=())).items():
            if name != "attributions" and value is not None:
                values[name] = value
        return dict(to_json_value(values))

    def to_html(self) -> str:
        """Return the intervals and the texts that changed most, coloured by both models, as one HTML page."""
        interval_rows = []
        for title, interval in self._list_intervals():
            interval_rows.append(
                (title, f"{interval.mean:z.3f}", f"{interval.low:z.3f} to {interval.high:z.3f}")
            )
        scenes = []
        for i, changed_text in enumerate(self.most_changed):
            before, after = self.attributions[2 * i : 2 * i + 2]
            scenes.append(
                ChangedTextScene(
                    source=changed_text.describe_source(),
                    rank_correlation=f"{changed_text.rank_correlation:+.2f}",
                    before=before,
                    after=after,
                )
            )
        return render_comparison(
            f"{self.num_texts} texts, explained by {self.method}",
            interval_rows,
            scenes,
            models=self.models,
        )
