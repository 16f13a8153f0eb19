"""The gradient at the embeddings, which grad_x_input and saliency read."""

from torch import Tensor

from tokenlight.capture.entrance import Entered
from tokenlight.capture.entrance_search import At
from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._gradient import Gradient, GradientMethod


class EmbeddingGradientMethod(GradientMethod):
    """Reads the gradient at h^0, or (``at="words"``) at the token tables' output."""

    at: At = "hidden"
    gradient: Gradient = "model"

    @property
    def needs(self) -> frozenset[Site]:
        if self.at == "words":
            return frozenset({Site.WORDS, Site.GRAPH})
        return frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT})

    def slopes(self, tape: Tape) -> tuple[Entered, Tensor]:
        """What came in, and the target's gradient there, ``batch place hidden``."""
        if self.at == "words":
            return tape.words, tape.words.joined(tape.rerun.slopes(tape.words.tensors))
        return tape.embedded, tape.embedded_gradient
