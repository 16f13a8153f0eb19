"""Precision@K: how many tokens of the true answer are among the K top-ranked."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._interval import statistic_interval
from tokenlight.metrics._metric import Answers, Case, Count, Measured, Metric, MetricSummary
from tokenlight.metrics._ranking import marked_tokens, ranking, seen_share


class PrecisionAtK(Metric):
    r"""Tokens of the gold answer among the K highest scores of question, context and specials.

    .. math:: \bigl|\{a,\dots,b\} \cap \mathrm{TopK}\bigr|

    :math:`a \dots b` are the tokens of the first gold answer. ``report="count"`` averages the
    counts (Qiang et al. 2022: its largest possible value is the mean answer length);
    ``report="ratio"`` gives 100 · Σ count / Σ answer length in per cent (Mask-LRP). Higher is better.
    An answer that truncation cut off counts as the span [CLS], as in the official code, unless
    ``drop_truncated``; questions without answer are left out.
    Differs from the paper: a token belongs to the answer if it shares a character with it.
    """

    k: Count = 20
    report: Literal["count", "ratio"] = "count"
    drop_unanswerable: bool = True
    drop_truncated: bool = False
    cites = "qiang2022attcat"
    marked = True
    asks = False
    presets = {"paper": {}, "attcat": {}, "mask_lrp": {"report": "ratio"}}

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        row, answer = case.attribution.row, (case.spans or ())[:1]
        if not answer and self.drop_unanswerable:
            raise BadInput("the question has no answer.")
        gold = marked_tokens(row, answer)
        if not gold.any() or seen_share(row, answer) < 1:
            if answer and self.drop_truncated:
                raise BadInput("the answer covers no token: it was cut off, or is a blank alone.")
            gold = np.arange(len(row)) == 0
        top = ranking(case.attribution.scores)[: self.k]
        count = int(gold[top].sum())
        return Measured(float(count), detail={"count": count, "length": int(gold.sum())})

    def summarise(self, measured: Sequence[Measured], *, seed: int = 0, **_: Any) -> MetricSummary:
        if self.report == "count":
            return super().summarise(measured, seed=seed)
        counts = np.array([one.detail["count"] for one in measured], dtype=np.float64)
        lengths = np.array([one.detail["length"] for one in measured], dtype=np.float64)

        def ratio(texts: np.ndarray) -> float:
            return float(100 * counts[texts].sum() / lengths[texts].sum())

        return MetricSummary(statistic_interval(len(measured), ratio, seed=seed, resamples=2000))
