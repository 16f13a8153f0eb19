"""CAM of Mask-LRP: the positive part of the mean attention gradient."""

from torch import Tensor

from tokenlight.methods._maps import AttentionGradientMethod
from tokenlight.plugin import Tape


class AttentionCam(AttentionGradientMethod):
    r"""Mean over heads and queries of the last attention gradient, then its positive part.

    .. math:: s_j = \Bigl(\frac1{Hn}\sum_{h,i} G^L_{h,i,j}\Bigr)^+, \qquad s_r = 0

    :math:`G^L` is ``head query key``, :math:`r` the single read-out token of a class, or the first one of
    an answer.
    Often zero for every token: a weak baseline (Mask-LRP, table 1).
    Differs from the official code: its mean runs over padded queries too, ours over real ones.
    """

    cites = "song2024mask"
    signed = False

    def score(self, tape: Tape) -> Tensor:
        scores = tape.average_over_queries(tape.attention_gradients[-1].mean(dim=1)).clamp(min=0)
        return tape.zero_readout_token(scores)
