"""A method of your own: a frozen dataclass that reads the tape. Its instance goes to explain()."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from tokenlight import Explainer
from tokenlight.plugin import Method, Site, Tape


@dataclass(frozen=True, slots=True)
class GradientNorm(Method):
    r"""How steep the target is in each embedding: :math:`s_i = \|\partial y/\partial h^0_i\|_p`.

    Reads h^0's gradient, ``batch token hidden``. Simonyan et al. 2014.
    Differs from the paper: a norm over features takes the place of its maximum over colours.
    """

    p: float = 2.0
    cites: ClassVar[str] = "simonyan2014deep"
    signed: ClassVar[bool] = False
    needs: ClassVar[frozenset[Site]] = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})

    def __call__(self, tape: Tape) -> torch.Tensor:
        return torch.linalg.vector_norm(tape.hidden_gradients[0], ord=self.p, dim=-1)


explainer = Explainer.from_pretrained("tokenlight/sentiment")
for attribution in explainer.explain("a dull plot but great acting", [GradientNorm(), "attcat"]):
    print(attribution.title, attribution.top(3))
