"""Which rows share a pass: each once, within the budget, and little of it padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenlight.capture.packing import GPU, PROCESSOR, packs

LENGTHS = st.lists(st.integers(1, 60), max_size=200)


@given(LENGTHS, st.integers(1, 2000), st.booleans())
def test_every_row_is_in_one_pack_within_the_budget(lengths, budget, padding_proof):
    found = packs(lengths, budget, padding_proof=padding_proof)
    assert sorted(i for pack in found for i in pack) == list(range(len(lengths)))
    for pack in found:
        widest = max(lengths[i] for i in pack)
        assert len(pack) == 1 or widest * len(pack) <= budget
        assert padding_proof or len({lengths[i] for i in pack}) == 1
    longest = [max(lengths[i] for i in pack) for pack in found]
    assert longest == sorted(longest, reverse=True)


@given(LENGTHS, st.integers(64, 4000), st.sampled_from([GPU, PROCESSOR]))
def test_a_pack_that_keeps_the_device_busy_takes_no_row_that_would_be_mostly_padding(
    lengths, budget, worth
):
    for pack in packs(lengths, budget, worth=worth):
        widest = lengths[pack[0]]
        late = [i for n, i in enumerate(pack) if widest * n >= budget * worth[0]]
        assert all(lengths[i] >= widest * (1 - worth[1]) for i in late)


def test_a_small_pack_takes_what_there_is():
    assert packs([3, 50, 4], 1000) == [[1, 2, 0]]


def test_two_kinds_of_length_do_not_share_a_pack_once_there_are_enough_of_each():
    lengths = [60] * 100 + [10] * 100
    found = packs(lengths, 8000)
    assert [sorted({lengths[i] for i in pack}) for pack in found] == [[60], [10]]


def test_rows_of_one_length_that_fit_are_one_pack_in_their_order():
    assert packs([8] * 6, 48) == [[0, 1, 2, 3, 4, 5]]
    assert packs([8] * 6, 47) == [[0, 1, 2, 3, 4], [5]]
    assert packs([8] * 6, 48, most=4) == [[0, 1, 2, 3], [4, 5]]
    assert packs([8] * 4, 48, kinds=[(0,), (1,), (0,), (1,)]) == [[1, 3], [0, 2]]
