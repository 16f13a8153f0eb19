"""Attention rollout: follow attention from the read-out token down to the input."""

from collections import deque

import torch
from torch import Tensor

from tokenlight.methods import _maps
from tokenlight.methods._maps import Method, Reduce, Site, Tape


class AttentionRollout(Method):
    r"""Multiply the head-averaged attention maps of all blocks, residual paths included.

    .. math:: \hat A^l = \operatorname{rownorm}\bigl(\tfrac1H\sum_h A^l_h + I\bigr), \quad
        J = \hat A^L \cdots \hat A^{k+1}, \quad s = J_{r,:}, \quad s_r = 0

    :math:`r` is the read-out token, :math:`k` is ``start_layer``; for answer spans the mean over
    queries is taken, once a side. Of a model that writes after a source, each decoder block is two
    steps: to what was written, then to the source. Abnar & Zuidema 2020.
    Differs from the paper: AttCAT and Mask-LRP write :math:`I + \bar A` without the row norm, which
    changes no rank (``row_normalize=False``). AttCAT's notebook for question answering leaves the identity
    out and averages the partial products over layers and queries, no cell zero: ``preset="attcat_qa"``.
    """

    start_layer: int = 0
    residual: bool = True
    row_normalize: bool = True
    average_layers: bool = False
    reduce: Reduce = "auto"
    after_source = True
    cites = "abnar2020quantifying"
    signed = False
    class_agnostic = True
    presets = {
        "paper": {"row_normalize": False},
        "attcat_qa": dict(
            residual=False, row_normalize=False, average_layers=True, reduce="mean_query"
        ),
    }
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        means = tape.maps.mean_attention()
        _maps.require_block(self.start_layer, len(means))
        how = {"row_normalize": self.row_normalize, "residual": self.residual}
        # One at a time, unless all are averaged.
        flows = _maps.rolled_out(means[self.start_layer :], **how)
        (matrix,) = [torch.stack([*flows]).mean(dim=0)] if self.average_layers else deque(flows, 1)

        def score(one: Tape) -> Tensor:
            return _maps.reduced(matrix, one, self.reduce, zero_readout=not self.average_layers)

        return _maps.over_sides(tape, score, alike=self.reduce != "cls_row")
