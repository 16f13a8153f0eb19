"""SmoothGrad of AllenNLP Interpret."""

import torch
from torch import Tensor

from tokenlight.methods._path import Cost, Count, Tape, WordGradientMethod, word_embeddings


class Smooth(WordGradientMethod):
    r"""Simple gradient, averaged over token embeddings with noise added.

    .. math:: s_i = \frac{|v_i|}{\sum_j |v_j|}, \quad v_i = \sum_k m_{i,k}\,\frac1S \sum_{s=1}^S
        \frac{\partial \mathcal L}{\partial E_{i,k}}\Big|_{E + \epsilon_s}, \quad
        \epsilon_s \sim \mathcal N\bigl(0, \sigma^2 (\max E - \min E)^2\bigr)

    :math:`E` (``token hidden``), :math:`\mathcal L` and ``multiply`` (:math:`m`) are those of
    ``simple``; S is ``samples``, :math:`\sigma` is ``noise``. Non-negative, sums to one.
    Differs from the AllenNLP code (``preset="official"``): it has no product, :math:`m = 1`, which leaves
    rounding noise where a model norms its embeddings (BERT, RoBERTa), and is then refused.
    """

    samples: Count = 10
    noise: float = 0.01
    seed: int = 0
    cites = "smilkov2017smoothgrad"
    draws = True
    presets = {"official": {"multiply": "none"}}

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.samples, self.samples)

    def gradient(self, tape: Tape) -> Tensor:
        words = word_embeddings(tape)
        own, padding = words[:, : tape.real.shape[1]], ~tape.real[..., None]
        highest = own.masked_fill(padding, -torch.inf).amax(dim=(1, 2))
        spread = self.noise * (highest - own.masked_fill(padding, torch.inf).amin(dim=(1, 2)))

        def noisy(which: Tensor, step: Tensor) -> Tensor:
            noise = torch.zeros_like(own[which])
            for into, example, turn in zip(noise, which.tolist(), step.tolist(), strict=True):
                row = tape.rows[example]
                drawn = row.generator(self.seed, turn).standard_normal((len(row), words.shape[2]))
                into[: len(row)] = spread[example] * torch.from_numpy(drawn).to(into)
            # A token has one noise, wherever it is read.
            return words[which] + tape.words.entrance.spread(noise, tape.real[which])

        return self.averaged(tape, self.samples, noisy)
