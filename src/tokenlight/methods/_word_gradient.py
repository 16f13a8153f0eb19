"""From the loss's gradient at the token embeddings to one share a token, as AllenNLP does it."""

import abc
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from tokenlight.errors import BadInput
from tokenlight.methods._method import Method, Site, Tape
from tokenlight.methods._path import mean_gradient

Multiply = Literal["own", "first", "none"]


def word_embeddings(tape: Tape) -> Tensor:
    """``batch place hidden``: the token tables' vectors, zero at padding."""
    return tape.words.values.masked_fill(~_inside(tape), 0.0)


def _inside(tape: Tape) -> Tensor:
    """``batch place 1``: true where a table looks up no padding."""
    return tape.real.repeat(1, 1 + tape.words.entrance.twice)[..., None]


class WordGradientMethod(Method, base=True):
    r"""Magnitudes that sum to one: :math:`|\sum_k G_{i,k} m_k| / \sum_j |\sum_k G_{j,k} m_k|`.

    ``multiply``: m is the token's own embedding, that of the first token, or one.
    """

    multiply: Multiply
    signed = False
    needs = frozenset({Site.WORDS})

    def __call__(self, tape: Tape) -> Tensor:
        gradient = self.gradient(tape).masked_fill(~_inside(tape), 0.0)
        words = word_embeddings(tape)
        factors = {"own": words, "first": words[:, :1], "none": torch.ones_like(words[:, :1])}
        terms = gradient * factors[self.multiply]
        values = terms.sum(dim=-1)
        name = f"{self.name} (multiply={self.multiply!r})"
        _refuse_rounding_noise(values, terms, tape.recording.logits.dtype, name)
        return l1_shares(tape.words.folded(values).masked_fill(~tape.real, 0.0))

    @abc.abstractmethod
    def gradient(self, tape: Tape) -> Tensor:
        """G, the loss's gradient at the token tables' output, ``batch place hidden``."""

    @staticmethod
    def averaged(tape: Tape, count: int, point: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The mean of G over ``count`` points (see :func:`mean_gradient`)."""
        everyone = torch.arange(len(tape.rows), device=tape.words.values.device)
        weights = torch.full((len(everyone), count), 1 / count, device=everyone.device)
        return mean_gradient(tape, everyone, weights, point, at="words", of="loss")


def l1_shares(values: Tensor) -> Tensor:
    """|v| over its sum, each row by itself; a row of zeros stays one."""
    magnitude = values.abs()
    total = magnitude.sum(dim=-1, keepdim=True)
    return magnitude / torch.where(total > 0, total, torch.ones_like(total))


def _refuse_rounding_noise(values: Tensor, terms: Tensor, dtype: torch.dtype, name: str) -> None:
    """A norm right behind the token table does not see a token's length, nor its mean: the gradient
    stands at right angles to the embedding, and to ones. What is left is rounding and the norm's
    stabiliser."""
    whole = terms.abs().sum(dim=-1).amax(dim=-1)
    noise = values.abs().amax(dim=-1) <= max(1e-3, torch.finfo(dtype).eps) * whole
    if bool((noise & (whole > 0)).any()):
        raise BadInput(
            f"{name} adds up products of gradient and embedding that cancel: this model norms its "
            "token embeddings before anything else reads them, so what is left is rounding noise. Use "
            "grad_x_input, which reads the embeddings behind that norm, or another multiply."
        )
