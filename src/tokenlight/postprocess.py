"""Steps from Attribution to Attribution, for users. They live in data/postprocess.py."""

from tokenlight.data.postprocess import (
    absolute,
    difference,
    l1_normalise,
    max_normalise,
    merge_words,
    without_special,
)

__all__ = [
    "absolute",
    "difference",
    "l1_normalise",
    "max_normalise",
    "merge_words",
    "without_special",
]
