"""Public names of data/postprocess.py: steps from one Attribution to another."""

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
