"""Integrated gradients of AllenNLP Interpret."""

from torch import Tensor

from tokenlight.methods._path import WordGradientMethod, get_word_embeddings
from tokenlight.plugin import Count, PassCounts, Tape


class Integrated(WordGradientMethod):
    r"""Simple gradient, averaged over token embeddings shrunk towards zero.

    .. math:: s_i = \frac{|v_i|}{\sum_j |v_j|}, \quad v_i = \sum_k m_{i,k}\,\frac1S
        \sum_{s=0}^{S-1} \frac{\partial \mathcal L}{\partial E_{i,k}}\Big|_{(s/S)\,E}

    :math:`E` (``token hidden``), :math:`\mathcal L` and ``multiply`` (:math:`m`) are those of ``simple``.
    Scores are not negative and sum to one.
    Differs from the paper: nothing; the magnitudes, the loss and the left sum are AllenNLP's and not
    those of Sundararajan et al. 2017, for which see ``integrated_gradients``.

    Args:
        num_steps: The number of points S.
        multiply: As in simple.
    """

    num_steps: Count = 10
    cites = "wallace2019allennlp"

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        return PassCounts(1 + self.num_steps, self.num_steps)

    def compute_loss_gradient(self, tape: Tape) -> Tensor:
        embeddings = get_word_embeddings(tape)

        def shrink(examples: Tensor, steps: Tensor) -> Tensor:
            shares = steps.to(embeddings) / self.num_steps
            return embeddings[examples] * shares[:, None, None]

        return self.average_loss_gradient(tape, self.num_steps, shrink)
