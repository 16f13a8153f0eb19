"""Gradient SHAP: gradients at random points between a baseline and the text."""

import numpy as np
import torch

from tokenlight.methods import _path
from tokenlight.methods._path import PathMethod, PathScores
from tokenlight.plugin import Count, PassCounts, Seed, Tape
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
        num_samples: The number of points S.
        baseline: As in integrated_gradients.
        seed: Seed of the points.
    """

    num_samples: Count = 5
    baseline: BaselineToken | int = "pad"
    seed: Seed = 0
    cites = "lundberg2017unified"
    stochastic = True

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        return PassCounts(2 + self.num_samples, self.num_samples)

    def compute_path_scores(self, tape: Tape) -> PathScores:
        path = _path.compute_endpoints(tape, self.baseline)
        examples = _path.make_example_indices(tape)
        draws = [row.make_generator(self.seed).random(self.num_samples) for row in tape.rows]
        shares = torch.from_numpy(np.stack(draws)).to(examples.device)
        weights = torch.full_like(shares, 1 / self.num_samples)
        scores, gap_percent = _path.integrate_path(tape, path, examples, shares, weights)
        num_passes = torch.full_like(examples, self.num_samples)
        return PathScores(scores, gap_percent, path.target_gain, num_passes)
