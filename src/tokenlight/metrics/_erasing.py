"""Taking tokens out of a text in one of the papers' three ways."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tokenlight.capture.perturbation import Original, Variant

Perturb = Literal["delete", "pad", "mask"]


def erased(
    original: Original, positions: np.ndarray, how: Perturb, *, unattended: bool = False
) -> Variant:
    """The text without ``positions``: deleted, or replaced by [PAD] or [MASK].

    A replacement is attended to like any token, unless ``unattended``.
    """
    if how == "delete":
        return original.without(positions)
    by = original.stand_ins.pad if how == "pad" else original.stand_ins.mask
    return original.hidden(positions, by) if unattended else original.replaced(positions, by)


def candidates(original: Original, *, protect_special: bool) -> np.ndarray:
    """The positions that may be taken out."""
    return original.rankable if protect_special else np.arange(len(original))
