"""A continuation as one picture: the explanations of its tokens laid over the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.inputs.prompt import WRITTEN


def laid_over(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Explanations of successive written tokens as explanations of one text with several targets.

    Each token was explained from what stands before it; what stands behind it has score 0 and
    attention 0 (:func:`unread`). Targets are numbered, since a text may hold a token twice. Other
    attributions stay as they are.
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


def unread(a: Attribution) -> np.ndarray:
    """Which tokens of a laid-over continuation were not there yet: the explained one and those
    behind it. None of any other row, whatever is masked in it."""
    if not is_continuation(a):
        return np.zeros(len(a), dtype=bool)
    seen = np.flatnonzero(a.row.attention)
    return np.arange(len(a)) > (seen[-1] if seen.size else -1)


def unread_whole(a: Attribution, segment: int | None) -> bool:
    """Whether no token of a segment was there yet: the first written token has none before it."""
    later = unread(a)
    own = [later[place] for place, home in enumerate(a.row.segments) if home == segment]
    return bool(own) and all(own)


def explained_text(a: Attribution) -> str:
    """The written token that is explained, out of the quotes of its target's name."""
    return a.target.name.partition("‘")[2].removesuffix("’")


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
        row=whole.row.masked([place >= len(a) for place in range(len(whole))]),
        scores=np.pad(a.scores, (0, behind)),
        layers=layers,
        target=replace(a.target, name=f"{number}. {a.target.name}"),
    )
