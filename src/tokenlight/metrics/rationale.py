"""Rationale: do the scores agree with what people marked as the reason?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tokenlight.data.annotations import find_annotated_tokens, visible_share
from tokenlight.data.intervals import bootstrap_statistic
from tokenlight.metrics.base import MetricSummary
from tokenlight.plugin import BadInput, Case, Measurement, Metric, VariantOutputs, rank_positions


class Rationale(Metric):
    r"""Agreement with human rationales: AUPRC, token F1, and IOU F1.

    .. math:: \mathrm{AUPRC} = \sum_n (R_n - R_{n-1})\,\tfrac12(P_n + P_{n-1}), \quad P_0=1, R_0=0

    over the thresholds on the scores of tokens that are not special (equal scores are one threshold); P and
    R are precision and recall against the tokens that a person marked. ``area="steps"`` is average
    precision, :math:`\sum_n (R_n - R_{n-1})P_n`. Token F1 and IOU F1 select the highest-ranked tokens, as
    many as were marked, or ``share`` of the text. Token F1 is the mean over texts. For IOU, a run of
    selected tokens is correct if its intersection over union with a marked run is at least ``overlap``; IOU
    F1 is that of the mean precision and recall of runs (``iou_over="macro"``), of the counts of all texts
    (``"micro"``), or the mean over texts (``"texts"``). ``report`` chooses the value, and the others are
    parts, with ``seen``: the share of the marked characters that truncation left. Higher is better. DeYoung
    et al. 2020 (ERASER).
    Differs from the paper: it selects the mean rationale length of the data set in each text (``share=…``);
    here it is the length of each text's own rationale. Plausibility is not faithfulness: a model may have
    reasons that no person marked.
    """

    report: Literal["auprc", "f1", "iou"] = "auprc"
    share: float | None = None
    overlap: float = 0.5
    area: Literal["trapezoid", "steps"] = "trapezoid"
    iou_over: Literal["macro", "micro", "texts"] = "macro"
    cites = "deyoung2020eraser"
    informational = ("seen",)
    needs_spans = True
    needs_model = False

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        row = case.attribution.row
        spans = case.spans
        if not spans:
            raise BadInput(
                "The text has no marked rationale. Give spans for it, or leave it out.",
                code="no-rationale",
            )
        positions = case.perturber.rankable_positions
        is_marked = find_annotated_tokens(row, spans)[positions]
        if not is_marked.any():
            raise BadInput(
                "The rationale covers no token: it was truncated, or is only whitespace. Mark words that "
                "the model reads, or leave the text out.",
                code="rationale-without-token",
            )
        scores = case.attribution.scores[positions]
        # Compare the selected with the marked tokens, one by one and in runs.
        is_selected = self._select_top(scores, is_marked)
        num_hits = (is_selected & is_marked).sum()
        selected_runs = _find_runs(is_selected)
        marked_runs = _find_runs(is_marked)
        num_correct = self._count_correct_runs(selected_runs, marked_runs)
        parts = {
            "auprc": precision_recall_area(scores, is_marked, use_steps=self.area == "steps"),
            "f1": _f1(num_hits / is_selected.sum(), num_hits / is_marked.sum()),
            "iou": _f1(num_correct / len(selected_runs), num_correct / len(marked_runs)),
            "seen": visible_share(row, spans),
        }
        run_counts = {
            "right": num_correct,
            "selected": len(selected_runs),
            "marked": len(marked_runs),
        }
        return Measurement(parts[self.report], parts=parts, detail=run_counts)

    def _select_top(self, scores: np.ndarray, is_marked: np.ndarray) -> np.ndarray:
        """Return a mask of the highest-ranked tokens."""
        count = int(is_marked.sum())
        if self.share is not None:
            count = max(1, round(self.share * len(scores)))
        is_selected = np.zeros(len(scores), dtype=bool)
        is_selected[rank_positions(scores)[:count]] = True
        return is_selected

    def _count_correct_runs(
        self, selected_runs: Sequence[set[int]], marked_runs: Sequence[set[int]]
    ) -> int:
        """Count the selected runs that overlap enough with a marked run."""
        num_correct = 0
        for run in selected_runs:
            best_iou = max(len(run & marked) / len(run | marked) for marked in marked_runs)
            num_correct += best_iou >= self.overlap
        return num_correct

    def summarize(
        self, measurements: Sequence[Measurement], *, seed: int = 0, **_: Any
    ) -> MetricSummary:
        summary = super().summarize(measurements, seed=seed)
        if self.iou_over == "texts" or not measurements:
            return summary
        counts = []
        for measurement in measurements:
            detail = measurement.detail
            counts.append([detail["right"], detail["selected"], detail["marked"]])
        table = np.array(counts, dtype=float)  # text count

        def compute_iou_f1(texts: np.ndarray) -> float:
            drawn = table[texts]
            if self.iou_over == "micro":
                drawn = drawn.sum(0, keepdims=True)
            num_correct, num_selected, num_marked = drawn.T
            return _f1((num_correct / num_selected).mean(), (num_correct / num_marked).mean())

        iou = bootstrap_statistic(len(table), compute_iou_f1, seed=seed)
        # The interval is centered on the value and may exceed the range of F1.
        iou = replace(iou, low=max(0.0, iou.low), high=min(1.0, iou.high))
        value = iou if self.report == "iou" else summary.interval
        return replace(summary, interval=value, parts={**summary.parts, "iou": iou})


def precision_recall_area(
    scores: np.ndarray, gold: np.ndarray, *, use_steps: bool = False
) -> float:
    """Return the area under the precision-recall curve.

    Args:
        scores: One score per token; equal scores are one threshold.
        gold: Whether each token is marked.
        use_steps: Whether to sum steps (average precision) instead of trapezoids.
    """
    order = np.argsort(-scores, kind="stable")
    num_hits = np.cumsum(gold[order])
    # True at the last token of each threshold.
    is_threshold = np.append(np.diff(scores[order]) != 0, True)
    num_selected = np.flatnonzero(is_threshold) + 1
    precision = num_hits[is_threshold] / num_selected
    recall = num_hits[is_threshold] / gold.sum()
    if not use_steps:
        precision = (precision + np.append(1.0, precision[:-1])) / 2
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def _f1(precision: float, recall: float) -> float:
    if not precision or not recall:
        return 0.0
    return float(2 * precision * recall / (precision + recall))


def _find_runs(flags: np.ndarray) -> list[set[int]]:
    """Return the maximal runs of true values, as sets of positions."""
    positions = np.flatnonzero(flags)
    run_starts = np.flatnonzero(np.diff(positions) > 1) + 1
    return [set(run.tolist()) for run in np.split(positions, run_starts)]
