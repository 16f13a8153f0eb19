"""ALTI: what each token brought to each other token's vector, rolled out over the blocks."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from tokenlight.capture.blocks import Mixing
from tokenlight.errors import UnsupportedModel
from tokenlight.methods._maps import Method, Site, Tape, rolled_out

CHUNK_ELEMENTS = 1 << 24  # of the n × n × hidden decomposition held at once
DISTANCE_SHIFT = 1e-6  # torch's pairwise_distance, which the official code calls, adds it


class TokenToTokenInteractions(Method):
    r"""Decompose each block's attention output into the vectors its tokens contribute.

    .. math:: F_{ij} = \sum_h A_{h,i,j}\,W_O^h V^h_j + [i=j]\,x_j,\quad
        T_{ij} = \frac{(F_{ij}-\overline{F_{ij}})\odot\gamma}{\sigma_i},\quad
        c_{ij} = \bigl(\|y_i\|_p-\|T_{ij}-y_i\|_p\bigr)^+

    Rows of c are divided by their sum and multiplied over the blocks; the read-out token's is read.
    :math:`y_i` is the output of the norm after attention; where a block normalises first, :math:`T=F`
    and :math:`y` is the stream after attention. F is ``batch query key hidden``. Ferrando et al. 2022.
    Differs from the paper: nothing; ``ln2``, the authors' variant, sends T through the second norm too
    and compares it with the block's output.
    """

    p: Literal[1, 2] = 1
    ln2: bool = False
    cites = "ferrando2022measuring"
    signed = False
    class_agnostic = True
    needs = frozenset({Site.ATTENTION, Site.HIDDEN, Site.MIXING, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        *_, flow = self.flows(tape)
        return tape.read(flow, zero_readout=False)

    def flows(self, tape: Tape) -> Iterator[Tensor]:
        """What each state after each block is made of, in shares of the tokens: ``batch query key``."""
        blocks = zip(tape.attention, tape.recording.values, tape.recording.mixings, strict=True)
        steps = (self._contributions(tape.real, *block) for block in blocks)
        return rolled_out(steps, row_normalize=False, residual=False)

    def _contributions(self, real: Tensor, maps: Tensor, values: Tensor, mixing: Mixing) -> Tensor:
        """One block's row-normalised c, ``batch query key``."""
        values = values.detach().to(maps.dtype)
        batch, heads, tokens, width = values.shape
        matrix = mixing.projection.view(-1, heads, width).to(values.dtype)
        brought = torch.einsum("bhjw,khw->bhjk", values, matrix)
        chunk = max(1, CHUNK_ELEMENTS // (batch * tokens * matrix.shape[0]))
        parts = []
        for first in range(0, tokens, chunk):
            rows = slice(first, first + chunk)
            vectors = torch.einsum("bhij,bhjk->bijk", maps[:, :, rows], brought)
            own = torch.eye(tokens, device=maps.device, dtype=maps.dtype)[rows]
            vectors = vectors + own[None, :, :, None] * mixing.given[:, None].to(maps.dtype)
            parts.append(self._closeness(vectors, mixing, rows))
        closeness = torch.cat(parts, dim=1).masked_fill(~real[:, None, :], 0.0)
        total = closeness.sum(dim=-1, keepdim=True)
        return closeness / torch.where(total == 0, 1.0, total)

    def _closeness(self, vectors: Tensor, mixing: Mixing, rows: slice) -> Tensor:
        output = mixing.output
        if mixing.norm is not None:
            vectors = mixing.norm.linear(vectors, rows)
        if self.ln2:
            if mixing.norm is None or mixing.last_norm is None:
                raise UnsupportedModel("ln2=True needs blocks that end in a norm; leave it out.")
            vectors, output = mixing.last_norm.linear(vectors, rows), mixing.last_norm.output
        output = output[:, rows].to(vectors.dtype)
        difference = vectors - output[:, :, None] + DISTANCE_SHIFT
        distance = torch.linalg.vector_norm(difference, ord=self.p, dim=-1)
        length = torch.linalg.vector_norm(output, ord=self.p, dim=-1)
        closeness: Tensor = length[..., None] - distance
        return closeness.clamp(min=0)
