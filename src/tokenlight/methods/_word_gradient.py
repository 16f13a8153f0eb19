"""From the loss's gradient at the token embeddings to one share a token, as AllenNLP does it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.errors import BadInput

Multiply = Literal["own", "first", "none"]


def word_embeddings(tape: Tape) -> Tensor:
    """``batch place hidden``: the token tables' vectors, zero at padding."""
    return tape.words.values.masked_fill(~_inside(tape), 0.0)


def _inside(tape: Tape) -> Tensor:
    """``batch place 1``: true where a table looks up no padding."""
    return tape.real.repeat(1, len(tape.words.tensors))[..., None]


def shared_out(tape: Tape, gradient: Tensor, multiply: Multiply, method: str) -> Tensor:
    r"""Magnitudes that sum to one: :math:`|\sum_k G_{i,k} m_k| / \sum_j |\sum_k G_{j,k} m_k|`.

    ``multiply``: m is the token's own embedding, that of the first token, or one.
    """
    gradient = gradient.masked_fill(~_inside(tape), 0.0)
    words = word_embeddings(tape)
    if multiply == "none":
        values = gradient.sum(dim=-1)
        _refuse_rounding_noise(
            values, gradient, words_dtype=tape.recording.logits.dtype, name=method
        )
    else:
        values = torch.linalg.vecdot(gradient, words if multiply == "own" else words[:, :1])
    return l1_shares(tape.words.folded(values).masked_fill(~tape.real, 0.0))


def l1_shares(values: Tensor) -> Tensor:
    """|v| over its sum, each row by itself; a row of zeros stays one."""
    magnitude = values.abs()
    total = magnitude.sum(dim=-1, keepdim=True)
    return magnitude / torch.where(total > 0, total, torch.ones_like(total))


def _refuse_rounding_noise(
    values: Tensor, gradient: Tensor, *, words_dtype: torch.dtype, name: str
) -> None:
    whole = gradient.abs().sum(dim=-1).amax(dim=-1)
    noise = values.abs().amax(dim=-1) <= torch.finfo(words_dtype).eps ** 0.5 * whole
    if bool((noise & (whole > 0)).any()):
        raise BadInput(
            f"{name} with multiply='none' adds up a gradient whose features sum "
            "to zero: this model norms its embeddings, so what would be left is rounding noise. Use "
            "multiply='own'."
        )
