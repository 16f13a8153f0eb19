"""Integrated gradients of AllenNLP Interpret."""

from torch import Tensor

from tokenlight.methods._path import Cost, Count, Tape, WordGradientMethod, word_embeddings


class Integrated(WordGradientMethod):
    r"""Simple gradient, averaged over token embeddings shrunk towards zero.

    .. math:: s_i = \frac{|v_i|}{\sum_j |v_j|}, \quad v_i = \sum_k m_{i,k}\,\frac1S
        \sum_{s=0}^{S-1} \frac{\partial \mathcal L}{\partial E_{i,k}}\Big|_{(s/S)\,E}

    :math:`E` (``token hidden``), :math:`\mathcal L` and ``multiply`` (:math:`m`) are those of
    ``simple``; S is ``n_steps``. Non-negative, sums to one.
    Differs from the paper: nothing; the magnitudes, the loss and the left sum are AllenNLP's and not
    those of Sundararajan et al. 2017, for which see ``integrated_gradients``.
    """

    n_steps: Count = 10
    cites = "wallace2019allennlp"

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.n_steps, self.n_steps)

    def gradient(self, tape: Tape) -> Tensor:
        words, count = word_embeddings(tape), self.n_steps

        def shrunk(which: Tensor, step: Tensor) -> Tensor:
            return words[which] * (step.to(words) / count)[:, None, None]

        return self.averaged(tape, count, shrunk)
