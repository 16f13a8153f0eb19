"""Attention gradients of the last block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._method import Method
from tokenlight.methods._reduce import Reduce, reduced


@dataclass(frozen=True, slots=True)
class AttentionGradients(Method):
    r"""How the target would move if the read-out token attended more to each token.

    .. math:: s_j = \tfrac1H\sum_h G^L_{h,r,j}, \qquad G^L = \partial y/\partial A^L, \qquad s_r = 0

    :math:`G^L` is ``head query key``. Qiang et al. 2022, figure 2 ("Grads"): signed, last block.
    Differs from the paper: it gives the query × key matrix and no reduction to tokens; we read the
    row of the read-out token, the only one that is not zero for a head that reads one token. The
    official notebook returns zeros, so there is no official number to compare with.
    """

    reduce: Reduce = "cls_row"
    cites: ClassVar[str] = "qiang2022attcat"
    presets: ClassVar[dict[str, dict[str, str]]] = {"paper": {}}

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        return reduced(tape.attention_gradient[-1].mean(dim=1), tape, self.reduce)


METHOD = AttentionGradients
