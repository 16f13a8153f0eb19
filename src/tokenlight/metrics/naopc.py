"""Normalized AOPC: where an explanation stands between the worst and the best order of tokens."""

from collections.abc import Iterable

import numpy as np

from tokenlight.metrics._perturbation import (
    Perturb,
    PerturbationMetric,
    compute_target_probabilities,
)
from tokenlight.plugin import BadInput, Case, Count, Measurement, Search, VariantOutputs

MIN_RANGE = 1e-6  # a smaller range of AOPC is rounding
# A set of removed positions, to the largest sum of falls on the way to it.
Beam = dict[frozenset[int], float]


class NormalizedAopc(PerturbationMetric):
    r"""AOPC between the lowest and the highest value that any order of the text's tokens reaches.

    .. math:: \frac{a(r)-\min_{r'}a(r')}{\max_{r'}a(r')-\min_{r'}a(r')}, \quad
        a(r) = \frac1m\sum_{i=1}^m p(c\mid x)-p(c\mid x\setminus r_{1..i})

    :math:`a` is AOPC over the m tokens that are not special, removed one by one in the order r. 0 is the
    worst order, 1 the best, so that models, each with its own range, can be compared. Both ends are found by
    beam search; an order beyond them becomes an end itself. A text costs about ``beam_width`` · m² forward
    passes. Edin et al., ACL 2025.
    Differs from the paper: nothing known. Its exhaustive search is a beam as wide as the number of sets.

    Args:
        perturb: What happens to a removed token, as in aopc.
        beam_width: How many sets of removed tokens the search keeps at each step.
        max_tokens: Skip texts with more tokens that may be removed.
        protect_special: Keep special tokens in the text.
    """

    perturb: Perturb = "mask"
    beam_width: Count = 5
    max_tokens: int = 60
    protect_special: bool = True
    cites = "edin2025normalized"
    informational = ("lowest", "highest")
    has_search = True

    def count_ranked(self, num_tokens: int) -> range:
        return range(1, num_tokens + 1)

    def search(self, case: Case) -> Search:
        positions = self.rank_removable(case).tolist()
        if len(positions) > self.max_tokens:
            raise BadInput(
                f"The text has {len(positions)} tokens, and the cost of finding their best order grows "
                f"with the square of that. It is skipped: the limit is max_tokens={self.max_tokens}.",
                code="more-than-max-tokens",
            )
        outputs = yield [case.perturber.make_unperturbed()]
        original_probability = compute_target_probabilities(case, outputs)[0]
        bounds = []
        for sign in (-1.0, 1.0):  # first the lowest AOPC, then the highest
            # Sets of removed tokens are searched, not orders: the output depends on the set only.
            beam: Beam = {frozenset(): 0.0}
            for _ in positions:
                candidates = _extend_beam(beam, positions)
                outputs = yield [
                    self.remove_positions(case.perturber, np.array(sorted(removed)))
                    for removed in candidates
                ]
                falls = sign * (original_probability - compute_target_probabilities(case, outputs))
                beam = _select_best(candidates, falls, self.beam_width)
            bounds.append(sign * max(beam.values()) / max(1, len(positions)))
        lowest, highest = bounds
        return lowest, highest

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        assert case.bounds is not None, "naopc needs the bounds that its search found"
        probabilities = compute_target_probabilities(case, outputs)
        aopc = 0.0
        if len(probabilities) > 1:
            aopc = float(np.mean(probabilities[0] - probabilities[1:]))
        lowest = min(case.bounds[0], aopc)
        highest = max(case.bounds[1], aopc)
        if highest - lowest < MIN_RANGE:
            raise BadInput(
                "Every order of the tokens has the same AOPC, so none is better than another.",
                code="no-aopc-range",
            )
        parts = {"aopc": aopc, "lowest": lowest, "highest": highest}
        return Measurement((aopc - lowest) / (highest - lowest), parts=parts)


def _extend_beam(beam: Beam, positions: Iterable[int]) -> Beam:
    """Return all sets with one more position, each with the best sum of its predecessors."""
    candidates: Beam = {}
    for removed, total in beam.items():
        for position in positions:
            if position not in removed:
                larger = removed | {position}
                candidates[larger] = max(candidates.get(larger, -np.inf), total)
    return candidates


def _select_best(candidates: Beam, falls: np.ndarray, width: int) -> Beam:
    """Add the fall of each candidate to its sum, and return the ``width`` highest."""
    totals: Beam = {}
    for (removed, total), fall in zip(candidates.items(), falls, strict=True):
        totals[removed] = float(total + fall)
    best = sorted(totals, key=totals.__getitem__, reverse=True)[:width]
    return {removed: totals[removed] for removed in best}
