"""How rows are packed into batches: each once, within the token limit, with little padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenlight.model.packing import CPU_PADDING_POLICY, GPU_PADDING_POLICY, pack_batches

LENGTHS = st.lists(st.integers(1, 60), max_size=200)


@given(LENGTHS, st.integers(1, 2000), st.booleans())
def test_every_row_is_in_one_batch_within_the_limit(lengths, batch_tokens, may_pad):
    batches = pack_batches(lengths, batch_tokens, may_pad=may_pad)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[i] for i in batch)
        assert len(batch) == 1 or width * len(batch) <= batch_tokens
        assert may_pad or len({lengths[i] for i in batch}) == 1
    widths = [max(lengths[i] for i in batch) for batch in batches]
    assert widths == sorted(widths, reverse=True)


@given(LENGTHS, st.integers(64, 4000), st.sampled_from([GPU_PADDING_POLICY, CPU_PADDING_POLICY]))
def test_a_batch_that_keeps_the_device_busy_takes_no_row_that_needs_much_padding(
    lengths, batch_tokens, padding_policy
):
    busy_tokens = batch_tokens * padding_policy.busy_share
    for batch in pack_batches(lengths, batch_tokens, padding_policy=padding_policy):
        width = lengths[batch[0]]
        late_rows = [i for n, i in enumerate(batch) if width * n >= busy_tokens]
        min_length = width * (1 - padding_policy.max_padding)
        assert all(lengths[i] >= min_length for i in late_rows)


def test_a_small_batch_takes_rows_of_any_length():
    assert pack_batches([3, 50, 4], 1000) == [[1, 2, 0]]


def test_long_and_short_rows_do_not_share_a_batch_if_there_are_enough_of_each():
    lengths = [60] * 100 + [10] * 100
    batches = pack_batches(lengths, 8000)
    assert [sorted({lengths[i] for i in batch}) for batch in batches] == [[60], [10]]


def test_rows_of_one_length_that_fit_are_one_batch_in_their_order():
    assert pack_batches([8] * 6, 48) == [[0, 1, 2, 3, 4, 5]]
    assert pack_batches([8] * 6, 47) == [[0, 1, 2, 3, 4], [5]]
    assert pack_batches([8] * 6, 48, max_rows=4) == [[0, 1, 2, 3], [4, 5]]
    assert pack_batches([8] * 4, 48, batch_keys=[(0,), (1,), (0,), (1,)]) == [[1, 3], [0, 2]]
