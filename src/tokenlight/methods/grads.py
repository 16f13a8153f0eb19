"""Attention gradients of the last block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.methods._maps import AttentionGradientMethod, Reduce, reduced
from tokenlight.methods._method import Presets


@dataclass(frozen=True, slots=True)
class AttentionGradients(AttentionGradientMethod):
    r"""How the target would move if the read-out token attended more to each token.

    .. math:: s_j = \tfrac1H\sum_h G^L_{h,r,j}, \qquad G^L = \partial y/\partial A^L

    :math:`G^L` is ``head query key``. Qiang et al. 2022, figure 2 ("Grads"): signed, last block;
    the read-out token keeps its own score. An answer's scores are its start's plus its end's.
    Differs from the paper: it gives the query × key matrix and no reduction to tokens; we read the
    row of the read-out token, the only one that is not zero for a head that reads one token. The
    official notebook returns zeros, so there is no official number to compare with.
    """

    reduce: Reduce = "cls_row"
    cites: ClassVar[str] = "qiang2022attcat"
    presets: ClassVar[Presets] = {"paper": {}}

    def score(self, tape: Tape) -> Tensor:
        gradient = tape.attention_gradient[-1].mean(dim=1)
        return reduced(gradient, tape, self.reduce, zero_readout=False)


METHOD = AttentionGradients
