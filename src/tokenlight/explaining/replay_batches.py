"""Batches with shapes that may return, so that their CUDA graphs are worth capturing."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tokenlight.accel.graphs import ReplayBatch
from tokenlight.accel.precision import read_precision_settings
from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.methods.base import Method
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.objective import ArgmaxTargets
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.sites import Site

# Multiplications of a pass, with weights and in attention, up to which it is replayed: beyond, the device
# computes for longer than Python needs to launch it.
MAX_REPLAYED_MULTIPLICATIONS = 2e13
# The same where Python can prepare another batch meanwhile.
MAX_QUEUED_MULTIPLICATIONS_HALF = 4e12
MAX_QUEUED_MULTIPLICATIONS = 5e11


@dataclass(frozen=True, eq=False)
class ModelReplayBatch(ReplayBatch):
    """A batch that can be replayed, with what turns its tensors into arguments of the model."""

    model_inputs: ModelInputs
    tensor_names: list[str]

    def to_model_inputs(self, tensors: Sequence[Tensor]) -> ModelInputs:
        """Return these tensors, or others of the same shapes, as the model takes them."""
        *values, token_mask = tensors
        replaced = dict(zip(self.tensor_names, values, strict=True))
        arguments = {**self.model_inputs.arguments, **replaced}
        return self.model_inputs._replace(arguments=arguments, token_mask=token_mask)


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
    # A graph holds fixed targets, so that they must not depend on what it computes.
    resolved_targets = _resolve_constant_targets(runner, rows, targets)
    if resolved_targets is None:
        return None
    inputs = runner.build_inputs(rows)
    arguments = inputs.arguments
    token_mask = inputs.token_mask
    tensor_names = []
    for name, value in arguments.items():
        if value.device == token_mask.device:
            tensor_names.append(name)
    precision = read_precision_settings(token_mask.device)
    # Everything except the values of the tensors that shapes the pass.
    shape_key = (
        token_mask.shape,
        inputs.has_padding,
        *_describe_rows(runner, rows),
        tuple(tensor_names),
        inputs.pad_id,
        None if resolved_targets else ArgmaxTargets.count_alternatives(runner.head, targets),
        tuple(options.methods),
        precision,
    )
    return ModelReplayBatch(
        tensors=[*(arguments[name] for name in tensor_names), token_mask],
        targets=resolved_targets,
        shape_key=shape_key,
        text_key=tuple(row.ids for row in rows),
        precision=precision,
        model_inputs=inputs,
        tensor_names=tensor_names,
    )


def _describe_rows(runner: ModelRunner, rows: Sequence[TokenRow]) -> tuple[Hashable, ...]:
    """Return the facts of the rows that change which kernels a pass launches."""
    is_masked = not all([row.is_unmasked for row in rows])
    positions = []
    if runner.head.task != "text-classification":
        positions = [(len(row), row.target_position) for row in rows]
    return is_masked, tuple(positions)


def _max_multiplications(runner: ModelRunner, *, is_only_batch: bool) -> float:
    """Return how large a pass may be to profit from a replay."""
    if is_only_batch:
        return MAX_REPLAYED_MULTIPLICATIONS
    if runner.is_half_precision_gpu:
        return MAX_QUEUED_MULTIPLICATIONS_HALF
    return MAX_QUEUED_MULTIPLICATIONS


def _resolve_constant_targets(
    runner: ModelRunner, rows: Sequence[TokenRow], targets: Sequence[TargetLike]
) -> list[ResolvedTarget] | None:
    """Resolve targets that are one logit each and do not depend on the logits.

    Returns:
        One target per row, none where the device itself picks the predicted class; None if the targets
        are of another kind.
    """
    head = runner.head
    if ArgmaxTargets.count_alternatives(head, targets) is not None:
        return []
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
        first_terms = row_targets[0].terms
        if len(row_targets) != 1 or len(first_terms) > 1 or first_terms[0][1] != 1:
            return None
        resolved.append(row_targets[0])
    return resolved * (len(rows) // num_distinct)


def _is_replayable(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    options: ExplainOptions,
    max_multiplications: float,
) -> bool:
    """Return whether one GPU computes plain texts by methods of one pass, of a size worth replaying."""
    if not _is_on_one_gpu(runner) or options.explain_mask != "none":
        return False
    has_joint_target = any([row.target_positions or row.continuation_ids for row in rows])
    if has_joint_target or not _reads_plain_text(runner):
        return False
    # Large passes keep the device busy without a graph.
    num_tokens = max([len(row.ids) for row in rows])
    if estimate_multiplications(runner, len(rows), num_tokens) > max_multiplications:
        return False
    return all(map(_needs_one_pass, options.methods))


def _is_on_one_gpu(runner: ModelRunner) -> bool:
    device_map = getattr(runner.model, "hf_device_map", None) or {"": 0}
    return runner.device.type == "cuda" and len(set(device_map.values())) == 1


def _reads_plain_text(runner: ModelRunner) -> bool:
    """Return whether the model is a classifier or a language model that reads only text."""
    return (
        runner.head.task in ("text-classification", "text-generation")
        and runner.patch_inputs is None
        and runner.vision_inputs is None
        and not runner.generates_from_source
    )


def estimate_multiplications(runner: ModelRunner, num_rows: int, num_tokens: int) -> float:
    """Estimate the multiplications of one forward pass.

    Args:
        runner: The model to run.
        num_rows: Number of rows in the batch.
        num_tokens: Number of tokens in each row.
    """
    config = runner.model.config.get_text_config()
    hidden_size = getattr(config, "hidden_size", 0) or 0
    num_layers = getattr(config, "num_hidden_layers", 0) or 0
    per_token = runner.graph_cache.num_parameters + 2 * num_layers * hidden_size * num_tokens
    return float(num_rows * num_tokens * per_token)


def _needs_one_pass(method: Method) -> bool:
    """Return whether the method needs one pass, and can be part of a key."""
    try:
        hash(method)
    except TypeError:  # An option is a list or a table.
        return False
    return Site.GRAPH not in method.recorded_sites and method.count_passes(1).forwards == 1
