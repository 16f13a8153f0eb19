"""Raw attention: what the read-out token attends to in the last block."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import reduce_to_tokens, sum_over_sides
from tokenlight.plugin import Method, Site, Tape


class RawAttention(Method):
    r"""Head-averaged attention of the last block, from the token that the prediction is read at.

    .. math:: s_j = \tfrac1H\sum_h A^L_{h,r,j}, \qquad s_r = 0

    :math:`A^L` is ``head query key``, :math:`r` the read-out token. For answer spans, the mean over queries
    is taken instead (with cell [0, 0] zero), once per side. For an encoder-decoder model it is the
    attention of the last decoder block to the source and to the written tokens.
    Differs from the paper: nothing for classes. AttCAT's notebook for question answering averages
    the maps over *layers* and reads the last query: ``preset="attcat_qa"``.

    Args:
        reduce: How queries are reduced: ``"cls_row"`` takes the row of the read-out token,
            ``"mean_query"`` the mean; ``"auto"`` is the row for classes and the mean for answer spans.
    """

    reduce: Literal["auto", "cls_row", "mean_query", "last_query_layermean"] = "auto"
    supports_encoder_decoder = True
    cites = "qiang2022attcat"
    signed = False
    class_agnostic = True
    presets = {"attcat_qa": {"reduce": "last_query_layermean"}}
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        return sum_over_sides(tape, self._score, is_side_independent=self.reduce != "cls_row")

    def _score(self, tape: Tape) -> Tensor:
        mean_maps = tape.attention_maps.mean_attention()  # each ``batch query key``
        if self.reduce == "last_query_layermean":
            layer_mean = torch.stack([*mean_maps]).mean(dim=0)
            last_query = (tape.lengths - 1)[:, None, None].expand(-1, 1, layer_mean.shape[-1])
            return layer_mean.gather(1, last_query).squeeze(1)
        matrix = mean_maps[-1]
        if tape.recording.encoder_decoder is not None:
            # A decoder block has two maps: to the written tokens, and to the source.
            matrix = matrix + mean_maps[-2]
        return reduce_to_tokens(matrix, tape, self.reduce)
