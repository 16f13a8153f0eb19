"""Integrated gradients: gradients along the straight path from a baseline to the text."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokenlight.methods import _path
from tokenlight.methods._path import PathMethod, PathScores
from tokenlight.model.embedding_hooks import EmbeddingSite
from tokenlight.plugin import Count, PassCounts, Site, Tape
from tokenlight.trace.extra_passes import BaselineToken

INITIAL_STEPS = 25  # the default, and where num_steps="auto" begins
MAX_STEPS = 400  # where num_steps="auto" ends


class IntegratedGradients(PathMethod):
    r"""Each token's share of what the target gains between a baseline and the text.

    .. math:: s_i = \sum_k (h_{i,k} - h'_{i,k}) \int_0^1
        \frac{\partial y}{\partial h_{i,k}}\Big|_{h' + \alpha (h - h')} d\alpha

    :math:`h` is :math:`h^0`, ``token hidden``, :math:`h'` that of the text with a baseline token instead of
    every token that is not special. The scores sum to :math:`y(h) - y(h')`; ``extras["convergence"]`` has
    the gap in percent. Equals Captum's LayerIntegratedGradients ("Integrated" of Thermostat).
    Differs from the paper: the path runs in :math:`h^0`; Gauss-Legendre nodes, no left Riemann sum.

    Args:
        num_steps: Points on the path. ``"auto"`` starts with 25 and doubles them until the gap is below
            ``tolerance``, for each text separately, up to 400.
        baseline: The token that replaces the others; ``"zero"`` is the zero vector.
        tolerance: The gap in percent that ``num_steps="auto"`` accepts.
        site: Where the path runs: ``"token_embeddings"`` is the output of the token tables, before positions
            and norm, as in inseq.
    """

    num_steps: Count | Literal["auto"] = INITIAL_STEPS
    baseline: BaselineToken | int = "pad"
    tolerance: float = 1.0
    site: EmbeddingSite = "embeddings"
    cites = "sundararajan2017axiomatic"

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset(
            {Site.TOKEN_EMBEDDINGS if self.site == "token_embeddings" else Site.EMBEDDINGS}
        )

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        num_steps = self.num_steps
        if num_steps == "auto":
            num_steps = MAX_STEPS * 2  # the sum of all its attempts
        return PassCounts(2 + num_steps, num_steps)

    def compute_path_scores(self, tape: Tape) -> PathScores:
        path = _path.compute_endpoints(tape, self.baseline, site=self.site)
        examples = _path.make_example_indices(tape)
        scores = path.text.new_zeros(tape.token_mask.shape)
        gap_percent = path.target_gain.clone()
        num_passes = examples.clone()
        num_steps = INITIAL_STEPS
        if self.num_steps != "auto":
            num_steps = self.num_steps
        while len(examples):
            shares, weights = _compute_gauss_legendre(num_steps, examples)
            example_scores, gaps = _path.integrate_path(tape, path, examples, shares, weights)
            scores[examples] = example_scores
            gap_percent[examples] = gaps
            num_passes[examples] = num_steps
            if self.num_steps != "auto" or num_steps >= MAX_STEPS:
                break
            # Only texts that have not converged are integrated again.
            examples = examples[gaps > self.tolerance]
            num_steps *= 2
        return PathScores(scores, gap_percent, path.target_gain, num_passes)


def _compute_gauss_legendre(num_steps: int, examples: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the quadrature on [0, 1], each ``example step``."""
    nodes, weights = np.polynomial.legendre.leggauss(num_steps)
    shape = (len(examples), num_steps)
    # The rule is given for [-1, 1].
    shares = ((1 + torch.from_numpy(nodes)) / 2).to(examples.device).expand(shape)
    halved_weights = (torch.from_numpy(weights) / 2).to(examples.device).expand(shape)
    return shares, halved_weights
