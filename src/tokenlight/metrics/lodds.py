"""LOdds: the log-ratio of the probability with and without the most important tokens."""

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._erasing import SMALLEST, Perturb
from tokenlight.metrics.aopc import OFFICIAL, AreaOverPerturbationCurve


class LogOdds(AreaOverPerturbationCurve):
    r"""Mean log-ratio of the target's probability as the top-ranked tokens become [PAD].

    .. math:: \mathrm{LOdds} = \frac1{|K|}\sum_{k\in K} \ln\frac{p(c\mid \tilde x^{k})}{p(c\mid x)}

    Grid, order and options are those of aopc; probabilities below 1e-12 are taken as 1e-12. Lower is
    better; with ``order="bottom"`` higher is. The [PAD] tokens are attended to
    (``mask_pad_attention``). Shrikumar et al. 2017; Qiang et al. 2022.
    Differs from the paper: the clip. Official readings: ``preset="attcat"``, ``"mask_lrp"``; they do
    not clip, and a text in which a probability is zero is left out (``clip=False``).
    """

    perturb: Perturb = "pad"
    clip: bool = True
    better = "lower"
    presets = {
        "paper": {},
        "attcat": {**OFFICIAL, "clip": False, "min_len": 10},
        "mask_lrp": {**OFFICIAL, "clip": False, "min_len": 20},
    }

    def curve(self, whole: float, changed: np.ndarray) -> np.ndarray:
        super().curve(whole, changed)
        if not self.clip and not (whole > 0 and (changed > 0).all()):
            zero = "a probability of this text is zero and has no logarithm"
            raise BadInput(f"{zero}; clip=true takes it as {SMALLEST:g}.")
        least = SMALLEST if self.clip else 0.0
        return np.asarray(np.log(np.maximum(changed, least)) - np.log(max(whole, least)))
