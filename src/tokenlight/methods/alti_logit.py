"""ALTI-Logit: what each block's attention adds to the target, followed down to the input by ALTI."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.errors import UnsupportedModel
from tokenlight.methods._method import Method, Tape
from tokenlight.methods.alti import TokenToTokenInteractions


class LogitContributions(Method):
    r"""Share out what attention writes into the residual stream of the token that is read.

    .. math:: \Delta^l_j = \sum_i d^l_i\cdot\sum_h A^l_{h,i,j}\,W_O^h V^h_j,\qquad
        s = \sum_l \Delta^l\,M^{l-1},\quad M^0 = I

    :math:`d^l_i`, ``batch token hidden``, is the target's gradient at the last hidden state, brought to
    the stream after block l's attention along the residual path alone, norms being linear maps with
    the deviation they had; :math:`M^l`, ``batch query key``, is ALTI's product of the first l blocks
    (``p``: its norm). Feed-forward layers, biases and the token's own embedding are in no score.
    Ferrando et al., ACL 2023.
    Differs from the paper: it has language models whose blocks normalise first; here d also goes through
    a classifier's head and through norms that follow the sum (BERT).
    """

    p: Literal[1, 2] = 1
    cites = "ferrando2023explaining"
    needs = TokenToTokenInteractions.needs

    def __call__(self, tape: Tape) -> Tensor:
        scores, *added = self._added(tape)
        for own, below in zip(added, TokenToTokenInteractions(p=self.p).flows(tape), strict=False):
            scores = scores + torch.einsum("bj,bjk->bk", own, below)
        return scores

    def _added(self, tape: Tape) -> list[Tensor]:
        """What each token's value adds to the target in each block: ``batch token``, bottom first."""
        direction, found = tape.hidden_gradient[-1], list[Tensor]()  # d
        blocks = [*zip(tape.attention, tape.recording.values, tape.recording.mixings, strict=True)]
        for number, (maps, values, mixing) in reversed(list(enumerate(blocks))):
            after, last = mixing.norm is not None, number == len(blocks) - 1
            if mixing.last_norm is None and (after or last):
                raise UnsupportedModel(
                    f"what block {number} of this model adds cannot be followed to its last hidden state: "
                    "no known norm gives it; use alti, attnlrp or grad_x_input."
                )
            for norm in filter(None, (mixing.last_norm, mixing.norm)):
                direction = norm.back(direction)
            heads, width = values.shape[1], values.shape[3]
            matrix = mixing.projection.view(-1, heads, width).to(maps.dtype)
            asked = torch.einsum("bik,khw->bhiw", direction, matrix)
            answered = torch.einsum("bhiw,bhjw->bhij", asked, values.detach().to(maps.dtype))
            found.insert(0, (answered * maps).sum(dim=(1, 2)))
        return found
