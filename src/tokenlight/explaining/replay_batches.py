"""Batches with shapes that may return, so that their CUDA graphs are worth capturing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.methods.base import Method, MultiPassMethod
from tokenlight.model.objective import ArgmaxTargets
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.replay import (
    ModelReplayBatch,
    build_replay_batch,
    estimate_multiplications,
    get_max_queued_multiplications,
    is_on_one_gpu,
    is_one_logit,
    reads_plain_text,
)
from tokenlight.trace.sites import Site

# Multiplications of a pass, with weights and in attention, up to which it is replayed: beyond, the device
# computes for longer than Python needs to launch it.
MAX_REPLAYED_MULTIPLICATIONS = 2e13


@dataclass(frozen=True)
class FixedTargets:
    """Targets that are known before the pass: one per row, each one logit."""

    targets: list[ResolvedTarget]


@dataclass(frozen=True)
class PredictedTargets:
    """Targets that the device picks from the logits: the predicted class of each row.

    Attributes:
        num_alternatives: With how many other classes each is contrasted.
    """

    num_alternatives: int


def make_replay_batch(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    targets: Sequence[TargetLike],
    options: ExplainOptions,
    *,
    is_only_batch: bool = True,
) -> ModelReplayBatch | None:
    """Prepare a batch for a CUDA graph.

    Args:
        runner: The model to run.
        rows: The rows of the batch.
        targets: One target per row.
        options: Resolved keyword arguments of ``explain()``, with the methods.
        is_only_batch: No other batch is launched while this one is computed.

    Returns:
        None if a pass over the batch cannot be replayed, or is too large to profit from it.
    """
    if not _is_replayable(
        runner, rows, options, _max_multiplications(runner, is_only_batch=is_only_batch)
    ):
        return None
    replayed_targets = _find_replayed_targets(runner, rows, targets)
    if replayed_targets is None:
        return None
    fixed_targets: list[ResolvedTarget] = []
    num_alternatives: int | None = None
    if isinstance(replayed_targets, FixedTargets):
        fixed_targets = replayed_targets.targets
    else:
        num_alternatives = replayed_targets.num_alternatives
    key = (num_alternatives, tuple(map(get_replayed_method, options.methods)))
    return build_replay_batch(runner, rows, fixed_targets, key)


def _max_multiplications(runner: ModelRunner, *, is_only_batch: bool) -> float:
    """Return how large a pass may be to profit from a replay."""
    if is_only_batch:
        return MAX_REPLAYED_MULTIPLICATIONS
    return get_max_queued_multiplications(runner)


def _find_replayed_targets(
    runner: ModelRunner, rows: Sequence[TokenRow], targets: Sequence[TargetLike]
) -> FixedTargets | PredictedTargets | None:
    """Return targets as a graph can read them; None if they are of a kind that no graph can.

    The host cannot look at the logits of a replay before it ends. Targets that depend on them are therefore
    picked by the device, or the pass is not replayed.
    """
    head = runner.head
    num_alternatives = ArgmaxTargets.count_alternatives(head, targets)
    if num_alternatives is not None:
        return PredictedTargets(num_alternatives)
    # A class is the same target for every text, so that it is resolved once.
    has_plain_types = not set(map(type, targets)) - {int, str}
    is_same_class = has_plain_types and len({*targets}) == 1 and head.task == "text-classification"
    num_distinct = 1 if is_same_class else len(rows)
    resolved: list[ResolvedTarget] = []
    for target, row in zip(targets[:num_distinct], rows, strict=False):
        if head.depends_on_logits(target):
            return None
        # No logits are needed: the target does not depend on them.
        row_targets = head.resolve(target, np.empty(0), row)
        if len(row_targets) != 1 or not is_one_logit(row_targets[0]):
            return None
        resolved.append(row_targets[0])
    return FixedTargets(resolved * (len(rows) // num_distinct))


def _is_replayable(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    options: ExplainOptions,
    max_multiplications: float,
) -> bool:
    """Return whether one GPU computes plain texts by methods of one pass, of a size worth replaying."""
    if not is_on_one_gpu(runner) or options.explain_mask != "none":
        return False
    has_joint_target = any([row.target_positions or row.continuation_ids for row in rows])
    if has_joint_target or not reads_plain_text(runner):
        return False
    # Large passes keep the device busy without a graph.
    num_tokens = max([len(row.ids) for row in rows])
    if estimate_multiplications(runner, len(rows), num_tokens) > max_multiplications:
        return False
    return all(map(_needs_one_pass, options.methods))


def get_replayed_method(method: Method) -> Method:
    """Return the method whose pass a graph replays: the method, or its first pass."""
    if isinstance(method, MultiPassMethod):
        return method.first_pass or method
    return method


def _needs_one_pass(method: Method) -> bool:
    """Return whether the method needs one pass, and can be part of a key."""
    method = get_replayed_method(method)
    try:
        hash(method)
    except TypeError:  # An option is a list or a table.
        return False
    return Site.GRAPH not in method.recorded_sites and method.count_passes(1).forwards == 1
