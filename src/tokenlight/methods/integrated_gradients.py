"""Integrated gradients: gradients along the straight path from a baseline to the text."""

from typing import Literal

import numpy as np
import torch

from tokenlight.capture.entrance import At
from tokenlight.methods import _path
from tokenlight.methods._path import Cost, Count, PathMethod, PathScores, Site, StandIn, Tape

FIRST, LAST = 25, 400  # steps that "auto" begins with and does not go beyond


class IntegratedGradients(PathMethod):
    r"""Each token's share of what the target gains between a baseline and the text.

    .. math:: s_i = \sum_k (h_{i,k} - h'_{i,k}) \int_0^1
        \frac{\partial y}{\partial h_{i,k}}\Big|_{h' + \alpha (h - h')} d\alpha

    :math:`h` is :math:`h^0`, ``token hidden``, :math:`h'` that of the text with ``baseline`` in the
    place of every token that is not special (``zero``: the zero vector). The scores sum to
    :math:`y(h) - y(h')`; ``extras["convergence"]`` tells by how many percent ``n_steps`` missed that.
    ``"auto"`` doubles 25 steps until the gap is below ``tolerance`` percent, for each text by itself,
    and stops at 400. ``at="words"``: the path runs in the token tables' output, before positions and
    norm, as inseq's does. Equals Captum's LayerIntegratedGradients ("Integrated" of Thermostat).
    Differs from the paper: the path runs in :math:`h^0`; Gauss-Legendre nodes, no left Riemann sum.
    """

    n_steps: Count | Literal["auto"] = FIRST
    baseline: StandIn | int = "pad"
    tolerance: float = 1.0
    at: At = "hidden"
    cites = "sundararajan2017axiomatic"

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.WORDS if self.at == "words" else Site.EMBEDDED})

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        steps = LAST * 2 if self.n_steps == "auto" else self.n_steps
        return Cost(2 + steps, steps)

    def scored(self, tape: Tape) -> PathScores:
        path, left = _path.ends(tape, self.baseline, at=self.at), _path.everyone(tape)
        auto = self.n_steps == "auto"
        count = FIRST if self.n_steps == "auto" else self.n_steps
        scores, gaps, steps = path.text.new_zeros(tape.real.shape), path.rise.clone(), left.clone()
        while len(left):
            nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(count))
            rows = (len(left), count)
            shares = ((1 + nodes) / 2).to(left.device).expand(rows)
            halves = (weights / 2).to(left.device).expand(rows)
            scores[left], gap = _path.along(tape, path, left, shares, halves)
            gaps[left], steps[left] = gap, count
            left = left[gap > self.tolerance] if auto and count < LAST else left[:0]
            count *= 2
        return scores, gaps, path.rise, steps
