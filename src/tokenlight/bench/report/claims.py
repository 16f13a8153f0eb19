"""What holds: the paper's claims on our numbers, and how far our order of methods is the printed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from tokenlight.bench.entries import Claim
from tokenlight.bench.report.values import Number, Panel, Ranking, Verdict, digits
from tokenlight.bench.suite import Suite
from tokenlight.metrics._interval import Interval, mean_interval

FEWEST = 3  # methods below which an order says nothing
Texts = Mapping[tuple[str, str, str, str], Mapping[int, float]]


def verdicts(
    suite: Suite, panels: Sequence[Panel], better: Mapping[str, str], texts: Texts
) -> dict[str, tuple[Verdict, ...]]:
    """For each claim of the suite what became of it on every panel it speaks of.

    ``texts``: numbers of single texts, by (model, data, method, metric). Methods are compared on the
    texts that both have: what is hard in a text is hard for both, and falls out of the difference.
    """
    members: dict[str, list[str]] = {}
    for label, row in suite.row_of.items():
        members.setdefault(row, []).append(label)

    def compared(panel: Panel, one: str, other: str, metric: str) -> Interval | None:
        mine, theirs = (
            _of_row(texts, (panel.model, panel.data), members.get(row, []), metric)
            for row in (one, other)
        )
        both = sorted(mine.keys() & theirs.keys())
        gaps = [mine[text] - theirs[text] for text in both]
        return mean_interval(gaps, seed=suite.seed) if len(gaps) > 1 else None

    return {
        claim.claim: tuple(
            _verdict(claim, panel, better, compared)
            for panel in panels
            if claim.metric in panel.metrics and (not claim.data or panel.data in claim.data)
        )
        for claim in suite.expect
        if claim.metric and claim.better
    }


def _of_row(
    texts: Texts, pair: tuple[str, str], labels: Sequence[str], metric: str
) -> dict[int, float]:
    """The numbers of a row's texts: of several draws the mean, of texts that all of them have."""
    found = [texts.get((*pair, label, metric)) for label in labels]
    draws = [one for one in found if one is not None]
    if not draws:
        return {}
    common = set(draws[0]).intersection(*draws)
    return {text: fmean(one[text] for one in draws) for text in common}


def _verdict(
    claim: Claim,
    panel: Panel,
    better: Mapping[str, str],
    compared: Callable[[Panel, str, str, str], Interval | None],
) -> Verdict:
    sign = -1.0 if better[claim.metric] == "lower" else 1.0
    ours = panel.score(claim.better, claim.metric).ours
    others = {name: panel.score(name, claim.metric).ours for name in claim.than}
    known = {name: number for name, number in others.items() if number is not None}
    if ours is None or not known:
        missing = claim.better if ours is None else ", ".join(claim.than)
        why = panel.reason or f"no number for {missing}"
        return Verdict(panel.title, "not run", why)
    rival, best = max(known.items(), key=lambda pair: sign * pair[1].mean)
    gap = compared(panel, claim.better, rival, claim.metric)
    words = f"{claim.better} {digits(ours.mean)}, {rival} {digits(best.mean)}"
    if gap is not None:
        edges = f"{digits(gap.low, sign=True)} … {digits(gap.high, sign=True)}"
        words += f", difference {edges}"
    absent = [name for name, number in others.items() if number is None]
    words += f" (no number for {', '.join(absent)})" if absent else ""
    if ours.mean == best.mean:
        return Verdict(panel.title, "ties", words)
    if sign * ours.mean < sign * best.mean:
        return Verdict(panel.title, "fails", words)
    chance = _overlap(ours, best) if gap is None else gap.low <= 0 <= gap.high
    return Verdict(panel.title, "weakly" if chance else "holds", words)


def _overlap(one: Number, other: Number) -> bool:
    """Whether the two intervals share a value; draws count as far as two standard deviations."""
    (low_one, high_one), (low_other, high_other) = one.edges(2), other.edges(2)
    return low_one <= high_other and low_other <= high_one


def ranked(panels: Sequence[Panel], better: Mapping[str, str]) -> Iterator[Ranking]:
    """Rank correlation with the printed order, wherever three methods or more have both numbers."""
    from scipy.stats import kendalltau, spearmanr

    for panel in panels:
        for metric in panel.metrics:
            both = {
                method: (entry.ours.mean, entry.published)
                for method, row in panel.rows.items()
                if (entry := row[metric]).ours is not None and entry.published is not None
            }
            if len(both) < FEWEST:
                continue
            ours = [mine for mine, _ in both.values()]
            printed = [number for _, number in both.values()]
            if len(set(ours)) < 2 or len(set(printed)) < 2:
                continue
            kendall = float(kendalltau(ours, printed).statistic)
            spearman = float(spearmanr(ours, printed).statistic)
            sign = -1.0 if better.get(metric) == "lower" else 1.0
            best = max(both, key=lambda name: sign * both[name][1])
            place = 1 + sum(sign * mine > sign * both[best][0] for mine in ours)
            yield Ranking(panel.title, metric, len(both), kendall, spearman, best, place)
