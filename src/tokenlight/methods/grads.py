"""Attention gradients of the last block."""

from torch import Tensor

from tokenlight.methods._maps import AttentionGradientMethod, Reduce, reduce_to_tokens
from tokenlight.plugin import Tape


class AttentionGradients(AttentionGradientMethod):
    r"""How the target would move if the read-out token attended more to each token.

    .. math:: s_j = \tfrac1H\sum_h G^L_{h,r,j}, \qquad G^L = \partial y/\partial A^L

    :math:`G^L` is ``head query key``. Qiang et al. 2022, figure 2 ("Grads"): last block; the read-out
    token keeps its own score.
    Differs from the paper: it gives no reduction to tokens; we read the row of the read-out token, the
    only one that is not zero for a head that reads one token. The official notebook returns zeros.

    Args:
        reduce: How queries are reduced; ``"cls_row"`` takes the row of the read-out token.
    """

    reduce: Reduce = "cls_row"
    cites = "qiang2022attcat"

    def score(self, tape: Tape) -> Tensor:
        gradient = tape.attention_gradients[-1].mean(dim=1)
        return reduce_to_tokens(gradient, tape, self.reduce, zero_readout=False)
