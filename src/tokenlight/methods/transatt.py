"""Transformer attribution: relevance × gradient of every attention map, rolled out."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import check_start_layer
from tokenlight.methods._relevance import RuleBasedRelevance
from tokenlight.plugin import Site, Tape


class TransformerAttribution(RuleBasedRelevance):
    r"""Positive gradient × relevance of the attention maps, followed through all blocks.

    .. math:: M^l = \tfrac1H\sum_h\bigl(G^l_h\odot R^l_{A,h}\bigr)^+,\quad
        \hat A^l = \operatorname{rownorm}(I + M^l),\quad J = \hat A^L\cdots\hat A^{k+1},\quad
        s = J_{r,:},\quad s_r = 0

    :math:`G^l` is the gradient at the map, :math:`R^l_A` its relevance (``batch head query key``),
    :math:`k` is ``start_layer``. Chefer et al., CVPR 2021; what the Mask-LRP repository calls GAE is
    this method.
    Differs from the paper: it has no row norm, but all code has.

    Args:
        row_normalize: Divide each row by its sum.
        start_layer: The lowest block that is used.
        cls_value: The score of a class's read-out token: zero, or the minimum of the row (``"min"``), as in
            Chefer's own repository.
        rules: As in lrp.
        qa_relevance: As in lrp.
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

    def score_logit(self, tape: Tape) -> Tensor:
        check_start_layer(self.start_layer, len(tape.recording.attention))
        relevance = self.propagate(tape).attention[self.start_layer :]
        zero_readout = self.cls_value == "zero" or tape.has_span_targets
        row = self.roll_out_relevance(
            tape, relevance, row_normalize=self.row_normalize, zero_readout=zero_readout
        )
        if zero_readout:
            return row
        lowest = row.masked_fill(~tape.token_mask, torch.inf).amin(dim=1, keepdim=True)
        return torch.where(tape.single_readout, lowest, row)
