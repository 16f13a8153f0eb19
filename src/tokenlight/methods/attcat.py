"""AttCAT: class activations of every token weighted by the attention it receives."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import sum_over_sides
from tokenlight.methods.base import GradientMethod
from tokenlight.methods.cat import ClassActivationTokens, Hidden, compute_class_activations
from tokenlight.plugin import Site, Tape


class AttentiveClassActivationTokens(GradientMethod):
    r"""Impact score: gradient × hidden state per token and layer, weighted by received attention.

    .. math:: s_i = \sum_{l=1}^L \alpha^l_i \sum_k \frac{\partial y}{\partial h^{l-1}_{i,k}}\,h^{l-1}_{i,k},
        \qquad \alpha^l_i = \frac1{Hn}\sum_{h,q} A^l_{h,q,i}

    :math:`n` and :math:`q` run over real tokens; magnitude is impact, sign is direction. Of an
    encoder-decoder model, the states of both parts count, each weighted by the attention that it receives
    where it is read next; the encoder's output by the mean over the decoder's blocks. Qiang et al.,
    NeurIPS 2022.
    Differs from the paper: its text takes the state after block l (``preset="paper"``), the official
    code and our default the state before it. "Attention weights of the token" is read as attention
    *received*, the only informative mean, since rows sum to one. ``preset="libra"`` is Libra AttCAT
    (Mehri et al., CVPR 2025).

    Args:
        hidden: The state before (``"input"``) or after (``"output"``) each block.
        attn_reduce: The attention of a token: what it ``"received"``; the read-out token's row
            (``"cls"``); or the mean that it gives, which is the constant 1/n (``"given"``).
        absolute: Return :math:`|s_i|`, as two official notebooks do (QQP, SQuAD v2). ``layers`` then holds
            the terms times the sign of their sum.
        gradient: As in cat.
    """

    hidden: Hidden = "input"
    attn_reduce: Literal["received", "cls", "given"] = "received"
    absolute: bool = False
    supports_encoder_decoder = True
    cites = "qiang2022attcat"
    per_layer = True
    presets = ClassActivationTokens.presets

    @property
    def needs(self) -> frozenset[Site]:
        sites = {Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT}
        if self.attn_reduce == "received":
            sites |= {Site.ATTENTION_RECEIVED}
        elif self.attn_reduce == "cls":
            sites |= {Site.ATTENTION, Site.READOUT}
        return frozenset(sites)

    def __call__(self, tape: Tape) -> Tensor:
        # The other options are linear in the gradient, so the sides of an answer need no separate maps.
        if self.absolute or self.attn_reduce == "cls":
            return sum_over_sides(tape, self._terms)
        return self._terms(tape)

    def _terms(self, tape: Tape) -> Tensor:
        """Return the term of each layer, ``batch layer token``."""
        terms = compute_class_activations(tape, self.hidden)
        if self.attn_reduce == "given":
            terms = terms / tape.lengths[:, None, None].to(terms.dtype)
        else:
            terms = terms * self._attention(tape)
        if self.absolute:
            terms = terms * terms.sum(dim=1, keepdim=True).sign()
        return terms

    def _attention(self, tape: Tape) -> Tensor:
        """Return α, ``batch layer token``."""
        if self.attn_reduce == "cls":
            rows = []
            for mean_map in tape.attention_maps.mean_attention():
                rows.append(tape.read_rows(mean_map, zero_readout=False))
            return torch.stack(rows, dim=1)
        received = tape.received_attention
        layout = tape.recording.encoder_decoder
        if layout is not None and self.hidden == "output":
            # The encoder's output was counted already, as the state after its last block.
            encoder_output = layout.num_encoder_states - 1
            layers = [layer for layer in range(received.shape[1]) if layer != encoder_output]
            received = received[:, layers]
        return received
