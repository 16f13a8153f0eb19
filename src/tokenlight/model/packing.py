"""Group rows into batches: sorted by length, limited by a number of tokens, with little padding.

``regimes.py`` says which rows may share a batch at all; ``padding.py`` makes a batch rectangular.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from tokenlight.model.memory import is_out_of_memory
from tokenlight.model.model_row import ModelRow

T = TypeVar("T")


@dataclass(frozen=True)
class PaddingPolicy:
    """When padding costs more than another pass.

    A batch that is filled to ``busy_share`` keeps the device busy. From there on a row that would be padded
    by more than ``max_padding`` begins a new batch.

    Attributes:
        busy_share: Share of the batch tokens.
        max_padding: Share of the width of the batch.
    """

    busy_share: float
    max_padding: float


CPU_PADDING_POLICY = PaddingPolicy(busy_share=1 / 8, max_padding=0.15)
GPU_PADDING_POLICY = PaddingPolicy(busy_share=1 / 4, max_padding=0.06)


def run_in_halves(run: Callable[[slice], list[T]], count: int) -> list[T]:
    """Run ``count`` rows together or, if memory does not suffice, in halves.

    Two callers need more and do not use this function: ``explaining/batches.py`` launches a batch before the
    previous one is fetched, and recomputes a single row that does not fit; ``perturb/logits_stream.py`` packs
    all later batches smaller, too.

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
        except RuntimeError as error:
            if part.stop - part.start == 1 or not is_out_of_memory(error):
                raise
        # Outside the except block, because the error refers to the tensors computed so far.
        torch.cuda.empty_cache()
        middle = (part.start + part.stop) // 2
        pending += [slice(middle, part.stop), slice(part.start, middle)]
    return results


@dataclass(frozen=True)
class _BatchLimits:
    """What every batch must keep to; the arguments of :func:`pack_batches`."""

    max_tokens: int
    max_rows: int | None
    may_pad: bool
    padding_policy: PaddingPolicy


@dataclass
class _OpenBatch:
    """The batch that is being filled; its first row is its longest."""

    width: int
    key: tuple[int, ...]
    positions: list[int]

    @property
    def num_tokens(self) -> int:
        return self.width * len(self.positions)

    def fits(self, length: int, key: tuple[int, ...], limits: _BatchLimits) -> bool:
        """Return whether a row may be added that is not longer than the batch is wide."""
        if self.key != key or len(self.positions) == limits.max_rows:
            return False
        if self.num_tokens + self.width > limits.max_tokens:
            return False
        if not limits.may_pad:
            return length == self.width
        policy = limits.padding_policy
        is_busy = self.num_tokens >= limits.max_tokens * policy.busy_share
        return not (is_busy and length < self.width * (1 - policy.max_padding))


def pack_batches(
    lengths: Sequence[int],
    batch_tokens: int,
    *,
    may_pad: bool = True,
    max_rows: int | None = None,
    batch_keys: Sequence[tuple[int, ...]] | None = None,
    padding_policy: PaddingPolicy = CPU_PADDING_POLICY,
) -> list[list[int]]:
    """Group rows into batches.

    Args:
        lengths: The number of tokens of each row.
        batch_tokens: Largest rows × width of a batch; a longer row is a batch of its own.
        may_pad: Whether rows of different lengths may share a batch.
        max_rows: Largest number of rows in a batch; None for no limit.
        batch_keys: Rows share a batch only if their keys are equal; None if all may.
        padding_policy: When a row rather begins a new batch than be padded.

    Returns:
        Positions of rows, batch by batch. The longest rows come first, so that a lack of memory shows
        immediately.
    """
    count = len(lengths)
    keys = [(0,)] * count if batch_keys is None else batch_keys
    has_one_kind = len({*lengths}) == len({*keys}) == 1
    if has_one_kind and count <= (max_rows or count) and count * lengths[0] <= batch_tokens:
        return [[*range(count)]]
    limits = _BatchLimits(
        max_tokens=batch_tokens,
        max_rows=max_rows,
        may_pad=may_pad,
        padding_policy=padding_policy,
    )
    order = sorted(range(count), key=lambda i: (keys[i], lengths[i], -i), reverse=True)
    batches: list[_OpenBatch] = []
    for position in order:
        if batches and batches[-1].fits(lengths[position], keys[position], limits):
            batches[-1].positions.append(position)
        else:
            new_batch = _OpenBatch(
                width=lengths[position], key=keys[position], positions=[position]
            )
            batches.append(new_batch)
    return [batch.positions for batch in batches]


def compute_shape_key(row: ModelRow) -> tuple[int, ...]:
    """Return what rows of one batch have in common: lengths of source and continuation, image shape."""
    key = (row.source_length or 0, len(row.continuation_ids))
    if row.image is None:
        return key
    return (*key, *row.image.pixels.shape)
