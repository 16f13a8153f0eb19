"""A continuation as one picture: the explanations of its tokens laid over the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokenlight.attribution import Attribution
from tokenlight.prompt import WRITTEN


def laid_over(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Explanations of successive written tokens as explanations of one text with several targets.

    Each token was explained from what stands before it; what stands behind it has score 0. Targets
    are numbered, since a text may hold a token twice. Other attributions stay as they are.
    """
    longest: dict[object, Attribution] = {}
    counts: dict[object, int] = {}
    for a in attributions:
        key = _key(a)
        if key is None:
            continue
        counts[key] = counts.get(key, 0) + 1
        if key not in longest or len(a) > len(longest[key]):
            longest[key] = a
    return [
        a if key is None or counts[key] < 2 else _over(a, longest[key])
        for a, key in ((a, _key(a)) for a in attributions)
    ]


def is_continuation(a: Attribution) -> bool:
    """Whether it explains a token that was written after a prompt."""
    return bool(a.row.names) and a.row.names[-1] == WRITTEN


def _key(a: Attribution) -> object:
    """What the explanations of one continuation by one method share; None for any other."""
    if not is_continuation(a) or a.target.index is None:
        return None
    return (a.model, a.method, repr(sorted(a.options.items())), a.row.texts)


def _over(a: Attribution, whole: Attribution) -> Attribution:
    if a.row.ids != whole.row.ids[: len(a)]:
        return a
    behind = len(whole) - len(a)
    number = 1 + sum(segment == len(a.row.names) - 1 for segment in a.row.segments)
    layers = None if a.layers is None else np.pad(a.layers, ((0, 0), (0, behind)))
    return replace(
        a,
        row=whole.row,
        scores=np.pad(a.scores, (0, behind)),
        layers=layers,
        target=replace(a.target, name=f"{number}. {a.target.name}"),
    )
