"""Value zeroing: what each token's vector loses when another's value says nothing, rolled out."""

from torch import Tensor

from tokenlight.capture.altered import distances
from tokenlight.methods._maps import Method, Site, Tape, rolled_out
from tokenlight.methods._method import Cost


class ValueZeroing(Method):
    r"""Set the value vector of one token to zero in one block, and see how far the others move.

    .. math:: C^l_{ij} = 1-\cos\bigl(x^l_i, \tilde x^{l,\neg j}_i\bigr),\quad
        J = \operatorname{rownorm}(C^L)\cdots\operatorname{rownorm}(C^1),\quad s = J_{r,:}

    :math:`x^l_i` leaves block l at token i; :math:`\tilde x` does so with :math:`V_j=0` in every head
    and the block's input as it was, residual path and feed-forward layer included. C is ``batch query
    key``; :math:`r` is the read-out token. Each of n passes zeroes one token's value in every block
    at once, for every block gets the input it had. Mohebbi et al., EACL 2023.
    Differs from the paper: a row that nothing moves is zero instead of undefined. Models whose attention
    does not go through transformers' interface (DeBERTa), or that write after a source, are refused.
    """

    cites = "mohebbi2023quantifying"
    signed = False
    class_agnostic = True
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def cost(self, tokens: int) -> Cost:
        return Cost(tokens + 2, 1)

    def __call__(self, tape: Tape) -> Tensor:
        moved, padding = distances(tape.recording), ~tape.real[:, None, :]
        steps = [own.masked_fill(padding, 0.0).to(tape.attention[0].dtype) for own in moved]
        *_, flow = rolled_out(steps, row_normalize=True, residual=False)
        return tape.read(flow, zero_readout=False)
