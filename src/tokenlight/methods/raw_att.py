"""Raw attention: what the read-out token looks at in the last block."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import Method, Site, Tape, over_sides, reduced


class RawAttention(Method):
    r"""Head-averaged attention of the last block, from the token that the prediction is read at.

    .. math:: s_j = \tfrac1H\sum_h A^L_{h,r,j}, \qquad s_r = 0

    :math:`A^L` is ``head query key``, :math:`r` the read-out token. For answer spans the mean over
    queries is taken instead (``reduce="mean_query"``, cell [0, 0] zero), once a side. Of a model that
    writes after a source: the last decoder block's attention to the source and to what was written.
    Differs from the paper: nothing for classes. AttCAT's notebook for question answering averages
    the maps over *layers* and reads the last query: ``preset="attcat_qa"``.
    """

    reduce: Literal["auto", "cls_row", "mean_query", "last_query_layermean"] = "auto"
    after_source = True
    cites = "qiang2022attcat"
    signed = False
    class_agnostic = True
    presets = {"attcat_qa": {"reduce": "last_query_layermean"}}
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        return over_sides(tape, self._score, alike=self.reduce != "cls_row")

    def _score(self, tape: Tape) -> Tensor:
        if self.reduce == "last_query_layermean":
            mean = torch.stack([*tape.maps.mean_attention()]).mean(dim=0)
            last = (tape.lengths - 1)[:, None, None].expand(-1, 1, mean.shape[-1])
            return mean.gather(1, last).squeeze(1)
        means = tape.maps.mean_attention()
        maps = means[-1]
        if tape.recording.parts is not None:  # a decoder block has two: its own, and the source's
            maps = maps + means[-2]
        return reduced(maps, tape, self.reduce)
