"""Hiding game: accuracy as the most important tokens are hidden."""

from typing import Literal

import numpy as np

from tokenlight.errors import BadInput, NotFinite, UnsupportedModel
from tokenlight.metrics._erasing import AreaMetric
from tokenlight.metrics._metric import Answers, Case, Count, Head, Measured
from tokenlight.metrics._ranking import Order


class HidingGame(AreaMetric):
    r"""Area under the accuracy curve while the top-ranked tokens are hidden.

    .. math:: \mathrm{AUC} = \int_0^1 \Pr\bigl[\arg\max_c p(c\mid x\setminus \mathrm{top}_f) = y\bigr]\,df

    by the trapezoid rule over f = 0, 1/``steps``, …, 1; round(f·m) of the m tokens that are not
    special become [MASK] with attention 0. Lower is better. Hou & Castañón 2023.
    ``reference="predicted"`` compares with the model's own prediction on the whole text.
    Differs from the paper: its section 4.1 hides the least important first, its appendix, figures
    and ↓ the most important; we hide the most important (``first="least"`` is the other reading).
    It gives no grid and does not say whether special tokens are hidden (``protect_special``).
    """

    steps: Count = 20
    first: Literal["most", "least"] = "most"
    protect_special: bool = True
    reference: Literal["label", "predicted"] = "label"
    cites = "hou2023decoding"
    presets = {"paper": {}}
    perturb, mask_pad_attention = "mask", True

    @property
    def goes(self) -> Order:
        return "top" if self.first == "most" else "bottom"

    def check(self, head: Head) -> None:
        super().check(head)
        if head.kind == "span" or head.problem != "single":
            raise UnsupportedModel(
                f"{self.name} counts right classifications, which needs a model that chooses one of "
                f"several classes; this one has {'a span head' if head.kind == 'span' else head.problem} "
                "labels; use aopc instead."
            )

    def measure(self, case: Case, answers: Answers) -> Measured:
        logits = np.stack([values for _, values in answers])
        if not np.isfinite(logits).all():
            raise NotFinite("the model gives NaN or infinity for a changed text.")
        whole, *said = np.argmax(logits, axis=1)
        if self.reference == "label" and case.label is None:
            raise BadInput("this text has no label.")
        truth = case.label if self.reference == "label" else whole
        curve = (np.array(said) == truth).astype(np.float64)
        return Measured(self.value(curve), tuple(map(float, curve)))
