"""ALTI: what each token contributes to every other token's vector, rolled out over the blocks."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import iter_rollout, take_last_product
from tokenlight.plugin import Method, Site, Tape, UnsupportedModel
from tokenlight.trace.mixing import Mixing

CHUNK_ELEMENTS = 1 << 24  # elements of the n × n × hidden decomposition in memory at once
DISTANCE_SHIFT = 1e-6  # added by torch's pairwise_distance, which the official code calls


class TokenToTokenInteractions(Method):
    r"""Decompose each block's attention output into the vectors its tokens contribute.

    .. math:: F_{ij} = \sum_h A_{h,i,j}\,W_O^h V^h_j + [i=j]\,x_j,\quad
        T_{ij} = \frac{(F_{ij}-\overline{F_{ij}})\odot\gamma}{\sigma_i},\quad
        c_{ij} = \bigl(\|y_i\|_p-\|T_{ij}-y_i\|_p\bigr)^+

    Rows of c are divided by their sum and multiplied over the blocks; the read-out token's row is the
    score. :math:`y_i` is the output of the norm after attention; if a block normalizes first, :math:`T=F`
    and :math:`y` is the residual stream after attention. F is ``batch query key hidden``. Ferrando et al.
    2022.
    Differs from the paper: nothing.

    Args:
        p: The norm that measures distances.
        ln2: The authors' variant: apply the second norm to T as well, and compare it with the output of
            the block.
    """

    p: Literal[1, 2] = 1
    ln2: bool = False
    cites = "ferrando2022measuring"
    signed = False
    class_agnostic = True
    needs = frozenset({Site.ATTENTION, Site.HIDDEN_STATES, Site.MIXING, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        product = take_last_product(self.roll_out_blocks(tape))
        return tape.read_rows(product, zero_readout=False)

    def roll_out_blocks(self, tape: Tape) -> Iterator[Tensor]:
        """Yield after each block the share of every token in every state, ``batch query key``."""
        blocks = zip(tape.attention, tape.recording.values, tape.recording.mixings, strict=True)
        steps = (self._compute_contributions(tape.token_mask, *block) for block in blocks)
        return iter_rollout(steps, row_normalize=False, residual=False)

    def _compute_contributions(
        self, token_mask: Tensor, maps: Tensor, values: Tensor, mixing: Mixing
    ) -> Tensor:
        """Return the row-normalized c of one block, ``batch query key``."""
        values = values.detach().to(maps.dtype)
        batch, num_heads, num_tokens, head_width = values.shape
        projection = mixing.projection.view(-1, num_heads, head_width).to(values.dtype)
        # What each head's value of a token becomes in the residual stream, ``batch head key hidden``.
        # Axes: b batch, h head, i query, j key, w width of a head, k hidden.
        projected = torch.einsum("bhjw,khw->bhjk", values, projection)
        identity = torch.eye(num_tokens, device=maps.device, dtype=maps.dtype)
        residual = mixing.residual[:, None].to(maps.dtype)
        # A few queries at a time, since F has n × n × hidden elements.
        chunk_size = max(1, CHUNK_ELEMENTS // (batch * num_tokens * projection.shape[0]))
        chunks = []
        for first in range(0, num_tokens, chunk_size):
            queries = slice(first, first + chunk_size)
            vectors = torch.einsum("bhij,bhjk->bijk", maps[:, :, queries], projected)
            vectors = vectors + identity[queries][None, :, :, None] * residual
            chunks.append(self._compute_closeness(vectors, mixing, queries))
        closeness = torch.cat(chunks, dim=1).masked_fill(~token_mask[:, None, :], 0.0)
        total = closeness.sum(dim=-1, keepdim=True)
        return closeness / torch.where(total == 0, 1.0, total)

    def _compute_closeness(self, vectors: Tensor, mixing: Mixing, queries: slice) -> Tensor:
        """Return c of some queries, ``batch query key``, from F, ``batch query key hidden``."""
        output = mixing.stream
        if mixing.norm is not None:
            vectors = mixing.norm.apply_linear(vectors, queries)
        if self.ln2:
            if mixing.norm is None or mixing.last_norm is None:
                raise UnsupportedModel(
                    "ln2=True needs blocks that end in a norm, but those of this model do not. Leave it "
                    "out.",
                    code="ln2-without-norm",
                )
            vectors = mixing.last_norm.apply_linear(vectors, queries)
            output = mixing.last_norm.output
        output = output[:, queries].to(vectors.dtype)
        difference = vectors - output[:, :, None] + DISTANCE_SHIFT
        distance = torch.linalg.vector_norm(difference, ord=self.p, dim=-1)
        length = torch.linalg.vector_norm(output, ord=self.p, dim=-1)
        closeness: Tensor = length[..., None] - distance
        return closeness.clamp(min=0)
