"""Precision@K: how many tokens of the true answer are among the K top-ranked."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tokenlight.data.annotations import compute_visible_share, find_annotated_tokens
from tokenlight.data.intervals import bootstrap_statistic
from tokenlight.plugin import (
    BadInput,
    Case,
    Count,
    Measurement,
    Metric,
    MetricSummary,
    VariantOutputs,
    rank_positions,
)

NUM_RATIO_RESAMPLES = 2000


class PrecisionAtK(Metric):
    r"""Tokens of the true answer among the K highest scores of question, context and special tokens.

    .. math:: \bigl|\{a,\dots,b\} \cap \mathrm{TopK}\bigr|

    :math:`a \dots b` are the tokens of the first true answer. An answer that was truncated counts as the span
    [CLS], as in the official code. Higher is better. Qiang et al. 2022.
    Differs from the paper: a token belongs to the answer if it shares a character with it.

    Args:
        k: The number K of tokens.
        report: ``"count"`` averages the counts; the largest possible value is the mean length of answers.
            ``"ratio"`` is 100 · Σ count / Σ answer length, in percent (Mask-LRP).
        drop_unanswerable: Skip questions without an answer.
        drop_truncated: Skip questions whose answer was truncated.
    """

    k: Count = 20
    report: Literal["count", "ratio"] = "count"
    drop_unanswerable: bool = True
    drop_truncated: bool = False
    cites = "qiang2022attcat"
    needs_spans = True
    needs_model = False
    presets = {"paper": {}, "attcat": {}, "mask_lrp": {"report": "ratio"}}

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        row = case.attribution.row
        answer = (case.spans or ())[:1]
        if not answer and self.drop_unanswerable:
            raise BadInput(
                "The question has no answer, so it is skipped. Keep it with drop_unanswerable=false.",
                code="no-answer",
            )
        is_answer = find_annotated_tokens(row, answer)
        if not is_answer.any() or compute_visible_share(row, answer) < 1:
            if answer and self.drop_truncated:
                raise BadInput(
                    "The answer covers no token: it was truncated, or is only whitespace.",
                    code="answer-without-token",
                )
            # As in the official code, [CLS] stands for an answer that is not there.
            is_answer = np.arange(len(row)) == 0
        top_positions = rank_positions(case.attribution.scores)[: self.k]
        count = int(is_answer[top_positions].sum())
        return Measurement(float(count), detail={"count": count, "length": int(is_answer.sum())})

    def summarize(
        self, measurements: Sequence[Measurement], *, seed: int = 0, **_: Any
    ) -> MetricSummary:
        if self.report == "count":
            return super().summarize(measurements, seed=seed)
        details = [measurement.detail for measurement in measurements]
        counts = np.array([detail["count"] for detail in details], dtype=np.float64)
        lengths = np.array([detail["length"] for detail in details], dtype=np.float64)

        def compute_ratio(texts: np.ndarray) -> float:
            return float(100 * counts[texts].sum() / lengths[texts].sum())

        return MetricSummary(
            bootstrap_statistic(
                len(measurements), compute_ratio, seed=seed, resamples=NUM_RATIO_RESAMPLES
            )
        )
