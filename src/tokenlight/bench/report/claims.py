"""Which of a paper's claims hold on our numbers, which do not, and which no number here can decide."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from tokenlight.bench.entries import Claim
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.values import Panel, digits
from tokenlight.data.attribution import Attribution
from tokenlight.errors import few
from tokenlight.files.documents import json_of
from tokenlight.metrics._interval import Interval, mean_interval

ALIKE = 1e-3  # of a metric: a control that is no further away is the same
HOLDS = {
    "holds": "holds",
    "weakly": "holds, but within chance",
    "ties": "a tie",
    "undecided": "undecided: behind, but within chance",
    "fails": "does not hold",
    "untestable": "cannot be tested here",
}
# What became of a claim on one panel: its title, a key of HOLDS or "not run", and why.
Verdict = tuple[str, str, str]


def claims(report: SuiteReport) -> list[tuple[str, str, str]]:
    """For each claim of the suite: the claim, a verdict in a word or two, and the detail."""
    asked = [one for one in report.suite.expect if one.cannot or one.better]
    found = [(one.claim, list(Judge(report).verdicts(one))) for one in asked]
    return [(claim, _verdict(own), _detail(own)) for claim, own in found if own]


def _verdict(verdicts: Sequence[Verdict]) -> str:
    kinds = [verdict for _, verdict, _ in verdicts]
    found = Counter(one for one in kinds if one not in ("not run", "untestable"))
    if not found:
        return HOLDS["untestable"] if "untestable" in kinds else "not run"
    if len(found) == 1:
        (only,) = found
        return "holds weakly" if only == "weakly" else HOLDS[only].partition(":")[0]
    good, open_ones = found["holds"] + found["weakly"], found["ties"] + found["undecided"]
    if not found["fails"] and not (good and open_ones):
        return "holds weakly" if good else "undecided"
    words = f"holds on {good} of {found.total()}"
    return f"{words}, undecided on {open_ones}" if open_ones else words


def _detail(verdicts: Sequence[Verdict]) -> str:
    told = []
    for kind, words in HOLDS.items():
        alike = [(panel, why) for panel, verdict, why in verdicts if verdict == kind]
        told += [f"{panel}: {words} ({why})".removeprefix(": ") for panel, why in alike]
    missing = [panel for panel, verdict, _ in verdicts if verdict == "not run"]
    return "; ".join([*told, f"not run: {few(missing, 6)}"] if missing else told)


@dataclass(frozen=True)
class Judge:
    """Compares methods text by text: what is hard for both falls out of the difference."""

    report: SuiteReport

    def verdicts(self, claim: Claim) -> Iterator[Verdict]:
        """What becomes of a claim on every panel it speaks of."""
        if claim.cannot:
            yield "", "untestable", claim.cannot
            return
        for panel in self.report.panels:
            if claim.data and panel.data not in claim.data:
                continue
            if claim.highest:
                yield panel.title, *self._read(claim, panel)
            elif claim.metric in panel.metrics:
                yield panel.title, *self._compared(claim, panel)

    def _read(self, claim: Claim, panel: Panel) -> tuple[str, str]:
        """Of the kept text: which of its tokens has the highest score, which the lowest."""
        rows = self.report.run.rows(model=panel.model, data=panel.data, method=claim.better)
        kept = next((row["attribution"] for row in rows if row.get("attribution")), None)
        if kept is None:
            return "not run", panel.reason or "no text was kept"
        found = Attribution.from_dict(json_of(kept))
        places = [i for i, special in enumerate(found.row.special) if not special]
        named = {found.tokens[i]: float(found.scores[i]) for i in places}
        ends = (claim.highest, claim.lowest)
        if absent := set(ends) - set(named):
            return "not run", f"no token {' or '.join(sorted(absent))} in the text"
        most = max(map(abs, named.values())) or 1.0
        top, last = max(named, key=named.__getitem__), min(named, key=named.__getitem__)
        shown = (f"{one} {named[one] / most:+.2f}" for one in (*ends, top, last))
        words = "{}, {}; highest {}, lowest {}".format(*shown)
        return "holds" if (top, last) == ends else "fails", words

    def _compared(self, claim: Claim, panel: Panel) -> tuple[str, str]:
        scores = {name: panel.score(name, claim.metric) for name in (claim.better, *claim.than)}
        known = {name: one.mean for name, one in scores.items() if one.mean is not None}
        absent = [name for name in scores if name not in known]
        ours, sign = known.pop(claim.better, None), self._sign(claim)
        if ours is None or not known:
            return "not run", panel.reason or f"no number for {', '.join(absent)}"
        if claim.until:
            return self._along(claim, panel, list(known))
        control = self._gap(panel, claim.better, claim.control, claim.metric)
        if control is not None and (abs(control.mean) <= ALIKE or control.low <= 0 <= control.high):
            differ = f"{claim.better} and {claim.control} differ by {_edges(control)} only"
            return "untestable", differ
        rival, best = max(known.items(), key=lambda pair: sign * pair[1])
        gap = self._gap(panel, claim.better, rival, claim.metric)
        words = f"{claim.better} {digits(ours)}, {rival} {digits(best)}"
        words += f", difference {_edges(gap)}" if gap is not None else ""
        words += f" (no number for {', '.join(absent)})" if absent else ""
        ahead = 100 * sign * (ours - best) / abs(best) if claim.by else 0.0
        words += f", ahead by {ahead:+.2f} %" if claim.by else ""
        if gap is not None:
            chance = gap.low <= 0 <= gap.high
        else:  # do the two intervals share a value? Draws count as far as two standard deviations.
            (low, high), (least, most) = (scores[one].edges(2) for one in (claim.better, rival))
            chance = low <= most and least <= high
        if 0 < ahead < claim.by:  # ahead, but not by as much as is claimed
            return "fails", words
        if sign * ours < sign * best:
            return "undecided" if chance else "fails", words
        return "ties" if ours == best else "weakly" if chance else "holds", words

    def _along(self, claim: Claim, panel: Panel, rivals: Sequence[str]) -> tuple[str, str]:
        """At every point of the curve up to ``until``: ahead, or behind by no more than the intervals."""
        sign, verdict = self._sign(claim), "holds"
        names = {"model": panel.model, "data": panel.data, "metric": claim.metric}.items()
        curves = [row for row in self.report.tables.curves if names <= row.items()]
        at = {(row["method"], row["point"]): row for row in curves}
        for point in sorted({point for _, point in at if 0 < point <= claim.until}):
            for rival in rivals:
                mine, theirs = at.get((claim.better, point)), at.get((rival, point))
                if not mine or not theirs or sign * mine["mean"] >= sign * theirs["mean"]:
                    continue
                if mine["high"] < theirs["low"] or theirs["high"] < mine["low"]:
                    return "fails", f"{rival} is ahead at {100 * point:.0f} %"
                verdict = "weakly"
        return verdict, f"{claim.better} up to {100 * claim.until:.0f} %"

    def _sign(self, claim: Claim) -> float:
        return -1.0 if self.report.better[claim.metric] == "lower" else 1.0

    def _gap(self, panel: Panel, one: str, other: str, metric: str) -> Interval | None:
        mine, theirs = (self._of_row(panel, row, metric) for row in (one, other))
        both = sorted(mine.keys() & theirs.keys())
        gaps = [mine[text] - theirs[text] for text in both]
        return mean_interval(gaps, seed=self.report.suite.seed) if len(gaps) > 1 else None

    def _of_row(self, panel: Panel, row: str, metric: str) -> dict[int, float]:
        """The numbers of a row's texts: of several draws the mean, of texts that all of them have."""
        labels = [label for label, own in self.report.suite.row_of.items() if own == row]
        keys = [(panel.model, panel.data, label, metric) for label in labels]
        draws = [self.report.tables.texts[key] for key in keys if key in self.report.tables.texts]
        if not draws:
            return {}
        common = set(draws[0]).intersection(*draws)
        return {text: fmean(one[text] for one in draws) for text in common}


def _edges(gap: Interval) -> str:
    return f"{digits(gap.low, sign=True)} … {digits(gap.high, sign=True)}"
