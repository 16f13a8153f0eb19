"""Random scores: the floor every method must beat."""

from torch import Tensor

from tokenlight.methods._method import Method, Tape
from tokenlight.methods._presence import laid_out


class RandomScores(Method):
    """Uniform draws from [0, 1), one a token.

    The generator is seeded by ``seed`` and the text's token ids, so a text gets the same draws
    alone, in any batch, and on any machine. The seed given to ``explain`` is used where the option
    is left at its default. Differs from the paper: nothing.
    """

    seed: int = 0
    cites = "hou2023decoding"
    signed = False
    class_agnostic = True
    draws = True
    needs = frozenset()

    def __call__(self, tape: Tape) -> Tensor:
        return laid_out(tape, [row.generator(self.seed).random(len(row)) for row in tape.rows])
