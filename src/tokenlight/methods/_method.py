"""What every method is: frozen options, the sites it needs, and a tape in, scores out."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from tokenlight import registry
from tokenlight.capture.entrance import At, Entered
from tokenlight.capture.tape import GRADIENTS, Site, Tape
from tokenlight.capture.transfer import Answer, Fetched
from tokenlight.registry import Count, Share
from tokenlight.relevance.rules import RuleSet
from tokenlight.relevance.rulesets import ATTENTION_CONSTANT, ATTNLRP

__all__ = ["Answer", "Count", "Fetched", "Share", "Site", "Tape"]  # beside what is written here


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """How often a text goes forward and backward through the model."""

    forwards: int
    backwards: int

    @staticmethod
    def in_words(method: "Method") -> str:
        """Such as ``1F + 1B`` or ``(n − 1)F``: a line in the number n of the text's tokens."""
        here, there = (dataclasses.astuple(method.cost(tokens)) for tokens in (100, 200))
        parts = []
        for letter, low, high in zip("FB", here, there, strict=True):
            slope = (high - low) // 100
            rest = low - 100 * slope
            line = f"{slope}n" if slope > 1 else "n"
            if slope and rest:
                line = f"({line} {'+' if rest > 0 else '−'} {abs(rest)})"
            parts += [f"{line if slope else rest}{letter}"] if slope or rest else []
        return " + ".join(parts)


FAMILIES = ("relevance", "gradients", "attention", "many passes", "decoded", "control")
Gradient = Literal["model", "attention_constant", "attnlrp"]
REWRITTEN: dict[Gradient, RuleSet] = {"attention_constant": ATTENTION_CONSTANT, "attnlrp": ATTNLRP}
Presets = Mapping[str, Mapping[str, Any]]
Extras = Sequence[dict[str, Any]] | Answer | None  # an Answer: such a sequence, once it is there


class Method(registry.Registered, abc.ABC):
    """A way to score tokens. Subclasses are frozen dataclasses whose fields are the options.

    ``cites``: key of the paper; ``signed``: scores below zero speak against the target;
    ``per_layer``: the call always gives ``batch layer token``, whose sum over layers is the score;
    ``class_agnostic``: the score does not depend on the target's class; ``slow``: seconds per text;
    ``draws``: it can sample, and its option ``seed`` is the one given to ``explain`` unless set;
    ``needs_precision``: half precision gives other numbers (divisions by what is nearly zero);
    ``after_source``: it reads layers and has a form for models that write after a source;
    ``presets``: named option sets that reproduce an official code or a paper's reading; ``official``
    and ``paper`` are the defaults where not named.
    """

    cites: ClassVar[str]
    signed: ClassVar[bool] = True
    per_layer: ClassVar[bool] = False
    class_agnostic: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    needs_precision: ClassVar[bool] = False
    after_source: ClassVar[bool] = False
    presets: ClassVar[Presets] = {}

    @classmethod
    def fitted(cls, options: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:  # noqa: ARG003
        """The options asked for, where a preset means something else for this kind of model."""
        return options

    @classmethod
    def asked(cls, name: str, options: Mapping[str, Any], *, seed: int, model: Any) -> "Method":
        """The method ``name`` as ``model`` gets it: what samples takes ``seed``, unless its own is
        set, and a preset means what it means for this kind of model."""
        found: type[Method] = registry.find("methods", name)
        given = {"seed": seed, **options} if found.draws else options
        method: Method = registry.build("methods", name, found.fitted(given, model))
        return method

    @property
    @abc.abstractmethod
    def needs(self) -> frozenset[Site]:
        """The sites this method reads with its present options."""

    @property
    def sites(self) -> frozenset[Site]:
        """What the recording must have: those sites, and what leads to them."""
        return self.needs

    def scores(self, tape: Tape) -> Tensor:
        """What is asked of a method for one batch: its call on the tape as it reads it."""
        return self(tape)

    @abc.abstractmethod
    def __call__(self, tape: Tape) -> Tensor:
        """Scores, ``batch token`` (or ``batch layer token``); those at padding are never looked at."""

    def note(self, tape: Tape) -> str | None:  # noqa: ARG002 - a hook that most methods leave alone
        """A sentence for the Attribution where the reader must know how it was made."""
        return None

    def extras(self, tape: Tape) -> Extras:  # noqa: ARG002 - likewise
        """Measurements for each example's Attribution, JSON values by name."""
        return None

    @property
    def family(self) -> str:
        """Where it belongs among FAMILIES, by what it needs."""
        if "lm" in {field.name for field in dataclasses.fields(self)}:
            return "decoded"
        if {Site.RELEVANCE, Site.RELEVANCE_GRADIENT} & self.needs:
            return "relevance"
        if self.cost(100).forwards > 1:
            return "many passes"
        if Site.READOUT in self.needs and not self.needs & (GRADIENTS - {Site.READOUT}):
            return "attention"
        return "gradients" if self.needs else "control"

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - of one pass, whatever the length
        """Passes through the model for a text of ``tokens`` tokens and a target of one logit, at most."""
        gradients = bool(self.needs & (GRADIENTS - {Site.RELEVANCE, Site.RELEVANCE_GRADIENT}))
        again = bool(self.sites & {Site.RELEVANCE, Site.RELEVANCE_GRADIENT})
        return Cost(1, gradients + again)


class GradientMethod(Method):
    """A method that reads gradients from the tape. ``gradient``: the model's own, or one with a few
    gradients rewritten. ``"attention_constant"``: attention maps count as constants, so queries and keys
    carry none. ``"attnlrp"``: as in the method attnlrp, whose relevance is value × this gradient.
    LibraGrad (Mehri et al., CVPR 2025) is a published relative."""

    gradient: Gradient = "model"

    @property
    def sites(self) -> frozenset[Site]:
        """With the way back that rewritten gradients take, where they are asked for."""
        return self.needs | ({Site.RELEVANCE_GRADIENT} if self.gradient != "model" else set())

    def scores(self, tape: Tape) -> Tensor:
        """Of the tape with the gradients asked for."""
        return self(tape.rewritten(REWRITTEN.get(self.gradient)))


class EmbeddingGradientMethod(GradientMethod):
    """Reads the gradient at h^0, or (``at="words"``) at the token tables' output."""

    at: At = "hidden"

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
