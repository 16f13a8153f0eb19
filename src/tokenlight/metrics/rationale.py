"""Rationale: do the scores agree with what people marked as the reason?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._marked import marked_tokens, seen_share
from tokenlight.metrics._metric import Answers, Case, Measured, Metric
from tokenlight.metrics._ranking import ranking


@dataclass(frozen=True, slots=True)
class Rationale(Metric):
    r"""Agreement with human rationales: AUPRC, token F1, and IOU F1.

    .. math:: \mathrm{AUPRC} = \sum_n (R_n - R_{n-1})\,P_n

    over the thresholds on the score of tokens that are not special (equal scores fall together);
    P, R: precision and recall against the tokens a person marked. Token F1 and IOU F1 select the
    highest-ranked tokens, as many as were marked, or ``share`` of the text; for IOU, runs of selected
    tokens match runs of marked ones where intersection over union is at least ``overlap``. Higher is
    better; ``report`` says which is the value, the others stand beside it, with ``seen``: the share
    of the marked characters that truncation left in the text. DeYoung et al. 2020 (ERASER).
    Differs from the paper: it selects the data set's mean rationale length of each text
    (``share=…``); we select each text's own by default. Plausibility is not faithfulness: a model
    may decide for reasons no person marked.
    """

    report: Literal["auprc", "f1", "iou"] = "auprc"
    share: float | None = None
    overlap: float = 0.5
    cites: ClassVar[str] = "deyoung2020eraser"
    marked: ClassVar[bool] = True
    asks: ClassVar[bool] = False

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        row, spans = case.attribution.row, case.spans
        if not spans:
            raise BadInput("no rationale is marked in this text.")
        places = case.original.rankable
        gold = marked_tokens(row, spans)[places]
        if not gold.any():
            raise BadInput(
                "truncation cut off every token of the rationale."
                if row.cut
                else "the rationale covers no token of the text, say a blank alone."
            )
        scores = case.attribution.scores[places]
        count = int(gold.sum()) if self.share is None else max(1, round(self.share * len(gold)))
        chosen = np.zeros(len(gold), dtype=bool)
        chosen[ranking(scores)[:count]] = True
        found = {
            "auprc": average_precision(scores, gold),
            "f1": _f1(int((chosen & gold).sum()), int(chosen.sum()), int(gold.sum())),
            "iou": _iou_f1(chosen, gold, self.overlap),
            "seen": seen_share(row, spans),
        }
        return Measured(found[self.report], parts=found)


def average_precision(scores: np.ndarray, gold: np.ndarray) -> float:
    """Area under the precision-recall curve as a step function; equal scores are one threshold."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(gold[order])
    last = np.append(np.diff(scores[order]) != 0, True)  # the last token of each threshold
    taken = np.flatnonzero(last) + 1
    precision, recall = hits[last] / taken, hits[last] / gold.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def _f1(common: float, found: int, wanted: int) -> float:
    return 2 * common / (found + wanted) if found + wanted else 0.0


def _iou_f1(chosen: np.ndarray, gold: np.ndarray, overlap: float) -> float:
    ours, theirs = _runs(chosen), _runs(gold)

    def matched(one: set[int], others: list[set[int]]) -> bool:
        return any(len(one & other) / len(one | other) >= overlap for other in others)

    precision = sum(matched(run, theirs) for run in ours) / len(ours) if ours else 0.0
    recall = sum(matched(run, ours) for run in theirs) / len(theirs)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _runs(flags: np.ndarray) -> list[set[int]]:
    """Maximal runs of true, as sets of positions."""
    runs: list[set[int]] = []
    for position in np.flatnonzero(flags):
        if runs and int(position) - 1 in runs[-1]:
            runs[-1].add(int(position))
        else:
            runs.append({int(position)})
    return runs


METRIC = Rationale
