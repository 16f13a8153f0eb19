"""Units of a row: the names that the tags of its words mark."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        ("O B-A I-A B-A O", [(1, 2), (3,)]),
        ("I-A I-A I-B", [(0, 1), (2,)]),
        ("B-A E-A I-A S-A U-A", [(0, 1), (2,), (3,), (4,)]),
        ("A A O A", [(0, 1), (3,)]),
        ("O O", []),
    ],
)
def test_entities_begin_and_end_by_their_tags(tags, names):
    from tokenlight.data.units import group_entities

    assert [tuple(positions) for positions in group_entities(tags.split())] == names
