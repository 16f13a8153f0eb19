"""Gradient SHAP: gradients at random points between a baseline and the text."""

import numpy as np
import torch

from tokenlight.errors.arguments import Seed
from tokenlight.methods import _path
from tokenlight.methods._path import PathMethod, PathScores
from tokenlight.methods.base import Cost
from tokenlight.plugin import Count, Tape
from tokenlight.trace.extra_passes import BaselineToken


class GradientShap(PathMethod):
    r"""Gradient × difference from a baseline, averaged over random points between the two.

    .. math:: s_i = \frac1S \sum_{s=1}^S \sum_k (h_{i,k} - h'_{i,k})
        \frac{\partial y}{\partial h_{i,k}}\Big|_{h' + u_s (h - h')}, \quad u_s \sim U(0, 1)

    :math:`h`, :math:`h'` and ``extras["convergence"]`` are those of integrated_gradients, with the mean over
    draws. Equals Captum's LayerGradientShap without noise ("GradientShap" of Thermostat), except that
    the draws depend only on the text.
    Differs from the paper: one baseline in place of a distribution of them.

    Args:
        samples: The number of points S.
        baseline: As in integrated_gradients.
        seed: Seed of the points.
    """

    samples: Count = 5
    baseline: BaselineToken | int = "pad"
    seed: Seed = 0
    cites = "lundberg2017unified"
    stochastic = True

    def cost(self, num_tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(2 + self.samples, self.samples)

    def compute_path_scores(self, tape: Tape) -> PathScores:
        path = _path.compute_endpoints(tape, self.baseline)
        examples = _path.all_examples(tape)
        draws = [row.make_generator(self.seed).random(self.samples) for row in tape.rows]
        shares = torch.from_numpy(np.stack(draws)).to(examples.device)
        weights = torch.full_like(shares, 1 / self.samples)
        scores, gap_percent = _path.integrate_path(tape, path, examples, shares, weights)
        num_passes = torch.full_like(examples, self.samples)
        return PathScores(scores, gap_percent, path.target_gain, num_passes)
