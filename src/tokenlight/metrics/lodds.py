"""LOdds: the log-ratio of the probability with and without the most important tokens."""

import numpy as np

from tokenlight.metrics._perturbation import MIN_PROBABILITY, Perturb
from tokenlight.metrics.aopc import OFFICIAL_OPTIONS, AreaOverPerturbationCurve
from tokenlight.plugin import BadInput


class LogOdds(AreaOverPerturbationCurve):
    r"""Mean log-ratio of the target's probability as the top-ranked tokens become [PAD].

    .. math:: \mathrm{LOdds} = \frac1{|K|}\sum_{k\in K} \ln\frac{p(c\mid \tilde x^{k})}{p(c\mid x)}

    Grid, order and further options are those of aopc. Lower is better; with ``order="bottom"`` higher is.
    The [PAD] tokens are attended to unless ``mask_pad_attention``. Shrikumar et al. 2017; Qiang et al. 2022.
    Differs from the paper: the clipping. The official codes (``preset="attcat"``, ``"mask_lrp"``) do not
    clip.

    Args:
        perturb: What happens to a removed token, as in aopc.
        clip: Clip probabilities below 1e-12 to 1e-12; without it, a text with a probability of zero is
            skipped.
    """

    perturb: Perturb = "pad"
    clip: bool = True
    better = "lower"
    presets = {
        "paper": {},
        "attcat": {**OFFICIAL_OPTIONS, "clip": False, "min_tokens": 10},
        "mask_lrp": {**OFFICIAL_OPTIONS, "clip": False, "min_tokens": 20},
    }

    def compute_curve(self, original: float, perturbed: np.ndarray) -> np.ndarray:
        # The base class checks the probability of the original text.
        super().compute_curve(original, perturbed)
        is_positive = original > 0 and bool((perturbed > 0).all())
        if not self.clip and not is_positive:
            raise BadInput(
                "A probability of this text is zero, so it has no logarithm. Use clip=true to replace it by "
                f"{MIN_PROBABILITY:g}.",
                code="zero-probability",
            )
        smallest = MIN_PROBABILITY if self.clip else 0.0
        log_perturbed = np.log(np.maximum(perturbed, smallest))
        return np.asarray(log_perturbed - np.log(max(original, smallest)))
