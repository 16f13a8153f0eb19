"""SmoothGrad of AllenNLP Interpret."""

import torch
from torch import Tensor

from tokenlight.methods._path import WordGradientMethod, get_word_embeddings
from tokenlight.plugin import Count, PassCounts, Seed, Tape


class Smooth(WordGradientMethod):
    r"""Simple gradient, averaged over token embeddings with noise added.

    .. math:: s_i = \frac{|v_i|}{\sum_j |v_j|}, \quad v_i = \sum_k m_{i,k}\,\frac1S \sum_{s=1}^S
        \frac{\partial \mathcal L}{\partial E_{i,k}}\Big|_{E + \epsilon_s}, \quad
        \epsilon_s \sim \mathcal N\bigl(0, \sigma^2 (\max E - \min E)^2\bigr)

    :math:`E` (``token hidden``), :math:`\mathcal L` and ``multiply`` (:math:`m`) are those of ``simple``.
    Scores are not negative and sum to one.
    Differs from the AllenNLP code (``preset="official"``): it has no product, :math:`m = 1`, which leaves
    only rounding noise if a model normalizes its embeddings (BERT, RoBERTa), and is then an error.

    Args:
        num_samples: The number of draws S.
        noise: The deviation :math:`\sigma`, as a share of the range of the embeddings.
        seed: Seed of the noise.
        multiply: As in simple.
    """

    num_samples: Count = 10
    noise: float = 0.01
    seed: Seed = 0
    cites = "smilkov2017smoothgrad"
    stochastic = True
    presets = {"official": {"multiply": "none"}}

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        return PassCounts(1 + self.num_samples, self.num_samples)

    def compute_loss_gradient(self, tape: Tape) -> Tensor:
        embeddings = get_word_embeddings(tape)
        num_tokens = tape.token_mask.shape[1]
        is_padding = ~tape.token_mask[..., None]
        # A model may look up each token twice; the first lookup is enough for the range.
        token_embeddings = embeddings[:, :num_tokens]
        highest = token_embeddings.masked_fill(is_padding, -torch.inf).amax(dim=(1, 2))
        lowest = token_embeddings.masked_fill(is_padding, torch.inf).amin(dim=(1, 2))
        deviations = self.noise * (highest - lowest)

        def add_noise(examples: Tensor, steps: Tensor) -> Tensor:
            noise = torch.zeros_like(token_embeddings[examples])
            for index, (example, step) in enumerate(
                zip(examples.tolist(), steps.tolist(), strict=True)
            ):
                row = tape.rows[example]
                generator = row.make_generator(self.seed, step)
                draws = generator.standard_normal((len(row), embeddings.shape[2]))
                row_noise = deviations[example] * torch.from_numpy(draws).to(noise)
                noise[index, : len(row)] = row_noise
            # Both lookups of a token get the same noise.
            position_noise = tape.token_embeddings.hooks.spread_to_positions(
                noise, tape.token_mask[examples]
            )
            return embeddings[examples] + position_noise

        return self.average_loss_gradient(tape, self.num_samples, add_noise)
