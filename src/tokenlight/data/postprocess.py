"""Steps from Attribution to Attribution; each leaves its name in ``steps`` and the raw one as it is."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import Span, TokenRow
from tokenlight.errors import BadInput, UnknownName

_MERGERS: dict[str, Callable[[np.ndarray], float]] = {
    "sum": lambda values: float(values.sum()),
    "mean": lambda values: float(values.mean()),
    # The value of largest magnitude, sign kept: a plain maximum would lose every "against".
    "max": lambda values: float(values[np.abs(values).argmax()]),
}


def absolute(attribution: Attribution) -> Attribution:
    """Magnitudes: how much, no longer for or against."""
    layers = None if attribution.layers is None else np.abs(attribution.layers)
    return _stepped(attribution, "absolute", np.abs(attribution.scores), layers)


def l1_normalise(attribution: Attribution) -> Attribution:
    r"""Divide by :math:`\sum_i |s_i|`; scores that are all zero stay zero."""
    total = float(np.abs(attribution.scores).sum()) or 1.0
    layers = None if attribution.layers is None else attribution.layers / total
    return _stepped(attribution, "l1_normalise", attribution.scores / total, layers)


def max_normalise(attribution: Attribution) -> Attribution:
    r"""Divide by :math:`\max_i |s_i|`, so that the strongest token is ±1."""
    largest = float(np.abs(attribution.scores).max()) or 1.0
    layers = None if attribution.layers is None else attribution.layers / largest
    return _stepped(attribution, "max_normalise", attribution.scores / largest, layers)


def without_special(attribution: Attribution) -> Attribution:
    """Scores of special tokens set to zero; their places stay."""
    keep = ~np.array(attribution.row.special)
    layers = None if attribution.layers is None else attribution.layers * keep
    return _stepped(attribution, "without_special", attribution.scores * keep, layers)


def difference(attribution: Attribution, reference: Attribution) -> Attribution:
    """This minus the reference, both first divided by their L1 sum (Mask-LRP, figure 6)."""
    if attribution.row.fingerprint != reference.row.fingerprint:
        raise BadInput("a difference needs two explanations of one text; these differ in tokens.")
    mine, other = l1_normalise(attribution), l1_normalise(reference)
    changed = _stepped(attribution, "difference", mine.scores - other.scores, None)
    return replace(changed, method=f"{attribution.method} − {reference.method}", options={})


def merge_words(attribution: Attribution, *, how: str = "sum") -> Attribution:
    """One score a word: its tokens' sum, mean, or value of largest magnitude.

    Words never join two segments; special tokens stay by themselves.
    """
    if not isinstance(how, str) or how not in _MERGERS:
        raise UnknownName.among("way to merge words", how, _MERGERS)
    merge, row = _MERGERS[how], attribution.row
    if row.image is not None:
        return attribution  # every patch stands for itself
    groups: list[list[int]] = []
    for position, word in enumerate(row.words):
        if groups and word is not None and word == row.words[groups[-1][-1]]:
            groups[-1].append(position)
        else:
            groups.append([position])
    scores = np.array([merge(attribution.scores[group]) for group in groups])
    layers = None
    if attribution.layers is not None:
        layers = np.array([[merge(terms[g]) for g in groups] for terms in attribution.layers])
    merged = _merged_row(row, groups)
    steps = (*attribution.steps, f"merge_words({how})")
    return replace(attribution, row=merged, scores=scores, layers=layers, steps=steps)


def _merged_row(row: TokenRow, groups: list[list[int]]) -> TokenRow:
    def span(group: list[int]) -> Span | None:
        first, last = row.spans[group[0]], row.spans[group[-1]]
        return None if first is None or last is None else (first[0], last[1])

    return replace(
        row.take([group[0] for group in groups]),
        pieces=tuple("".join(row.pieces[i] for i in group) for group in groups),
        spans=tuple(span(group) for group in groups),
        at=None,  # no model is asked about words
        anchor=None,
    )


def _stepped(
    attribution: Attribution, step: str, scores: np.ndarray, layers: np.ndarray | None
) -> Attribution:
    steps = (*attribution.steps, step)
    return replace(attribution, scores=scores, layers=layers, steps=steps)
