"""Steps from Attribution to Attribution; each leaves its name in ``steps`` and the raw one as it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import word_groups
from tokenlight.errors import BadInput, UnknownName

_MERGERS: dict[str, Callable[[np.ndarray], float]] = {
    "sum": lambda values: float(values.sum()),
    "mean": lambda values: float(values.mean()),
    # The value of largest magnitude, sign kept: a plain maximum would lose every "against".
    "max": lambda values: float(values[np.abs(values).argmax()]),
}


def absolute(attribution: Attribution) -> Attribution:
    """Magnitudes: how much, no longer for or against."""
    return _stepped(attribution, "absolute", np.abs)


def l1_normalise(attribution: Attribution) -> Attribution:
    r"""Divide by :math:`\sum_i |s_i|`; scores that are all zero stay zero."""
    total = float(np.abs(attribution.scores).sum()) or 1.0
    return _stepped(attribution, "l1_normalise", lambda values: values / total)


def max_normalise(attribution: Attribution) -> Attribution:
    r"""Divide by :math:`\max_i |s_i|`, so that the strongest token is ±1."""
    largest = float(np.abs(attribution.scores).max()) or 1.0
    return _stepped(attribution, "max_normalise", lambda values: values / largest)


def without_special(attribution: Attribution) -> Attribution:
    """Scores of special tokens set to zero; their places stay."""
    keep = ~np.array(attribution.row.special)
    return _stepped(attribution, "without_special", lambda values: values * keep)


def difference(attribution: Attribution, reference: Attribution) -> Attribution:
    """This minus the reference, both first divided by their L1 sum (Mask-LRP, figure 6)."""
    if attribution.row.fingerprint != reference.row.fingerprint:
        raise BadInput("a difference needs two explanations of one text; these differ in tokens.")
    scores = l1_normalise(attribution).scores - l1_normalise(reference).scores
    method, steps = f"{attribution.method} − {reference.method}", (*attribution.steps, "difference")
    return replace(attribution, scores=scores, layers=None, method=method, options={}, steps=steps)


def merge_words(attribution: Attribution, *, how: str = "sum") -> Attribution:
    """One score per word of a segment: its tokens' sum, mean, or value of largest magnitude."""
    if not isinstance(how, str) or how not in _MERGERS:
        raise UnknownName.among("way to merge words", how, _MERGERS)
    merge, row = _MERGERS[how], attribution.row
    if row.image is not None and not row.image.places:
        return attribution  # every patch stands for itself
    groups = word_groups(row)
    merged = replace(
        row.take([group[0] for group in groups]),
        pieces=tuple("".join(row.pieces[i] for i in group) for group in groups),
        spans=tuple(row.span(group) for group in groups),
        at=None,  # no model is asked about words
        anchor=None,
    )

    def of_words(values: np.ndarray) -> np.ndarray:
        return np.array([merge(values[group]) for group in groups])

    return _stepped(attribution, f"merge_words({how})", of_words, row=merged)


def _stepped(
    attribution: Attribution, step: str, change: Callable[[np.ndarray], np.ndarray], **other: Any
) -> Attribution:
    """Scores changed, and the terms of each layer likewise."""
    layers = attribution.layers
    return replace(
        attribution,
        scores=change(attribution.scores),
        layers=None if layers is None else np.array([change(terms) for terms in layers]),
        steps=(*attribution.steps, step),
        **other,
    )
