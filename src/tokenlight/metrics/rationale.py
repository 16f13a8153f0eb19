"""Rationale: do the scores agree with what people marked as the reason?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._interval import statistic_interval
from tokenlight.metrics._metric import Answers, Case, Measured, Metric, MetricSummary
from tokenlight.metrics._ranking import marked_tokens, ranking, seen_share


class Rationale(Metric):
    r"""Agreement with human rationales: AUPRC, token F1, and IOU F1.

    .. math:: \mathrm{AUPRC} = \sum_n (R_n - R_{n-1})\,\tfrac12(P_n + P_{n-1}), \quad P_0=1, R_0=0

    over the thresholds on the score of tokens that are not special (equal scores fall together);
    P, R: precision and recall against the tokens a person marked. ``area="steps"`` is average precision,
    :math:`\sum_n (R_n - R_{n-1})P_n`. Token F1, the mean of each text's, and IOU F1 select the highest-ranked
    tokens, as many as were marked, or ``share`` of the text; for IOU, a run of selected tokens is right
    where its intersection over union with a marked run is at least ``overlap``. IOU F1 is that of the mean
    precision and recall of runs (``iou_over="macro"``), of the counts of all texts (``"micro"``), or the
    mean of each text's (``"texts"``). ``report`` says which is the value, the others stand beside it, with
    ``seen``: the share of the marked characters that truncation left. DeYoung et al. 2020 (ERASER).
    Differs from the paper: it selects the data set's mean rationale length of each text (``share=…``); we
    select each text's own. Plausibility is not faithfulness: a model may have reasons no person marked.
    """

    report: Literal["auprc", "f1", "iou"] = "auprc"
    share: float | None = None
    overlap: float = 0.5
    area: Literal["trapezoid", "steps"] = "trapezoid"
    iou_over: Literal["macro", "micro", "texts"] = "macro"
    cites = "deyoung2020eraser"
    asides = ("seen",)
    marked = True
    asks = False

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        row, spans = case.attribution.row, case.spans
        if not spans:
            raise BadInput("no rationale is marked in this text.")
        places = case.original.rankable
        gold = marked_tokens(row, spans)[places]
        if not gold.any():
            raise BadInput("the rationale covers no token: it was cut off, or is a blank alone.")
        scores = case.attribution.scores[places]
        count = int(gold.sum()) if self.share is None else max(1, round(self.share * len(gold)))
        chosen = np.zeros(len(gold), dtype=bool)
        chosen[ranking(scores)[:count]] = True
        ours, marked = _runs(chosen), _runs(gold)
        best = [max(len(run & one) / len(run | one) for one in marked) for run in ours]
        right = sum(share >= self.overlap for share in best)
        found = {
            "auprc": area_under(scores, gold, steps=self.area == "steps"),
            "f1": _f1((chosen & gold).sum() / chosen.sum(), (chosen & gold).sum() / gold.sum()),
            "iou": _f1(right / len(ours), right / len(marked)),
            "seen": seen_share(row, spans),
        }
        runs = {"right": right, "selected": len(ours), "marked": len(marked)}
        return Measured(found[self.report], parts=found, detail=runs)

    def summarise(self, measured: Sequence[Measured], *, seed: int = 0, **_: Any) -> MetricSummary:
        found = super().summarise(measured, seed=seed)
        if self.iou_over == "texts" or not measured:
            return found
        names = "right", "selected", "marked"
        table = np.array([[one.detail[name] for name in names] for one in measured], dtype=float)

        def over_texts(chosen: np.ndarray) -> float:
            drawn = table[chosen]  # text count
            drawn = drawn if self.iou_over == "macro" else drawn.sum(0, keepdims=True)
            right, selected, marked = drawn.T
            return _f1((right / selected).mean(), (right / marked).mean())

        iou = statistic_interval(len(table), over_texts, seed=seed)
        iou = replace(iou, low=max(0.0, iou.low), high=min(1.0, iou.high))
        value = iou if self.report == "iou" else found.interval
        return replace(found, interval=value, parts={**found.parts, "iou": iou})


def area_under(scores: np.ndarray, gold: np.ndarray, *, steps: bool = False) -> float:
    """Area under the precision-recall curve, by trapezoids or by steps; equal scores are one
    threshold."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(gold[order])
    last = np.append(np.diff(scores[order]) != 0, True)  # the last token of each threshold
    taken = np.flatnonzero(last) + 1
    precision, recall = hits[last] / taken, hits[last] / gold.sum()
    if not steps:
        precision = (precision + np.append(1.0, precision[:-1])) / 2
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def _f1(precision: float, recall: float) -> float:
    return float(2 * precision * recall / (precision + recall)) if precision and recall else 0.0


def _runs(flags: np.ndarray) -> list[set[int]]:
    """Maximal runs of true, as sets of positions."""
    places = np.flatnonzero(flags)
    return [set(run.tolist()) for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)]
