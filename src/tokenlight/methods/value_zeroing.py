"""Value zeroing: how much each vector changes without the value of another token, rolled out."""

from torch import Tensor

from tokenlight.methods._maps import iter_rollout, take_last_product
from tokenlight.plugin import Method, PassCounts, Site, Tape
from tokenlight.trace.value_zeroing import compute_value_zeroing_distances


class ValueZeroing(Method):
    r"""Set the value vector of one token to zero in one block, and measure how far the others move.

    .. math:: C^l_{ij} = 1-\cos\bigl(x^l_i, \tilde x^{l,\neg j}_i\bigr),\quad
        J = \operatorname{rownorm}(C^L)\cdots\operatorname{rownorm}(C^1),\quad s = J_{r,:}

    :math:`x^l_i` is the output of block l at token i, and :math:`\tilde x` the same with :math:`V_j=0` in
    every head and an unchanged input of the block, residual path and feed-forward layer included. C is
    ``batch query key``; :math:`r` is the read-out token. Each of n passes zeroes the value of one token in
    every block at once, because every block gets its original input. Mohebbi et al., EACL 2023.
    Differs from the paper: a row that does not move is zero instead of undefined. Models whose attention
    does not use the interface of transformers (DeBERTa), and encoder-decoder models that generate text,
    are not supported.
    """

    cites = "mohebbi2023quantifying"
    signed = False
    class_agnostic = True
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def count_passes(self, num_tokens: int) -> PassCounts:
        return PassCounts(num_tokens + 2, 1)

    def __call__(self, tape: Tape) -> Tensor:
        is_padding = ~tape.token_mask[:, None, :]
        dtype = tape.attention[0].dtype
        steps = []
        for distances in compute_value_zeroing_distances(tape.recording):
            steps.append(distances.masked_fill(is_padding, 0.0).to(dtype))
        product = take_last_product(iter_rollout(steps, row_normalize=True, residual=False))
        return tape.read_rows(product, zero_readout=False)
