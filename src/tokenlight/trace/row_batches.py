"""Recorded passes over further rows, in batches of similar length."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from tokenlight.accel.tensors import upcast
from tokenlight.accel.transfer import AsyncTensor
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.hooks.locks import call_between_passes
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.objective import locate_terms
from tokenlight.model.packing import run_in_halves
from tokenlight.model.padding import choose_replayed_width
from tokenlight.model.runner import CPU_BATCH_TOKENS, ModelRunner
from tokenlight.trace.extra_passes import ExtraPasses
from tokenlight.trace.record import record, verify_model_for_sites
from tokenlight.trace.recording import Recording
from tokenlight.trace.replay import (
    build_replay_batch,
    estimate_multiplications,
    get_max_queued_multiplications,
    is_on_one_gpu,
    is_one_logit,
    reads_plain_text,
)
from tokenlight.trace.sites import Sites

# The most tokens of a batch that is replayed. It is launched at once, so that it may be small, and the rows
# of a small batch need little padding.
MAX_REPLAYED_TOKENS = 2 * CPU_BATCH_TOKENS
# A pass that is worth a graph only below this size would not keep the device busy.
MIN_REPLAYED_TOKENS = CPU_BATCH_TOKENS // 2

# Computes tensors, one row per target, from a recording and its targets.
ReadRecording = Callable[[Recording, Sequence[ResolvedTarget]], Sequence[Tensor]]


@dataclass(frozen=True)
class ReadResults:
    """What was read of a batch, on its way from the device; it holds no autograd graph."""

    tensors: tuple[AsyncTensor, ...]

    def fetch_arrays(self) -> list[np.ndarray]:
        """Wait for the device and return the values."""
        return [tensor.numpy() for tensor in self.tensors]

    def refresh(self) -> "ReadResults":
        """Return the same results with the values of a replay."""
        return ReadResults(tuple(tensor.refresh() for tensor in self.tensors))


@dataclass(frozen=True, eq=False)
class RowBatches:
    """Rows to record, and what to read of each recording.

    Rows of similar length share a batch, so that hardly any padding is computed: eight texts of half the
    length cost little more than four whole ones. On a GPU the batches have few shapes, so that CUDA graphs
    can replay them (see :func:`pack_replayed_rows`).

    Attributes:
        runner: The model to run.
        rows: The rows, in any order.
        targets: One per row.
        sites: The sites to record.
        read: Reads what is needed of a recording; it must not keep the recording, which holds a graph.
        read_key: What ``read`` computes; two that are equal compute the same from equal recordings.
        batch_tokens: The most tokens of a batch, padding included. A batch that does not fit into memory
            is halved.
    """

    runner: ModelRunner
    rows: Sequence[TokenRow]
    targets: Sequence[ResolvedTarget]
    sites: Sites
    read: ReadRecording
    read_key: Hashable
    batch_tokens: int

    def run(self, advance: Callable[[float], None]) -> list[tuple[list[int], ReadResults]]:
        """Record all rows, batch by batch, and read each recording before the next one is made.

        Args:
            advance: Called with the number of rows of a batch when it is launched.

        Returns:
            For each batch the indices of its rows, and what was read of it.
        """
        verify_model_for_sites(self.runner, self.rows, self.sites)
        results: list[tuple[list[int], ReadResults]] = []
        is_replayed = can_replay(self.runner, self.targets)
        batches = None
        if is_replayed:
            batches = pack_replayed_rows(self.runner, self.rows, self.batch_tokens)
        if batches is None:
            is_replayed = False
            batches = self.runner.pack_rows(self.rows, self.batch_tokens)
        for batch in batches:
            run_part = partial(self._run_part, batch, is_replayed=is_replayed)
            results += run_in_halves(run_part, len(batch))
            advance(len(batch))
            # Between two batches other work may have its turn.
            call_between_passes()
        return results

    def _run_part(
        self, batch: list[int], part: slice, *, is_replayed: bool
    ) -> list[tuple[list[int], ReadResults]]:
        """Run the pass of some rows of a batch: kernel by kernel, or as a graph."""
        indices = batch[part]
        rows = [self.rows[index] for index in indices]
        targets = [self.targets[index] for index in indices]
        if not is_replayed:
            return [(indices, self._run_pass(rows, targets))]
        replay = build_replay_batch(
            self.runner,
            rows,
            targets,
            ("rows", self.sites, self.read_key),
            width=choose_replayed_width(self.runner, max(len(row) for row in rows)),
        )

        def run_on(tensors: Sequence[Tensor]) -> ReadResults:
            return self._run_pass(rows, targets, replay.to_model_inputs(tensors))

        return [(indices, self.runner.graph_cache.run(replay, run_on))]

    def _run_pass(
        self,
        rows: Sequence[TokenRow],
        targets: Sequence[ResolvedTarget],
        inputs: ModelInputs | None = None,
    ) -> ReadResults:
        recording = record(
            self.runner, rows, self.sites, batch_tokens=self.batch_tokens, inputs=inputs
        )
        return ReadResults(tuple(map(AsyncTensor, self.read(recording, targets))))


def read_target_values(recording: Recording, targets: Sequence[ResolvedTarget]) -> Tensor:
    """Return the target's value in each row of a recorded pass, ``batch``."""
    if recording.logits.dim() != 2 or not all([is_one_logit(target) for target in targets]):
        return ExtraPasses(recording, targets).target_value
    # As above, but in a form that a graph can repeat for other targets.
    indices, _ = locate_terms(recording.logits, targets)
    return upcast(recording.logits.detach()[indices], recording.logits.device)


def can_replay(runner: ModelRunner, targets: Sequence[ResolvedTarget]) -> bool:
    """Return whether one GPU reads plain texts for single logits, in batches of any padding."""
    if not is_on_one_gpu(runner) or not reads_plain_text(runner):
        return False
    # A model with thresholds needs a batch for each side of them.
    if not runner.is_padding_invariant or runner.batching.has_thresholds:
        return False
    # The key of a language model's pass holds the lengths of its rows, which hardly return.
    if runner.head.task != "text-classification" or runner.limit_rows_per_batch() is not None:
        return False
    return all([is_one_logit(target) for target in targets])


def pack_replayed_rows(
    runner: ModelRunner, rows: Sequence[TokenRow], batch_tokens: int
) -> list[list[int]] | None:
    """Group rows into batches of few shapes, which return with other texts and other random draws.

    Rows are sorted by length. A batch is as wide as its longest row, rounded up to a step, and the width
    alone decides how many rows it has; only the last batch may have fewer.

    Args:
        runner: The model to run.
        rows: The rows, in any order.
        batch_tokens: The most tokens of a batch, padding included.

    Returns:
        The indices of the rows of each batch, the longest first; None if a batch that is worth a graph
        would be too small to keep the device busy.
    """
    lengths = [len(row.ids) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: -lengths[index])
    batches = []
    start = 0
    while start < len(order):
        width = choose_replayed_width(runner, lengths[order[start]])
        num_rows = count_replayed_rows(runner, width, batch_tokens)
        if num_rows * width < MIN_REPLAYED_TOKENS:
            return None
        batches.append(order[start : start + num_rows])
        start += num_rows
    return batches


def count_replayed_rows(runner: ModelRunner, width: int, batch_tokens: int) -> int:
    """Return how many rows of a width share a batch that is replayed."""
    max_rows = min(MAX_REPLAYED_TOKENS, batch_tokens) // width
    multiplications = estimate_multiplications(runner, 1, width)
    if multiplications:
        max_rows = min(max_rows, int(get_max_queued_multiplications(runner) // multiplications))
    return max_rows
