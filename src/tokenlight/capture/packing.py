"""Which rows go through the model together: sorted by length, cut by a token budget."""

from __future__ import annotations

from collections.abc import Sequence


def packs(lengths: Sequence[int], budget: int, *, padding_proof: bool = True) -> list[list[int]]:
    """Positions of rows, grouped so that rows × longest row ≤ ``budget`` (a longer row goes alone).

    Neighbours in length share a pack, so little is spent on padding. Longest first: if memory does
    not suffice, that shows at once. A model that is not ``padding_proof`` gets packs of one length.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for position in order:
        widest = lengths[groups[-1][0]] if groups else 0
        fits = padding_proof or widest == lengths[position]
        if groups and fits and widest * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups
