"""Gradient SHAP: gradients at random points between a baseline and the text."""

import numpy as np
import torch

from tokenlight.methods import _path
from tokenlight.methods._path import Cost, Count, PathMethod, PathScores, StandIn, Tape


class GradientShap(PathMethod):
    r"""Gradient × difference from a baseline, averaged over random points between the two.

    .. math:: s_i = \frac1S \sum_{s=1}^S \sum_k (h_{i,k} - h'_{i,k})
        \frac{\partial y}{\partial h_{i,k}}\Big|_{h' + u_s (h - h')}, \quad u_s \sim U(0, 1)

    :math:`h`, :math:`h'` and ``extras["convergence"]`` are those of integrated_gradients, the mean over
    draws. Equals Captum's LayerGradientShap without noise ("GradientShap" of Thermostat), but for the
    draws, which belong to the text.
    Differs from the paper: one baseline in place of a distribution of them.
    """

    samples: Count = 5
    baseline: StandIn | int = "pad"
    seed: int = 0
    cites = "lundberg2017unified"
    draws = True

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(2 + self.samples, self.samples)

    def scored(self, tape: Tape) -> PathScores:
        path, texts, count = _path.ends(tape, self.baseline), _path.everyone(tape), self.samples
        drawn = np.stack([row.generator(self.seed).random(count) for row in tape.rows])
        shares = torch.from_numpy(drawn).to(texts.device)
        scores, gap = _path.along(tape, path, texts, shares, torch.full_like(shares, 1 / count))
        return scores, gap, path.rise, torch.full_like(texts, count)
