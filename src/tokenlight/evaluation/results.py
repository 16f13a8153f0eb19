"""Evaluation: how faithful explanations are, per text and on average, with intervals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenlight.data.intervals import Interval, to_json_value
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.errors.arguments import checked
from tokenlight.evaluation.aggregate import (
    compute_agreement,
    compute_differences,
    count_skip_reasons,
    format_table,
    group_measurements,
    make_row,
)
from tokenlight.evaluation.agreement import Agreement
from tokenlight.evaluation.corpus import DocumentFrequencies
from tokenlight.evaluation.coverage import (
    Omission,
    collect_omissions,
    describe_truncation,
    merge_omissions,
    summarize_truncation,
)
from tokenlight.evaluation.measurement_records import Failure, Record
from tokenlight.evaluation.ranking_stability import check_ranking_stability
from tokenlight.evaluation.replacement_tokens import list_replacement_warnings
from tokenlight.files.write import dump_json, write_errors_as_unwritable, write_parquet, write_text
from tokenlight.metrics.base import Metric, MetricSummary
from tokenlight.perturb.variants import ReplacementIds

if TYPE_CHECKING:
    from pandas import DataFrame


MIN_TEXTS_FOR_INTERVALS = 20  # intervals over fewer texts are rough
Curve = tuple[tuple[float, ...], tuple[Interval, ...]]  # points, and the mean at each


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Measurements of many explanations, with their means over texts.

    ``summary[metric]["mean" | "low" | "high"]`` is the mean over texts with its 95 % bootstrap interval.
    Explanations of one text, for several classes or by several methods, are averaged first, since texts are
    the sample and not classes. ``by_method[name]`` is the same for one method.

    Attributes:
        records: One record for each explanation.
        metrics: Metrics by key.
        seed: Seed of the intervals.
        document_frequencies: Frequencies of tokens in a corpus, for metrics that read one.
        failures: Texts and methods without a record.
        metadata: Settings of the evaluation, for the report.
        replacement_ids: Tokens with which this model replaces removed ones, if they are known.

    Example:
        >>> from tokenlight import Explainer
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> texts = ["A warm and funny film.", "Dull, and far too long."]
        >>> attributions = explainer.explain(texts, ["attcat", "random"])
        >>> evaluation = explainer.evaluate(attributions, "aopc")
        >>> evaluation.methods
        ('attcat', 'random')
        >>> sorted(evaluation.summary["aopc"])
        ['better', 'count', 'high', 'low', 'mean', 'skipped']
    """

    records: tuple[Record, ...]
    metrics: Mapping[str, Metric]
    seed: int = 0
    document_frequencies: Mapping[str, DocumentFrequencies] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    replacement_ids: ReplacementIds | None = None

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order they were given."""
        return tuple(dict.fromkeys(record.method for record in self.records))

    @cached_property
    def by_method(self) -> dict[str, Evaluation]:
        """One Evaluation for each method."""
        parts = {}
        for name in self.methods:
            records = tuple(record for record in self.records if record.method == name)
            failures = tuple(failure for failure in self.failures if failure.method == name)
            parts[name] = replace(self, records=records, failures=failures)
        return parts

    @cached_property
    def _summaries(self) -> dict[str, MetricSummary]:
        summaries = {}
        for key, metric in self.metrics.items():
            # Combine the explanations of each text, then summarize over texts.
            groups = group_measurements(self.records, key)
            text_measurements = [metric.combine(group) for group in groups]
            frequencies = self.document_frequencies.get(key)
            summaries[key] = metric.summarize(
                text_measurements, seed=self.seed, frequencies=frequencies
            )
        return summaries

    @cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Mean, low, high and count of each metric and of its parts (``rationale.f1``)."""
        entries: dict[str, dict[str, Any]] = {}
        for key, summary in self._summaries.items():
            metric = self.metrics[key]
            entries[key] = {
                **asdict(summary.interval),
                "skipped": self.skip_reasons.get(key, {}),
                "better": metric.direction,
            }
            for part, interval in summary.parts.items():
                direction = "neither" if part in metric.informational else metric.direction
                entries[f"{key}.{part}"] = {**asdict(interval), "better": direction}
        return entries

    @cached_property
    def differences(self) -> dict[str, dict[str, Interval]]:
        """For each metric, the difference of every other method from the first, text by text.

        It is a mean over the texts on which both were measured. A text that was explained for several targets
        counts with its mean over these.
        """
        differences = {}
        for key in self.metrics:
            differences[key] = compute_differences(self.records, key, self.methods, self.seed)
        return differences

    @cached_property
    def skip_reasons(self) -> dict[str, dict[str, int]]:
        """For each metric, the reasons with the number of explanations skipped for them."""
        return count_skip_reasons(self.records)

    @cached_property
    def omissions(self) -> list[Omission]:
        """Texts not explained or not measured; what several methods or texts share is listed once."""
        return merge_omissions(collect_omissions(self.records, self.failures))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Caveats about the results, one sentence each.

        Texts that were truncated, tokens that replace a [MASK] or [PAD] that the model does not have, and
        rankings of methods that depend on the replacement of removed tokens.
        """
        # Texts cut off, then replacement tokens, then unstable rankings.
        truncation = describe_truncation(summarize_truncation(self.records, self.failures))
        replacements = list_replacement_warnings(self.metrics, self.replacement_ids)
        means: dict[str, dict[str, float]] = {}
        for key in self.metrics:
            means[key] = {name: part.summary[key]["mean"] for name, part in self.by_method.items()}
        unstable_orders = []
        for is_stable, sentence in check_ranking_stability(
            self.metrics, means, self.replacement_ids
        ):
            if not is_stable:
                unstable_orders.append(sentence)
        return tuple(filter(None, (truncation, *replacements, *unstable_orders)))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The warnings, then what the numbers do not cover: texts not explained or not measured."""
        return (*self.warnings, *map(str, self.omissions))

    @cached_property
    def _num_texts(self) -> int:
        return len({record.text_index for record in self.records})

    @cached_property
    def sample_size_warning(self) -> str:
        """One sentence if there are few texts, else an empty string."""
        if not 0 < self._num_texts < MIN_TEXTS_FOR_INTERVALS:
            return ""
        return (
            f"Only {self._num_texts} texts: the intervals are rough. Give {MIN_TEXTS_FOR_INTERVALS} or more "
            "to compare methods."
        )

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """For each metric with a curve: its points on the x-axis, and the mean at each."""
        curves = {}
        for key, summary in self._summaries.items():
            if summary.curve:
                # A metric without points of its own is drawn over 0, 1, 2, ….
                indices = tuple(map(float, range(len(summary.curve))))
                curves[key] = (self.metrics[key].curve_points or indices, summary.curve)
        return curves

    @cached_property
    def agreement(self) -> Agreement:
        """Rank correlation between every two methods on the same texts.

        Raises:
            BadInput: There is only one method.
        """
        if len(self.methods) < 2:
            raise BadInput(
                "Agreement compares methods, but there is only one. Evaluate two or more methods.",
                code="agreement-of-one-method",
            )
        return compute_agreement(self.records, self.methods, self.seed)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One flat row per explanation: its numbers, their parts and curves, or why there are none."""
        return [make_row(record, self.metrics) for record in self.records]

    def to_pandas(self) -> DataFrame:
        """Return the rows as a data frame."""
        pandas: Any = MissingExtra.import_or_raise("pandas", "bench", "to_pandas()")
        frame: DataFrame = pandas.DataFrame.from_records(self.rows)
        return frame

    def describe_differences(self) -> Iterator[str]:
        """Yield how much each method differs from the first, and a warning if there are few texts."""
        if len(self.methods) > 1:
            first_method = self.methods[0]
            yield (
                f"\ndifference from {first_method}, text by text (an interval that contains 0 shows no "
                "difference):"
            )
            for metric, intervals in self.differences.items():
                for name, interval in intervals.items():
                    mean = f"{interval.mean:+z.3f} [{interval.low:+z.3f}, {interval.high:+z.3f}]"
                    is_significant = not interval.low <= 0 <= interval.high
                    remark = "  (0 is outside)" if is_significant else ""
                    yield f"  {name}  {metric} {mean}{remark}"
        if self.sample_size_warning:
            yield self.sample_size_warning

    def format_table(self) -> str:
        """Return methods × metrics as text: mean [low, high]; the arrow says which direction is better."""
        summaries = {name: part.summary for name, part in self.by_method.items()}
        num_texts = {name: part._num_texts for name, part in self.by_method.items()}
        return format_table(summaries, num_texts)

    def __repr__(self) -> str:
        return f"<Evaluation of {len(self.records)} explanations>\n{self.format_table()}"

    def _repr_html_(self) -> str:
        from tokenlight.evaluation.report import render_fragment

        return render_fragment(self)

    def plot(self) -> Any:
        """Return the curves as a figure of matplotlib."""
        from tokenlight.evaluation.report import draw_figure

        return draw_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Return summary, curves, agreement and differences as JSON values, without the rows."""
        parts = self.by_method
        pairs = self.agreement.pairs if len(parts) > 1 else {}
        omissions = collect_omissions(self.records, self.failures)
        values = {
            "methods": {name: part.summary for name, part in parts.items()},
            "curves": {name: _curves_to_dict(part.curves) for name, part in parts.items()},
            "agreement": {f"{a} · {b}": interval for (a, b), interval in pairs.items()},
            "differences": {key: gaps for key, gaps in self.differences.items() if gaps},
            "metrics": {key: metric.display_name for key, metric in self.metrics.items()},
            "seed": self.seed,
            "truncation": summarize_truncation(self.records, self.failures),
            "sample_size_warning": self.sample_size_warning,
            "warnings": self.warnings,
            "omissions": [omission.to_dict() for omission in omissions],
            "metadata": self.metadata,
        }
        return dict(to_json_value(values))

    @checked
    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the evaluation into ``folder``.

        Args:
            folder: Where to write rows.parquet, summary.json, report.html and, if a metric has a curve,
                curves.png. It is created if it does not exist.

        Returns:
            The folder.

        Raises:
            Unwritable: The folder cannot be written.
        """
        from tokenlight.evaluation.report import save_report

        path = Path(folder)
        with write_errors_as_unwritable(path):
            path.mkdir(parents=True, exist_ok=True)
            # First the file that needs no optional library.
            write_text(path / "summary.json", dump_json(self.to_dict(), indent=1))
            write_parquet(path / "rows.parquet", self.rows)
            save_report(self, path)
        return path


def _curves_to_dict(curves: Mapping[str, Curve]) -> dict[str, Any]:
    return {key: {"points": points, "means": means} for key, (points, means) in curves.items()}
