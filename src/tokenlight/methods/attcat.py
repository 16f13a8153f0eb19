"""AttCAT: class activations of every token weighted by the attention it receives."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import over_sides
from tokenlight.methods._method import GradientMethod, Site, Tape
from tokenlight.methods.cat import ClassActivationTokens, Hidden, class_activations


class AttentiveClassActivationTokens(GradientMethod):
    r"""Impact score: gradient × hidden state per token and layer, weighted by received attention.

    .. math:: s_i = \sum_{l=1}^L \alpha^l_i \sum_k \frac{\partial y}{\partial h^{l-1}_{i,k}}\,h^{l-1}_{i,k},
        \qquad \alpha^l_i = \frac1{Hn}\sum_{h,q} A^l_{h,q,i}

    :math:`n` and :math:`q` run over real tokens; magnitude is impact, sign is direction. Of a model that
    writes after a source, states of both its parts count, each by what it receives where it is read
    next; what the encoder hands on, by the mean over the decoder's blocks. Qiang et al., NeurIPS 2022.
    Differs from the paper: its text takes the state that leaves block l, the official code and our
    default the one that enters (``hidden``; ``preset="paper"``). "Attention weights of the token" is
    read as attention *received*, the only informative mean, since rows sum to one
    (``attn_reduce="cls"`` takes the read-out token's row, ``"given"`` the constant 1/n). ``abs=True``
    gives :math:`|s_i|`, as two official notebooks do (QQP, SQuAD v2); ``layers`` then holds the terms
    times the sign of their sum. ``gradient``: as in cat.
    """

    hidden: Hidden = "input"
    attn_reduce: Literal["received", "cls", "given"] = "received"
    abs: bool = False
    after_source = True
    cites = "qiang2022attcat"
    per_layer = True
    presets = ClassActivationTokens.presets

    @property
    def needs(self) -> frozenset[Site]:
        own = {"received": {Site.RECEIVED}, "cls": {Site.ATTENTION, Site.READOUT}}
        return frozenset({Site.HIDDEN, Site.HIDDEN_GRADIENT} | own.get(self.attn_reduce, set()))

    def __call__(self, tape: Tape) -> Tensor:
        if self.abs or self.attn_reduce == "cls":  # else linear in the gradient: one map of the sum
            return over_sides(tape, self._terms)
        return self._terms(tape)

    def _terms(self, tape: Tape) -> Tensor:
        terms = class_activations(tape, self.hidden)  # batch layer token
        if self.attn_reduce == "given":
            terms = terms / tape.lengths[:, None, None].to(terms.dtype)
        elif self.attn_reduce == "cls":
            rows = [tape.read(mean, zero_readout=False) for mean in tape.maps.mean_attention()]
            terms = terms * torch.stack(rows, dim=1)
        else:
            received, parts = tape.received, tape.recording.parts
            if parts is not None and self.hidden == "output":
                # That state was counted as it left.
                kept = [i for i in range(received.shape[1]) if i != parts.states - 1]
                received = received[:, kept]
            terms = terms * received
        return terms * terms.sum(dim=1, keepdim=True).sign() if self.abs else terms
