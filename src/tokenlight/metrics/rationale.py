"""Rationale: do the scores agree with what people marked as the reason?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tokenlight.data.annotations import compute_visible_share, find_annotated_tokens
from tokenlight.data.intervals import bootstrap_statistic
from tokenlight.plugin import (
    BadInput,
    Case,
    Measurement,
    Metric,
    MetricSummary,
    VariantOutputs,
    rank_positions,
)


class Rationale(Metric):
    r"""Agreement with human rationales: AUPRC, token F1, and IOU F1.

    .. math:: \mathrm{AUPRC} = \sum_n (R_n - R_{n-1})\,\tfrac12(P_n + P_{n-1}), \quad P_0=1, R_0=0

    over the thresholds on the scores of tokens that are not special (equal scores are one threshold); P and
    R are precision and recall against the tokens that a person marked. Token F1 and IOU F1 select the
    highest-ranked tokens, as many as were marked. Token F1 is the mean over texts. For IOU, a run of selected
    tokens is correct if its intersection over union with a marked run is large enough. What ``report`` does
    not choose is a part, and so is ``visible_share``: the share of the marked characters that truncation
    left. Higher is better. DeYoung et al. 2020 (ERASER).
    Differs from the paper: it selects the mean rationale length of the data set in each text
    (``selected_share``); here it is the length of each text's own rationale. Plausibility is not
    faithfulness: a model may have reasons that no person marked.

    Args:
        report: The value: ``"auprc"``, token ``"f1"``, or ``"iou"`` for IOU F1.
        selected_share: The share of a text that is selected; by default as many tokens as were marked.
        min_iou: The smallest intersection over union at which a run is correct.
        integration: ``"trapezoid"`` as above, or ``"steps"`` for average precision,
            :math:`\sum_n (R_n - R_{n-1})P_n`.
        iou_average: What IOU F1 is computed from: the mean precision and recall of runs over texts
            (``"macro"``), or the counts of all texts (``"micro"``); or the mean of F1 over texts
            (``"texts"``).
    """

    report: Literal["auprc", "f1", "iou"] = "auprc"
    selected_share: float | None = None
    min_iou: float = 0.5
    integration: Literal["trapezoid", "steps"] = "trapezoid"
    iou_average: Literal["macro", "micro", "texts"] = "macro"
    cites = "deyoung2020eraser"
    informational = ("visible_share",)
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
            "auprc": compute_precision_recall_area(
                scores, is_marked, use_steps=self.integration == "steps"
            ),
            "f1": _compute_f1(num_hits / is_selected.sum(), num_hits / is_marked.sum()),
            "iou": _compute_f1(num_correct / len(selected_runs), num_correct / len(marked_runs)),
            "visible_share": compute_visible_share(row, spans),
        }
        run_counts = {
            "num_correct": num_correct,
            "num_selected": len(selected_runs),
            "num_marked": len(marked_runs),
        }
        return Measurement(parts[self.report], parts=parts, detail=run_counts)

    def _select_top(self, scores: np.ndarray, is_marked: np.ndarray) -> np.ndarray:
        """Return a mask of the highest-ranked tokens."""
        count = int(is_marked.sum())
        if self.selected_share is not None:
            count = max(1, round(self.selected_share * len(scores)))
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
            num_correct += best_iou >= self.min_iou
        return num_correct

    def summarize(
        self, measurements: Sequence[Measurement], *, seed: int = 0, **_: Any
    ) -> MetricSummary:
        summary = super().summarize(measurements, seed=seed)
        if self.iou_average == "texts" or not measurements:
            return summary
        counts = [_read_run_counts(measurement.detail) for measurement in measurements]
        table = np.array(counts, dtype=float)  # text count

        def compute_iou_f1(texts: np.ndarray) -> float:
            drawn = table[texts]
            if self.iou_average == "micro":
                drawn = drawn.sum(0, keepdims=True)
            num_correct, num_selected, num_marked = drawn.T
            precision = (num_correct / num_selected).mean()
            recall = (num_correct / num_marked).mean()
            return _compute_f1(precision, recall)

        iou = bootstrap_statistic(len(table), compute_iou_f1, seed=seed)
        # The interval is centered on the value and may exceed the range of F1.
        iou = replace(iou, low=max(0.0, iou.low), high=min(1.0, iou.high))
        value = iou if self.report == "iou" else summary.interval
        return replace(summary, interval=value, parts={**summary.parts, "iou": iou})


def _read_run_counts(detail: Mapping[str, Any]) -> list[float]:
    """Return the counts of correct, selected and marked runs."""
    # Records of earlier versions have other names.
    if "right" in detail:
        return [detail["right"], detail["selected"], detail["marked"]]
    return [detail["num_correct"], detail["num_selected"], detail["num_marked"]]


def compute_precision_recall_area(
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


def _compute_f1(precision: float, recall: float) -> float:
    if not precision or not recall:
        return 0.0
    return float(2 * precision * recall / (precision + recall))


def _find_runs(flags: np.ndarray) -> list[set[int]]:
    """Return the maximal runs of true values, as sets of positions."""
    positions = np.flatnonzero(flags)
    run_starts = np.flatnonzero(np.diff(positions) > 1) + 1
    return [set(run.tolist()) for run in np.split(positions, run_starts)]
