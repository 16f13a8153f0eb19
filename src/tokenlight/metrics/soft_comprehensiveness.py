"""Soft comprehensiveness: how much is lost as embeddings fade, most where scores are highest?"""

from typing import ClassVar

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._erasing import chances
from tokenlight.metrics._metric import Answers, Case, Count, Measured, Metric, Variant
from tokenlight.metrics._ranking import require_ranks

STREAM = 3  # of a text's draws
LEAST = 1e-6  # what all tokens together give the class; below it nothing can be lost


class SoftComprehensiveness(Metric):
    r"""Share of what the tokens give the class that is lost as each fades by its score (Soft-NC).

    .. math:: \frac{\max(0,\,p(c\mid x)-p(c\mid x'))}{\max(0,\,p(c\mid x)-p(c\mid x^0))}, \quad
        x'_{td} = x_{td}\,e_{td}, \quad e_{td}\sim\mathrm{Bernoulli}(1-a_t)

    :math:`x` are the embeddings as they enter the first layer (``token hidden``), :math:`a_t` the scores
    brought to [0, 1] by the text's lowest and highest, :math:`x^0` embeddings of zeros; the fall is the
    mean of ``samples`` draws, the same for every method. ``kept``, a part, is the mean of the probabilities:
    methods that differ in it are compared with care, since scores that leave less of a text lose more of
    it. Zhao and Aletras, ACL 2023.
    Differs from the paper: it draws once; special tokens stay whole here; c is the explained class; the
    share is cut to [0, 1], and a text whose tokens do not speak for the class is left out.
    """

    samples: Count = 10
    seed: int = 0
    cites = "zhao2023incorporating"
    asides = ("kept",)
    watches = True
    shows: ClassVar[bool] = False

    def kept(self, case: Case) -> np.ndarray:
        """``token``: the probability with which a number of its embedding stays."""
        places = case.original.rankable
        scores = case.attribution.scores[places]
        require_ranks(scores)
        scaled = (scores - scores.min()) / np.ptp(scores)
        found = np.ones(len(case.original))
        found[places] = scaled if self.shows else 1 - scaled
        return found

    def variants(self, case: Case) -> list[Variant]:
        original, kept = case.original, self.kept(case)
        nothing = np.ones(len(original))
        nothing[original.rankable] = 0.0
        seeds = case.attribution.row.generator(self.seed, STREAM).integers(2**32, size=self.samples)
        drawn = [original.faded(kept, int(seed)) for seed in seeds]
        return [original.unchanged(), original.faded(nothing, 0), *drawn]

    def measure(self, case: Case, answers: Answers) -> Measured:
        whole, empty, *drawn = chances(case, answers)
        if whole - empty < LEAST:
            raise BadInput("the explained class is no likelier with the tokens than without them.")
        fall = float(np.maximum(0.0, whole - np.array(drawn)).mean())
        lost = min(1.0, fall / float(whole - empty))
        kept = float(self.kept(case)[case.original.rankable].mean())
        return Measured(1 - lost if self.shows else lost, parts={"kept": kept})
