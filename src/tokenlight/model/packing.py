"""Group rows into batches: sorted by length, limited by a number of tokens, with little padding.

``regimes.py`` says which rows may share a batch at all; ``padding.py`` makes a batch rectangular.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# (share of the batch tokens, share of the width): a batch filled to the first share keeps the device busy.
# From there on padding costs more than another pass, so a row that would be padded by more than the second
# share begins a new batch.
CPU_PADDING_POLICY = 1 / 8, 0.15
GPU_PADDING_POLICY = 1 / 4, 0.06


def run_in_halves(run: Callable[[slice], list[T]], count: int) -> list[T]:
    """Run ``count`` rows at once or, if memory does not suffice, in halves.

    Args:
        run: Returns the results for a slice of the rows.
        count: The number of rows.

    Returns:
        The results of all rows, in order.

    Raises:
        torch.OutOfMemoryError: A single row does not fit.
    """
    pending = [slice(0, count)]
    results: list[T] = []
    while pending:
        part = pending.pop()
        try:
            results += run(part)
            continue
        except torch.OutOfMemoryError:
            if part.stop - part.start == 1:
                raise
        # Outside the except block, because the error refers to the tensors computed so far.
        torch.cuda.empty_cache()
        middle = (part.start + part.stop) // 2
        pending += [slice(middle, part.stop), slice(part.start, middle)]
    return results


@dataclass
class _OpenBatch:
    """The batch that is being filled; its first row is its longest."""

    width: int
    key: tuple[int, ...]
    positions: list[int]

    @property
    def num_tokens(self) -> int:
        return self.width * len(self.positions)


def pack_batches(
    lengths: Sequence[int],
    batch_tokens: int,
    *,
    is_padding_invariant: bool = True,
    max_rows: int | None = None,
    batch_keys: Sequence[tuple[int, ...]] | None = None,
    padding_policy: tuple[float, float] = CPU_PADDING_POLICY,
) -> list[list[int]]:
    """Group rows into batches.

    Args:
        lengths: The number of tokens of each row.
        batch_tokens: Largest rows × width of a batch; a longer row is a batch of its own.
        is_padding_invariant: Whether rows of different lengths may share a batch.
        max_rows: Largest number of rows in a batch; None for no limit.
        batch_keys: Rows share a batch only if their keys are equal; None if all may.
        padding_policy: When padding costs more than another pass, see ``CPU_PADDING_POLICY``.

    Returns:
        Positions of rows, batch by batch. The longest rows come first, so that a lack of memory shows
        at once.
    """
    count = len(lengths)
    keys = [(0,)] * count if batch_keys is None else batch_keys
    has_one_kind = len({*lengths}) == len({*keys}) == 1
    if has_one_kind and count <= (max_rows or count) and count * lengths[0] <= batch_tokens:
        return [[*range(count)]]
    busy_share, padding_share = padding_policy

    def fits(batch: _OpenBatch, position: int) -> bool:
        length = lengths[position]
        if batch.key != keys[position] or len(batch.positions) == max_rows:
            return False
        if batch.num_tokens + batch.width > batch_tokens:
            return False
        if not is_padding_invariant:
            return length == batch.width
        is_busy = batch.num_tokens >= batch_tokens * busy_share
        return not (is_busy and length < batch.width * (1 - padding_share))

    order = sorted(range(count), key=lambda i: (keys[i], lengths[i], -i), reverse=True)
    batches: list[_OpenBatch] = []
    for position in order:
        if batches and fits(batches[-1], position):
            batches[-1].positions.append(position)
        else:
            batches.append(_OpenBatch(lengths[position], keys[position], [position]))
    return [batch.positions for batch in batches]


def batch_key(row: Any) -> tuple[int, ...]:
    """Return what rows of one batch have in common: lengths of source and continuation, image shape."""
    key = (row.source_length or 0, len(row.continuation_ids))
    if row.image is None:
        return key
    return (*key, *row.image.pixels.shape)
