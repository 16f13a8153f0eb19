"""Passes whose shape may return, as CUDA graphs replay them: what shapes a pass, and which models can."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from tokenlight.accel.graphs import ReplayBatch
from tokenlight.accel.precision import read_precision_settings
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.runner import ModelRunner

# Multiplications of a pass, with weights and in attention, up to which it is replayed where Python can
# prepare another batch meanwhile: beyond, the device computes for longer than Python needs to launch it.
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


def build_replay_batch(
    runner: ModelRunner,
    rows: Sequence[TokenRow],
    targets: list[ResolvedTarget],
    key: tuple[Hashable, ...],
    *,
    width: int | None = None,
) -> ModelReplayBatch:
    """Build the inputs of a batch and the key of its shape.

    Args:
        runner: The model to run.
        rows: The rows of the batch.
        targets: One target per row, each one logit that does not depend on what the pass computes; none if
            the device picks the predicted class.
        key: What is computed from the pass: all that changes its operations besides the inputs.
        width: The width of the batch; by default the narrowest that is fast.
    """
    inputs = runner.build_inputs(rows, width)
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
        *key,
        precision,
    )
    return ModelReplayBatch(
        tensors=[*(arguments[name] for name in tensor_names), token_mask],
        targets=targets,
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


def is_one_logit(target: ResolvedTarget) -> bool:
    """Return whether a target is a single logit, which a graph can read for other targets, too."""
    return len(target.terms) == 1 and target.terms[0][1] == 1


def is_on_one_gpu(runner: ModelRunner) -> bool:
    """Return whether the model computes on a single GPU."""
    device_map = getattr(runner.model, "hf_device_map", None) or {"": 0}
    return runner.device.type == "cuda" and len(set(device_map.values())) == 1


def reads_plain_text(runner: ModelRunner) -> bool:
    """Return whether the model is a classifier or a language model that reads only text."""
    return (
        runner.head.task in ("text-classification", "text-generation")
        and runner.patch_inputs is None
        and runner.vision_inputs is None
        and not runner.generates_from_source
    )


def get_max_queued_multiplications(runner: ModelRunner) -> float:
    """Return how large a pass may be to profit from a replay while other passes are queued."""
    if runner.is_half_precision_gpu:
        return MAX_QUEUED_MULTIPLICATIONS_HALF
    return MAX_QUEUED_MULTIPLICATIONS


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
