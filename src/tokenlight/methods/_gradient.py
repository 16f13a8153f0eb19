"""Whose gradient a method reads: the model's own, or one with a few gradients rewritten."""

from typing import Literal

from torch import Tensor

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._method import Method
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
