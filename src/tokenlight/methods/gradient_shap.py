"""Gradient SHAP: gradients at random points between a baseline and the text."""

import numpy as np
import torch

from tokenlight.capture.rerun import StandIn
from tokenlight.methods._method import Cost, Count, Tape
from tokenlight.methods._path import PathMethod, PathScores, along, ends


class GradientShap(PathMethod):
    r"""Gradient × difference from a baseline, averaged over random points between the two.

    .. math:: s_i = \frac1S \sum_{s=1}^S \sum_k (h_{i,k} - h'_{i,k})
        \frac{\partial y}{\partial h_{i,k}}\Big|_{h' + u_s (h - h')}, \quad u_s \sim U(0, 1)

    :math:`h` is :math:`h^0`, ``token hidden``, :math:`h'` that of the text with ``baseline`` in the
    place of every token that is not special. Its mean over draws is the integrated gradient;
    ``extras["convergence"]`` tells by how many percent the scores' sum misses :math:`y(h) - y(h')`.
    Equals Captum's LayerGradientShap without noise ("GradientShap" of Thermostat), but for the
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
        path, count = ends(tape, self.baseline), self.samples
        everyone = torch.arange(len(tape.rows), device=path.rise.device)
        drawn = np.stack([row.generator(self.seed).random(count) for row in tape.rows])
        shares = torch.from_numpy(drawn).to(everyone.device)
        scores, gap = along(tape, path, everyone, shares, torch.full_like(shares, 1 / count))
        return scores, gap, path.rise, torch.full_like(everyone, count)
