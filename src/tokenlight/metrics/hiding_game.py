"""Hiding game: accuracy as the most important tokens are masked."""

from typing import Literal

import numpy as np

from tokenlight.data.head import Head
from tokenlight.data.ranks import RankOrder
from tokenlight.errors import NotFinite
from tokenlight.metrics._perturbation import AreaMetric
from tokenlight.plugin import BadInput, Case, Count, Measurement, UnsupportedModel, VariantOutputs


class HidingGame(AreaMetric):
    r"""Area under the accuracy curve while the top-ranked tokens are masked.

    .. math:: \mathrm{AUC} = \int_0^1 \Pr\bigl[\arg\max_c p(c\mid x\setminus \mathrm{top}_f) = y\bigr]\,df

    by the trapezoid rule. At f, round(f·m) of the m tokens that are not special become [MASK] with attention
    0. Lower is better. Hou & Castañón 2023.
    Differs from the paper: its section 4.1 masks the least important tokens first, its appendix, figures and
    ↓ the most important; here it is the most important (``order="bottom"`` is the other reading). The paper
    gives no grid and does not say whether special tokens are masked (``protect_special``).

    Args:
        num_steps: The number S of steps: f = 0, 1/S, …, 1.
        order: Whether the highest-ranked tokens are masked first (``"top"``), or the lowest-ranked
            (``"bottom"``).
        protect_special: Keep special tokens as they are.
        target: The correct class y: the true ``"label"``, or the ``"predicted"`` class of the original text.
    """

    num_steps: Count = 20
    order: RankOrder = "top"
    protect_special: bool = True
    target: Literal["label", "predicted"] = "label"
    cites = "hou2023decoding"
    presets = {"paper": {}}
    perturb = "mask"
    mask_pad_attention = True

    def check(self, head: Head) -> None:
        super().check(head)
        if head.task == "question-answering" or head.problem_type != "single":
            outputs = f"{head.problem_type} labels"
            if head.task == "question-answering":
                outputs = "a span head"
            raise UnsupportedModel(
                f"{self.name} counts correct classifications, which needs a model that chooses one of "
                f"several classes, but this one has {outputs}. Use aopc instead.",
                code="no-single-label",
            )

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        logits = np.stack([values for _, values in outputs])  # variant class
        if not np.isfinite(logits).all():
            raise NotFinite(
                "The model returns NaN or infinity for a masked text. Check its weights and precision.",
                code="masked-logits-not-finite",
            )
        predictions = np.argmax(logits, axis=1)
        # The first variant is the original text.
        true_class = predictions[0]
        if self.target == "label":
            if case.label is None:
                raise BadInput(
                    "The text has no label. Give one, or use target=predicted.",
                    code="text-without-label",
                )
            true_class = case.label
        curve = (predictions[1:] == true_class).astype(np.float64)
        return Measurement(self.reduce_curve(curve), tuple(map(float, curve)))
