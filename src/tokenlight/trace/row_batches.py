"""Recorded passes over further rows, in batches of similar length."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tokenlight.data.tokens import TokenRow
from tokenlight.hooks.locks import call_between_passes
from tokenlight.model.packing import run_in_halves
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.record import record
from tokenlight.trace.recording import Recording
from tokenlight.trace.sites import SITES_WITHOUT_ATTENTION, Site, Sites

ResultT = TypeVar("ResultT")
# Called with the indices of the rows of a recording, and the recording.
ReadRecording = Callable[[list[int], Recording], ResultT]


def read_recordings(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    sites: Sites,
    read: ReadRecording[ResultT],
    *,
    batch_tokens: int,
) -> list[tuple[list[int], ResultT]]:
    """Record all rows, batch by batch, and read each recording before the next one is made.

    Rows of similar length share a batch, so that hardly any padding is computed: eight texts of half the
    length cost little more than four whole ones.

    Args:
        runner: The model to run.
        rows: The rows, in any order.
        sites: The sites to record.
        read: Reads what is needed of a recording; it must not keep the recording, which holds a graph.
        batch_tokens: The most tokens of a batch, padding included. A batch that does not fit into memory
            is halved.

    Returns:
        For each batch the indices of its rows, and what ``read`` returned.
    """
    _verify_model(runner, rows, sites)
    results: list[tuple[list[int], ResultT]] = []
    for batch in runner.pack_rows(rows, batch_tokens):

        def run(part: slice, batch: list[int]) -> list[tuple[list[int], ResultT]]:
            indices = batch[part]
            recording = record(
                runner, [rows[index] for index in indices], sites, batch_tokens=batch_tokens
            )
            return [(indices, read(indices, recording))]

        results += run_in_halves(partial(run, batch=batch), len(batch))
        # Between two batches other work may have its turn.
        call_between_passes()
    return results


def _verify_model(runner: ModelRunner, rows: Sequence[TokenRow], sites: Sites) -> None:
    """Verify the model on each side of its length thresholds; rows may be shorter than those seen so far."""
    reads_attention = bool(sites - SITES_WITHOUT_ATTENTION)
    for row in runner.batching.pick_probe_rows(rows):
        runner.verify(
            row,
            reads_attention=reads_attention,
            try_attention_hook=Site.RELEVANCE_GRADIENT in sites,
        )
