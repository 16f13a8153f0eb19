"""Normalised AOPC: where an explanation stands between the worst and the best order of tokens."""

from itertools import product

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._erasing import ErasingMetric, Perturb, chances
from tokenlight.metrics._metric import Answers, Case, Count, Measured, Search

LEAST = 1e-6  # a range of AOPC below it is rounding


class NormalisedAopc(ErasingMetric):
    r"""AOPC between the lowest and the highest that any order of the text's tokens reaches.

    .. math:: \frac{a(r)-\min_{r'}a(r')}{\max_{r'}a(r')-\min_{r'}a(r')}, \quad
        a(r) = \frac1m\sum_{i=1}^m p(c\mid x)-p(c\mid x\setminus r_{1..i})

    :math:`a` is AOPC over the m tokens that are not special, taken out one by one in the order r; 0 is
    the worst order there is, 1 the best, so that models, each with a range of its own, can be compared.
    Both ends are found by beam search (``beam`` sets a step); an order that reaches beyond them is an
    end itself. Costs about beam · m² passes a text: those with more than ``longest`` tokens are left out.
    Edin et al., ACL 2025.
    Differs from the paper: nothing known; its exhaustive search is a beam as wide as the number of sets.
    """

    perturb: Perturb = "mask"
    beam: Count = 5
    longest: int = 60
    protect_special: bool = True
    cites = "edin2025normalized"
    asides = ("lowest", "highest")
    searches = True

    def counts(self, tokens: int) -> range:
        return range(1, tokens + 1)

    def search(self, case: Case) -> Search:
        places = self.ranked(case)
        if len(places) > self.longest:
            cost = "finding the best of their orders costs the square of that"
            left_out = f"longest={self.longest} leaves it out"
            raise BadInput(f"the text has {len(places)} tokens, and {cost}; {left_out}.")
        answers = yield [case.original.unchanged()]
        whole, ends = chances(case, answers)[0], list[float]()
        for sign in (-1.0, 1.0):  # the lowest AOPC, then the highest
            # Sets of tokens in place of orders, each with the largest sum of falls on the way to it.
            beam: dict[frozenset[int], float] = {frozenset(): 0.0}
            for _ in places:
                grown: dict[frozenset[int], float] = {}
                for (gone, total), place in product(beam.items(), places.tolist()):
                    if place not in gone:
                        larger = gone | {place}
                        grown[larger] = max(grown.get(larger, -np.inf), total)
                sets = (np.array(sorted(gone)) for gone in grown)
                answers = yield [self.erased(case.original, gone) for gone in sets]
                falls = sign * (whole - chances(case, answers))
                totals = {gone: s + f for (gone, s), f in zip(grown.items(), falls, strict=True)}
                best = sorted(totals, key=totals.__getitem__, reverse=True)[: self.beam]
                beam = {gone: float(totals[gone]) for gone in best}
            ends.append(sign * max(beam.values()) / max(1, len(places)))
        return ends[0], ends[1]

    def measure(self, case: Case, answers: Answers) -> Measured:
        assert case.bounds is not None, "naopc is measured between the ends that its search found"
        whole, *changed = chances(case, answers)
        own = float(np.mean(whole - np.array(changed))) if changed else 0.0
        low, high = min(case.bounds[0], own), max(case.bounds[1], own)
        if high - low < LEAST:
            raise BadInput("every order of the tokens has the same AOPC; none is better.")
        parts = {"aopc": own, "lowest": low, "highest": high}
        return Measured((own - low) / (high - low), parts=parts)
