"""Sources of an answer: the units that metrics take away, and what each scores."""

import numpy as np

from tokenlight.capture.perturbation import Variant
from tokenlight.data.units import Unit, sources
from tokenlight.errors import BadInput
from tokenlight.metrics._metric import Case


def sources_of(case: Case, unit: Unit) -> tuple[list[np.ndarray], np.ndarray]:
    """The places of each unit's tokens, and the sum of its scores; question and answer are none."""
    if case.attribution.target.kind == "span":
        raise BadInput(
            "this metric deletes sources, and an answer that is a place in the text would move; use "
            "aopc or comprehensiveness."
        )
    row, scores = case.attribution.row, case.attribution.scores
    kept = np.ones(len(row), dtype=bool)
    kept[case.original.rankable] = False
    found = sources(row, unit, kept)
    if not found:
        raise BadInput(f"the text has no {unit} that could be taken away.")
    return found, np.array([scores[group].sum() for group in found])


def without(case: Case, units: list[np.ndarray], gone: np.ndarray) -> list[Variant]:
    """The text without the units that each row of ``gone`` (``sample unit``) names."""
    nothing = [np.empty(0, dtype=int)]
    chosen = ([unit for unit, out in zip(units, own, strict=True) if out] for own in gone)
    return [case.original.taken(np.concatenate(own + nothing)) for own in chosen]
