"""Attention rollout: follow attention from the read-out token down to the input."""

from collections import deque
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tokenlight.methods import _maps
from tokenlight.methods._maps import Reduce
from tokenlight.plugin import Method, Site, Tape


class AttentionRollout(Method):
    r"""Multiply the head-averaged attention maps of all blocks, residual paths included.

    .. math:: \hat A^l = \operatorname{rownorm}\bigl(\tfrac1H\sum_h A^l_h + I\bigr), \quad
        J = \hat A^L \cdots \hat A^{k+1}, \quad s = J_{r,:}, \quad s_r = 0

    :math:`r` is the read-out token, :math:`k` is ``start_layer``; for answer spans, the mean over queries
    is taken, once per side. Each decoder block of an encoder-decoder model is two steps: to the written
    tokens, then to the source. Abnar & Zuidema 2020.
    Differs from the paper: AttCAT and Mask-LRP write :math:`I + \bar A` without the row norm, which
    changes no rank. AttCAT's notebook for question answering leaves the identity out and averages the
    partial products over layers and queries, with no cell set to zero: ``preset="attcat_qa"``.

    Args:
        start_layer: The lowest block that is used.
        residual: Add the identity.
        row_normalize: Divide each row by its sum.
        average_layers: Average the partial products over layers.
        reduce: How queries are reduced: ``"cls_row"`` takes the row of the read-out token,
            ``"mean_query"`` the mean; ``"auto"`` is the row for classes and the mean for answer spans.
    """

    start_layer: int = 0
    residual: bool = True
    row_normalize: bool = True
    average_layers: bool = False
    reduce: Reduce = "auto"
    supports_encoder_decoder = True
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
        mean_maps = tape.attention_maps.mean_attention()
        _maps.check_start_layer(self.start_layer, len(mean_maps))
        steps = mean_maps[self.start_layer :]
        if self._reads_one_row(tape):
            score = partial(self._read_row, steps)
        else:
            score = partial(self._reduce_product, self._compute_product(steps))
        return _maps.sum_over_sides(tape, score, is_side_independent=self.reduce != "cls_row")

    def _reads_one_row(self, tape: Tape) -> bool:
        """Return whether the scores are one row of the product, so that it need not be computed."""
        has_row_steps = tape.recording.encoder_decoder is None and not self.average_layers
        return has_row_steps and _maps.resolve_reduce(tape, self.reduce) == "cls_row"

    def _read_row(self, steps: Sequence[Tensor], tape: Tape) -> Tensor:
        return _maps.compute_rollout_row(
            steps, tape, row_normalize=self.row_normalize, residual=self.residual
        )

    def _compute_product(self, steps: Sequence[Tensor]) -> Tensor:
        products = _maps.iter_rollout(
            steps, row_normalize=self.row_normalize, residual=self.residual
        )
        if self.average_layers:
            return torch.stack(list(products)).mean(dim=0)
        # The last product; a deque of length 1 keeps only one of them in memory.
        return deque(products, maxlen=1).pop()

    def _reduce_product(self, matrix: Tensor, tape: Tape) -> Tensor:
        zero_readout = not self.average_layers
        return _maps.reduce_to_tokens(matrix, tape, self.reduce, zero_readout=zero_readout)
