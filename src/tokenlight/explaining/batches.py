"""Batches of rows through the model: recorded once, read by every method.

A batch has two steps: everything the device has to do is launched, then its results are fetched. Between the
two steps the next batch is launched, so that the device does not wait for Python.

From the outside in: ``try_launch`` meets a batch that does not fit into memory, ``launch`` finds the rows of
its indices, ``launch_batch`` chooses how the pass is computed, ``_run_pass`` runs the model, and
``launch_scores`` lets each method read what was recorded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tokenlight.data.head import Head
from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow, apply_explain_mask
from tokenlight.explaining.explain_options import ExplainOptions, TargetedRow
from tokenlight.explaining.memory import check_memory, choose_recompute
from tokenlight.explaining.pending_batch import (
    PassLogits,
    PendingBatch,
    PendingResults,
    TargetRound,
)
from tokenlight.explaining.pending_scores import launch_scores
from tokenlight.explaining.replay_batches import get_replayed_method, make_replay_batch
from tokenlight.explaining.session import Session
from tokenlight.explaining.text_result import AttributionsByMethod
from tokenlight.hooks.blocks import RECOMPUTED_NOTE, list_blocks
from tokenlight.hooks.locks import call_between_passes
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.memory import is_out_of_memory
from tokenlight.model.objective import ArgmaxTargets, trim_logits
from tokenlight.model.runner import ModelRunner
from tokenlight.progress import progress_bar
from tokenlight.trace.plan import Recompute
from tokenlight.trace.record import record
from tokenlight.trace.recording import Recording

# Indices of rows that go through the model together.
RowIndices = Sequence[int]


def explain_rows(
    session: Session, targeted_rows: Sequence[TargetedRow], options: ExplainOptions
) -> list[AttributionsByMethod]:
    """Explain each row for its target, in batches that the rows share.

    Args:
        session: The model, its tokenizer and its limits.
        targeted_rows: Each row with its target.
        options: The methods and the size of batches.

    Returns:
        For each row one list per method, with one Attribution per target.
    """
    rows = [row for row, _ in targeted_rows]
    check_memory(session.runner, rows, options)
    # Rows of similar length share a batch, so the batches are not in the order of the rows.
    batches = session.runner.pack_rows(rows, options.batch_tokens, options.batch_size)
    attributions_by_row: list[AttributionsByMethod] = [[] for _ in rows]
    with progress_bar("explaining", len(rows), options.progress) as advance:
        for row_indices, batch_attributions in explain_batches(
            session, targeted_rows, batches, options
        ):
            for row_index, attributions in zip(row_indices, batch_attributions, strict=True):
                attributions_by_row[row_index] = attributions
            advance(len(row_indices))
            # Between two batches other work may have its turn.
            call_between_passes()
    return attributions_by_row


def explain_batches(
    session: Session,
    targeted_rows: Sequence[TargetedRow],
    batches: Sequence[RowIndices],
    options: ExplainOptions,
) -> Iterator[tuple[RowIndices, list[AttributionsByMethod]]]:
    """Yield each batch with the Attributions of its rows.

    A batch is launched before the previous one is fetched; the autograd graph of the previous one is freed
    by then. A batch that does not fit into memory is split into halves. If a single row does not fit, each
    block of the model is recomputed in the backward pass.

    Args:
        session: The model, its tokenizer and its limits.
        targeted_rows: Each row with its target.
        batches: Indices of the rows that share a pass, batch by batch.
        options: The methods and other keywords.
    """
    launcher = _BatchLauncher(session, targeted_rows, options, is_only_batch=len(batches) == 1)
    queue = list(reversed(batches))
    running: tuple[RowIndices, PendingBatch] | None = None
    while queue:
        row_indices = queue.pop()
        batch = launcher.try_launch(row_indices)
        # Only now is the previous batch waited for: the device has work again.
        if running:
            yield running[0], running[1].fetch_attributions()
        # No other name refers to the previous batch, so this frees its tensors.
        running = None
        if batch is None:
            halves, batch = launcher.split_or_recompute(row_indices)
            queue += reversed(halves)
        if batch is not None:
            running = (row_indices, batch)
    if running:
        yield running[0], running[1].fetch_attributions()


@dataclass(frozen=True, slots=True)
class _BatchLauncher:
    """Launches batches that are given as indices, so that they can be split and their rows be found again."""

    session: Session
    targeted_rows: Sequence[TargetedRow]
    options: ExplainOptions
    is_only_batch: bool

    def launch(self, row_indices: RowIndices, *, recompute_blocks: bool = False) -> PendingBatch:
        """Launch the rows of these indices; raise if they do not fit into memory."""
        return launch_batch(
            self.session,
            [self.targeted_rows[index][0] for index in row_indices],
            [self.targeted_rows[index][1] for index in row_indices],
            self.options,
            recompute_blocks=recompute_blocks,
            is_only_batch=self.is_only_batch,
        )

    def try_launch(self, row_indices: RowIndices) -> PendingBatch | None:
        """Launch a batch; return None if it does not fit into memory, but could in parts."""
        try:
            return self.launch(row_indices)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            can_recompute = bool(list_blocks(self.session.runner.model))
            if len(row_indices) == 1 and not can_recompute:
                raise
        # Outside the except block: the exception keeps alive what was computed so far.
        return None

    def split_or_recompute(
        self, row_indices: RowIndices
    ) -> tuple[list[RowIndices], PendingBatch | None]:
        """Make a batch that does not fit into memory smaller.

        Returns:
            The two halves of the batch, to be tried next; or, for a single row, the batch itself, launched so
            that each block of the model is recomputed in the backward pass.
        """
        # Free what is cached before the parts are tried.
        self.session.runner.graph_cache.clear()
        torch.cuda.empty_cache()
        half = len(row_indices) // 2
        if half:
            return [row_indices[:half], row_indices[half:]], None
        return [], self.launch(row_indices, recompute_blocks=True)


def launch_batch(
    session: Session,
    rows: Sequence[TokenRow],
    targets: Sequence[TargetLike],
    options: ExplainOptions,
    *,
    recompute_blocks: bool = False,
    is_only_batch: bool = True,
) -> PendingBatch:
    """Launch everything the device has to do for a batch, in the first of four modes that applies.

    1. Recompute: the batch did not fit into memory, so its blocks are computed again in the backward pass.
    2. Recompute maps: its attention maps alone would not fit.
    3. Eager: no CUDA graph can hold the pass, or none would pay.
    4. Replay: a CUDA graph of this shape is replayed, or captured now.

    The device is waited for only where a target or a method must know the logits before it can go on.

    Args:
        session: The model, its tokenizer and its limits.
        rows: The rows of the batch.
        targets: One target per row; "all" stands for several.
        options: Resolved keyword arguments of ``explain()``, with the methods.
        recompute_blocks: Recompute each block of the model in the backward pass, which saves memory.
        is_only_batch: No other batch is launched while this one is computed.
    """
    runner = session.runner
    masked_rows = rows
    # What is explained is a pass over the masked rows; what is predicted, one over the rows as they are.
    if options.explain_mask != "none":
        masked_rows = [
            apply_explain_mask(row, options.explain_mask, session.tokenizer) for row in rows
        ]
    # Mode 1. The caller has seen the other modes fail.
    if recompute_blocks:
        results = _run_pass(
            runner, rows, masked_rows, targets, options, recompute="maps and blocks"
        )
        return PendingBatch(session, options, results, notes=[RECOMPUTED_NOTE])
    replay = make_replay_batch(runner, masked_rows, targets, options, is_only_batch=is_only_batch)
    # Mode 2. A captured graph already has the memory that its attention maps need, so only without one are
    # the sizes of the maps estimated.
    has_graph = replay is not None and runner.graph_cache.has_graph(replay.shape_key)
    recompute: Recompute = "nothing"
    if not has_graph:
        recompute = choose_recompute(runner, masked_rows, options)
    if recompute != "nothing":
        results = _run_pass(runner, rows, masked_rows, targets, options, recompute=recompute)
        return PendingBatch(session, options, results)
    # Mode 3. Too large for a graph, or of a kind that no graph can hold: launch kernel by kernel.
    if replay is None:
        results = _run_pass(runner, rows, masked_rows, targets, options)
        return PendingBatch(session, options, results)
    # Mode 4. Methods that need nothing of the model, such as random, are computed outside the graph, and so
    # are the passes with which a method goes on from its first one.
    model_methods = tuple(
        get_replayed_method(method) for method in options.methods if method.recorded_sites
    )
    replayed_options = replace(options, methods=model_methods)

    def launch_on(tensors: Sequence[Tensor]) -> PendingResults:
        inputs = replay.to_model_inputs(tensors)
        return _run_pass(runner, rows, masked_rows, targets, replayed_options, inputs=inputs)

    results = runner.graph_cache.run(replay, launch_on)
    fixed_targets = None if replay.explains_predictions else replay.targets
    token_mask = replay.model_inputs.token_mask
    return PendingBatch.from_replay(
        session, options, results, masked_rows, fixed_targets, token_mask
    )


def _run_pass(  # noqa: PLR0913 - each pass is given both kinds of rows
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    masked_rows: Sequence[TokenRow],
    targets: Sequence[TargetLike],
    options: ExplainOptions,
    *,
    inputs: ModelInputs | None = None,
    recompute: Recompute = "nothing",
) -> PendingResults:
    """Run the model once over ``masked_rows``, recorded, and launch every method for every target."""
    recording = record(
        runner,
        masked_rows,
        options.recorded_sites,
        batch_tokens=options.batch_tokens,
        recompute=recompute,
        inputs=inputs,
    )
    predicting = recording
    if options.explain_mask != "none":
        # With [CLS] masked the model predicts something else: ask for the prediction of the text as it is.
        predicting = record(runner, rows, frozenset())
    targets_by_round, targets_per_row = _arrange_in_rounds(runner.head, rows, targets, predicting)
    rounds = []
    for round_index, round_targets in enumerate(targets_by_round):
        is_last = round_index == len(targets_by_round) - 1
        tape = recording.make_tape(round_targets, release_graph=is_last)
        scores = launch_scores(options.methods, tape)
        rounds.append(TargetRound(tape.targets, scores, tape.checks))
    return PendingResults(
        explained_pass=PassLogits(
            masked_rows, recording.fetched_logits, recording.has_attention_sink
        ),
        predicting_pass=PassLogits(rows, predicting.fetched_logits),
        targets_per_row=targets_per_row,
        rounds=rounds,
    )


def _arrange_in_rounds(
    head: Head, rows: Sequence[TokenRow], targets: Sequence[TargetLike], recording: Recording
) -> tuple[list[Sequence[ResolvedTarget]], list[int]]:
    """Resolve the targets of a batch and arrange them in rounds of one target per row.

    Returns:
        The targets of each round, and the number of targets of each row. A row with fewer targets than
        others repeats its last one.
    """
    num_alternatives = ArgmaxTargets.count_alternatives(head, targets)
    if num_alternatives is not None and recording.logits.dim() == 2:
        # The device itself picks the predicted classes, so the host need not wait for the logits.
        predicted = ArgmaxTargets.from_logits(
            head, recording.logits, recording.fetched_logits, num_alternatives
        )
        return [predicted], [1] * len(rows)
    # If no target depends on the logits, the backward pass is launched before they arrive.
    logits = [np.empty(0)] * len(rows)
    if any(head.depends_on_logits(target) for target in targets):
        logits = trim_logits(head, recording.finite_logits, recording.rows)
    resolved = []
    for target, row_logits, row in zip(targets, logits, rows, strict=True):
        resolved.append(head.resolve(target, row_logits, row))
    targets_per_row = [len(row_targets) for row_targets in resolved]
    targets_by_round: list[Sequence[ResolvedTarget]] = []
    for round_index in range(max(targets_per_row)):
        round_targets = []
        for row_targets in resolved:
            last_index = len(row_targets) - 1
            round_targets.append(row_targets[min(round_index, last_index)])
        targets_by_round.append(round_targets)
    return targets_by_round, targets_per_row
