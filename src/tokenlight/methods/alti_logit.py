"""ALTI-Logit: what each block's attention adds to the target, traced to the input by ALTI."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods.alti import TokenToTokenInteractions
from tokenlight.plugin import Method, Tape, UnsupportedModel


class LogitContributions(Method):
    r"""Distribute what attention writes into the residual stream of the token that is read.

    .. math:: \Delta^l_j = \sum_i d^l_i\cdot\sum_h A^l_{h,i,j}\,W_O^h V^h_j,\qquad
        s = \sum_l \Delta^l\,M^{l-1},\quad M^0 = I

    :math:`d^l_i`, ``batch token hidden``, is the target's gradient at the last hidden state, propagated
    to the stream after block l's attention along the residual path alone, with norms as linear maps that
    keep their deviation; :math:`M^l`, ``batch query key``, is ALTI's product of the first l blocks.
    Feed-forward layers, biases and the token's own embedding are in no score. Ferrando et al., ACL 2023.
    Differs from the paper: it treats language models whose blocks normalize first; here d also goes
    through a classifier's head and through norms after the sum (BERT).

    Args:
        p: The norm that ALTI measures distances with.
    """

    p: Literal[1, 2] = 1
    cites = "ferrando2023explaining"
    needs = TokenToTokenInteractions.needs

    def __call__(self, tape: Tape) -> Tensor:
        scores, *upper_contributions = self._compute_block_contributions(tape)
        products = TokenToTokenInteractions(p=self.p).roll_out_blocks(tape)
        # Block l reads the states after block l - 1, so the last product is not needed.
        for contributions, product in zip(upper_contributions, products, strict=False):
            scores = scores + torch.einsum("bj,bjk->bk", contributions, product)
        return scores

    def _compute_block_contributions(self, tape: Tape) -> list[Tensor]:
        """Return Δ^l of each block, bottom first: what each token's value adds, ``batch token``."""
        recording = tape.recording
        blocks = list(zip(tape.attention, recording.values, recording.mixings, strict=True))
        direction = tape.top_gradient  # d of the formula
        contributions: list[Tensor] = []  # top first
        for block in reversed(range(len(blocks))):
            maps, values, mixing = blocks[block]
            normalizes_after = mixing.norm is not None
            is_last = block == len(blocks) - 1
            if mixing.last_norm is None and (normalizes_after or is_last):
                raise UnsupportedModel(
                    f"What block {block} of this model adds cannot be followed to its last hidden state, "
                    "because no known norm produces that state. Use alti, attnlrp or grad_x_input.",
                    code="block-output-unknown",
                )
            for norm in (mixing.last_norm, mixing.norm):
                if norm is not None:
                    direction = norm.apply_transpose(direction)
            _, num_heads, _, head_width = values.shape
            projection = mixing.projection.view(-1, num_heads, head_width).to(maps.dtype)
            head_direction = torch.einsum("bik,khw->bhiw", direction, projection)
            head_values = values.detach().to(maps.dtype)
            products = torch.einsum("bhiw,bhjw->bhij", head_direction, head_values)
            contributions.append((products * maps).sum(dim=(1, 2)))
        return contributions[::-1]
