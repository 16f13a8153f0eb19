"""Whose gradient a method reads: the model's own, or one with a few gradients rewritten."""

from typing import Literal

from torch import Tensor

from tokenlight.capture.entrance import At, Entered
from tokenlight.methods._method import Method, Site, Tape
from tokenlight.relevance.case import RuleSet
from tokenlight.relevance.rulesets import ATTENTION_CONSTANT, ATTNLRP_GRADIENT

Gradient = Literal["model", "attention_constant", "attnlrp"]
REWRITTEN: dict[Gradient, RuleSet] = {
    "attention_constant": ATTENTION_CONSTANT,
    "attnlrp": ATTNLRP_GRADIENT,
}


class GradientMethod(Method, base=True):
    """A method that reads gradients from the tape; its subclasses have the option ``gradient``.

    ``"attention_constant"``: attention maps count as constants, so queries and keys carry none.
    ``"attnlrp"``: as in the method attnlrp, whose relevance is value × this gradient. LibraGrad
    (Mehri et al., CVPR 2025) is a published relative.
    """

    gradient: Gradient

    @property
    def sites(self) -> frozenset[Site]:
        """With the way back that rewritten gradients take, where they are asked for."""
        more = {Site.RELEVANCE_GRADIENT} if self.gradient != "model" else set()
        return self.needs | more

    def scores(self, tape: Tape) -> Tensor:
        """Of the tape with the gradients asked for."""
        return self(tape.rewritten(REWRITTEN.get(self.gradient)))


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
