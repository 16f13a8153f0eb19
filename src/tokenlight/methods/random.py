"""Random scores: the floor every method must beat."""

from torch import Tensor

from tokenlight.methods._perturbation import pad_scores
from tokenlight.plugin import Method, Seed, Tape


class RandomScores(Method):
    """Uniform draws from [0, 1), one per token.

    The generator is seeded by ``seed`` and the token ids of the text, so that a text gets the same draws
    alone, in any batch, and on any machine.
    Differs from the paper: nothing.

    Args:
        seed: Seed of the draws; by default the one given to ``explain``.
    """

    seed: Seed = 0
    cites = "hou2023decoding"
    signed = False
    class_agnostic = True
    stochastic = True
    needs = frozenset()

    def __call__(self, tape: Tape) -> Tensor:
        scores = [row.make_generator(self.seed).random(len(row)) for row in tape.rows]
        return pad_scores(tape, scores)
