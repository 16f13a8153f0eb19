"""Judge the claims of a paper on our numbers: which hold, which do not, and which cannot be decided here."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.values import Panel, format_number
from tokenlight.bench.suite_entries import Claim
from tokenlight.data.attribution import Attribution
from tokenlight.data.intervals import Interval, bootstrap_mean
from tokenlight.errors import join_first
from tokenlight.files.parsing import parse_json

MIN_CONTROL_GAP = 1e-3  # of a metric: a control that is no further away counts as the same
NUM_CONTROL_DEVIATIONS = 2  # repeated runs count as different beyond this many standard deviations
# Verdict on one panel → words of the report, in the order of the report.
VERDICT_PHRASES = {
    "holds": "holds",
    "weakly": "holds, but the difference may be due to chance",
    "ties": "a tie",
    "undecided": "undecided: behind, but the difference may be due to chance",
    "fails": "does not hold",
    "untestable": "cannot be tested here",
}


class PanelVerdict(NamedTuple):
    """Verdict on a claim for one panel: a key of ``VERDICT_PHRASES`` or "not run", and why."""

    panel: str
    verdict: str
    reason: str


Verdict = tuple[str, str]  # a verdict and its reason, before the panel is known


def judge_claims(report: SuiteReport) -> list[tuple[str, str, str]]:
    """Judge every claim of the suite.

    Returns:
        For each claim its text, a verdict in a few words, and the details for each panel.
    """
    judge = ClaimJudge(report)
    judged = []
    for claim in report.suite.claims:
        if not claim.untestable_because and not claim.method:
            continue
        verdicts = list(judge.judge(claim))
        if verdicts:
            judged.append(
                (claim.claim, _summarize_verdicts(verdicts), _describe_verdicts(verdicts))
            )
    return judged


def _summarize_verdicts(verdicts: Sequence[PanelVerdict]) -> str:
    """Summarize the verdicts of all panels in a few words."""
    kinds = [verdict.verdict for verdict in verdicts]
    counts = Counter(kind for kind in kinds if kind not in ("not run", "untestable"))
    if not counts:
        return VERDICT_PHRASES["untestable"] if "untestable" in kinds else "not run"
    if set(counts) == {"weakly"}:
        return "holds weakly"
    if len(counts) == 1:
        (only_kind,) = counts
        return VERDICT_PHRASES[only_kind].partition(":")[0]
    return _summarize_mixed_verdicts(counts)


def _summarize_mixed_verdicts(counts: Counter[str]) -> str:
    num_holding = counts["holds"] + counts["weakly"]
    num_open = counts["ties"] + counts["undecided"]
    is_mixed = counts["fails"] > 0 or (num_holding > 0 and num_open > 0)
    if not is_mixed:
        return "holds weakly" if num_holding else "undecided"
    summary = f"holds on {num_holding} of {counts.total()}"
    if num_open:
        summary += f", undecided on {num_open}"
    return summary


def _describe_verdicts(verdicts: Sequence[PanelVerdict]) -> str:
    """List the panels with their reasons, from panels where the claim holds to those not run."""
    descriptions = []
    for kind, phrase in VERDICT_PHRASES.items():
        for verdict in verdicts:
            if verdict.verdict == kind:
                prefix = f"{verdict.panel}: " if verdict.panel else ""
                descriptions.append(f"{prefix}{phrase} ({verdict.reason})")
    panels_not_run = [verdict.panel for verdict in verdicts if verdict.verdict == "not run"]
    if panels_not_run:
        descriptions.append(f"not run: {join_first(panels_not_run, 6)}")
    return "; ".join(descriptions)


@dataclass(frozen=True)
class ClaimJudge:
    """Judges claims. Methods are compared text by text, so that hard texts do not blur the difference."""

    report: SuiteReport

    def judge(self, claim: Claim) -> Iterator[PanelVerdict]:
        """Yield the verdict on every panel that a claim is about."""
        if claim.untestable_because:
            yield PanelVerdict("", "untestable", claim.untestable_because)
            return
        for panel in self.report.panels:
            if claim.data and panel.data not in claim.data:
                continue
            if claim.highest_token:
                verdict, reason = self._judge_extremes(claim, panel)
                yield PanelVerdict(panel.title, verdict, reason)
            elif claim.metric in panel.metrics:
                verdict, reason = self._judge_metric(claim, panel)
                yield PanelVerdict(panel.title, verdict, reason)

    def _judge_extremes(self, claim: Claim, panel: Panel) -> Verdict:
        """Judge which tokens of the stored text have the highest and the lowest score."""
        attribution = self._read_stored_attribution(panel, claim.method)
        if attribution is None:
            return "not run", panel.reason or "no text was stored"
        # Special tokens are left out: the claims are about words.
        scores: dict[str, float] = {}
        for i, is_special in enumerate(attribution.row.special_tokens_mask):
            if not is_special:
                scores[attribution.tokens[i]] = float(attribution.scores[i])
        missing_tokens = {claim.highest_token, claim.lowest_token} - scores.keys()
        if missing_tokens:
            return "not run", f"no token {' or '.join(sorted(missing_tokens))} in the text"
        largest_magnitude = max(map(abs, scores.values())) or 1.0

        def format_score(token: str) -> str:
            return f"{token} {scores[token] / largest_magnitude:+.2f}"

        highest = max(scores, key=scores.__getitem__)
        lowest = min(scores, key=scores.__getitem__)
        reason = (
            f"{format_score(claim.highest_token)}, {format_score(claim.lowest_token)}; "
            f"highest {format_score(highest)}, lowest {format_score(lowest)}"
        )
        holds = highest == claim.highest_token and lowest == claim.lowest_token
        if holds:
            return "holds", reason
        return "fails", reason

    def _read_stored_attribution(self, panel: Panel, method: str) -> Attribution | None:
        rows = self.report.run_folder.iter_rows(model=panel.model, data=panel.data, method=method)
        for row in rows:
            if row.get("attribution"):
                return Attribution.from_dict(parse_json(row["attribution"]))
        return None

    def _judge_metric(self, claim: Claim, panel: Panel) -> Verdict:
        """Judge whether a method beats others in a metric, as far as there are numbers."""
        # Collect the numbers; a claim is judged on the rivals that have one.
        means: dict[str, float] = {}
        missing_methods = []
        for method in (claim.method, *claim.baselines):
            mean = panel.get_score(method, claim.metric).mean
            if mean is None:
                missing_methods.append(method)
            else:
                means[method] = mean
        rivals = {method: mean for method, mean in means.items() if method != claim.method}
        if claim.method not in means or not rivals:
            return "not run", panel.reason or f"no number for {', '.join(missing_methods)}"
        if claim.max_point:
            return self._judge_curve(claim, panel, list(rivals))
        # A method that does what its control does proves nothing about the difference between the two.
        control_reason = self._find_control_reason(claim, panel)
        if control_reason:
            return "untestable", control_reason
        return self._judge_means(claim, panel, means[claim.method], rivals, missing_methods)

    def _find_control_reason(self, claim: Claim, panel: Panel) -> str:
        """Return why the claim cannot be tested: the method and its control do not differ."""
        gap = self._mean_difference(panel, claim.method, claim.control, claim.metric)
        if gap is None:
            return ""
        is_same = abs(gap.mean) <= MIN_CONTROL_GAP or _contains_zero(gap)
        if not is_same:
            return ""
        return f"{claim.method} and {claim.control} differ by only {_format_interval(gap)}"

    def _judge_means(
        self,
        claim: Claim,
        panel: Panel,
        our_mean: float,
        rivals: Mapping[str, float],
        missing_methods: Sequence[str],
    ) -> Verdict:
        """Compare with the best rival."""
        sign = self.report.get_direction_sign(claim.metric)
        rival = max(rivals, key=lambda method: sign * rivals[method])
        rival_mean = rivals[rival]
        gap = self._mean_difference(panel, claim.method, rival, claim.metric)
        # The reason shows the numbers that the verdict rests on.
        reason = f"{claim.method} {format_number(our_mean)}, {rival} {format_number(rival_mean)}"
        if gap is not None:
            reason += f", difference {_format_interval(gap)}"
        if missing_methods:
            reason += f" (no number for {', '.join(missing_methods)})"
        if claim.min_percent:
            lead = 100 * sign * (our_mean - rival_mean) / abs(rival_mean)
            reason += f", ahead by {lead:+.2f} %"
            if 0 < lead < claim.min_percent:  # ahead, but by less than is claimed
                return "fails", reason
        may_be_chance = self._may_be_chance(claim, panel, rival, gap)
        if our_mean == rival_mean:
            return "ties", reason
        if sign * our_mean < sign * rival_mean:
            verdict = "undecided" if may_be_chance else "fails"
        else:
            verdict = "weakly" if may_be_chance else "holds"
        return verdict, reason

    def _may_be_chance(self, claim: Claim, panel: Panel, rival: str, gap: Interval | None) -> bool:
        """Return whether the difference may be chance: its interval holds 0, or both intervals overlap."""
        if gap is not None:
            return _contains_zero(gap)
        our_low, our_high = panel.get_score(claim.method, claim.metric).get_bounds(
            NUM_CONTROL_DEVIATIONS
        )
        rival_low, rival_high = panel.get_score(rival, claim.metric).get_bounds(
            NUM_CONTROL_DEVIATIONS
        )
        return our_low <= rival_high and rival_low <= our_high

    def _judge_curve(self, claim: Claim, panel: Panel, rivals: Sequence[str]) -> Verdict:
        """Judge every point of the curve up to ``until``: ahead, or behind but within the intervals."""
        sign = self.report.get_direction_sign(claim.metric)
        rows = self._index_curves(panel, claim.metric)
        points = sorted({point for _, point in rows if 0 < point <= claim.max_point})
        verdict = "holds"
        for point in points:
            ours = rows.get((claim.method, point))
            for rival in rivals:
                theirs = rows.get((rival, point))
                if ours is None or theirs is None:
                    continue
                if sign * ours["mean"] >= sign * theirs["mean"]:
                    continue
                if ours["high"] < theirs["low"] or theirs["high"] < ours["low"]:
                    return "fails", f"{rival} is ahead at {100 * point:.0f} %"
                verdict = "weakly"
        return verdict, f"{claim.method} up to {100 * claim.max_point:.0f} %"

    def _index_curves(
        self, panel: Panel, metric: str
    ) -> dict[tuple[str, float], Mapping[str, Any]]:
        """Return the rows of the curves of a panel by method and point."""
        identifiers = {"model": panel.model, "data": panel.data, "metric": metric}
        rows: dict[tuple[str, float], Mapping[str, Any]] = {}
        for row in self.report.tables.curves:
            if identifiers.items() <= row.items():
                rows[row["method"], row["point"]] = row
        return rows

    def _mean_difference(
        self, panel: Panel, first_row: str, second_row: str, metric: str
    ) -> Interval | None:
        """Return the mean difference over texts that both rows have, with its interval."""
        first_values = self._row_values(panel, first_row, metric)
        second_values = self._row_values(panel, second_row, metric)
        common_texts = sorted(first_values.keys() & second_values.keys())
        if len(common_texts) < 2:
            return None
        differences = [first_values[text] - second_values[text] for text in common_texts]
        return bootstrap_mean(differences, seed=self.report.suite.seed)

    def _row_values(self, panel: Panel, row: str, metric: str) -> dict[int, float]:
        """Return the value of each text; for repeated runs the mean over runs, on texts that all have."""
        runs = []
        for method, method_row in self.report.suite.row_by_method.items():
            key = (panel.model, panel.data, method, metric)
            if method_row == row and key in self.report.tables.text_values:
                runs.append(self.report.tables.text_values[key])
        if not runs:
            return {}
        common_texts = set(runs[0]).intersection(*runs)
        return {text: fmean(run[text] for run in runs) for text in common_texts}


def _contains_zero(interval: Interval) -> bool:
    return interval.low <= 0 <= interval.high


def _format_interval(gap: Interval) -> str:
    return f"{format_number(gap.low, sign=True)} … {format_number(gap.high, sign=True)}"
