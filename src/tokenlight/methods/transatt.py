"""Transformer attribution: relevance × gradient of every attention map, rolled out."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import require_block
from tokenlight.methods._relevance import RuledRelevance, Site, Tape


class TransformerAttribution(RuledRelevance):
    r"""Positive gradient × relevance of the attention maps, followed through all blocks.

    .. math:: M^l = \tfrac1H\sum_h\bigl(G^l_h\odot R^l_{A,h}\bigr)^+,\quad
        \hat A^l = \operatorname{rownorm}(I + M^l),\quad J = \hat A^L\cdots\hat A^{k+1},\quad
        s = J_{r,:},\quad s_r = 0

    :math:`G^l` is the gradient at the map, :math:`R^l_A` its relevance (``batch head query key``),
    :math:`k` is ``start_layer``. Chefer et al., CVPR 2021; what the Mask-LRP repository calls GAE is
    this method.
    Differs from the paper: it has no row norm, all code has (``row_normalize``). ``cls_value="min"``
    gives a class's read-out token the row's minimum, as Chefer's own repository does.
    """

    row_normalize: bool = True
    start_layer: int = 0
    cls_value: Literal["zero", "min"] = "zero"
    cites = "chefer2021transformer"
    signed = False
    presets = {
        "official": {"qa_relevance": "broadcast"},
        "paper": {"row_normalize": False},
        "chefer": {"cls_value": "min"},
    }
    needs = frozenset({Site.RELEVANCE, Site.ATTENTION_GRADIENT, Site.READOUT})

    def of_logit(self, tape: Tape) -> Tensor:
        require_block(self.start_layer, len(tape.recording.attention))
        relevance = self.flow(tape).attention[self.start_layer :]
        flow = self.rollout(tape, relevance, row_normalize=self.row_normalize)
        if self.cls_value == "zero" or tape.spans:
            return tape.read(flow)
        row = tape.read(flow, zero_readout=False)
        lowest = row.masked_fill(~tape.real, torch.inf).amin(dim=1, keepdim=True)
        return torch.where(tape.read_alone, lowest, row)
