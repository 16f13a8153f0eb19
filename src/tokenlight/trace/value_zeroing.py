"""Value zeroing: run every block again on its recorded input while the value of one token is zero."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks import attention_hook
from tokenlight.hooks.blocks import list_blocks
from tokenlight.hooks.locks import call_between_passes
from tokenlight.hooks.patching import forward_hooks
from tokenlight.model.packing import run_in_halves
from tokenlight.trace.extra_passes import NO_GRAD_BATCH_FACTOR
from tokenlight.trace.recording import Recording


@dataclass(frozen=True)
class BlockStates:
    """Input and output of each block, in running order; each ``pass token hidden``."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def compute_value_zeroing_distances(recording: Recording) -> Iterator[Tensor]:
    r"""Compute how far the output of each block moves when the value of one token is zero.

    Args:
        recording: A pass over the texts.

    Yields:
        For each block ``batch query key``: the cosine distance :math:`1-\cos(x_i,\tilde x_i^{\neg j})` of the
        output at a query to the output with the key's value set to zero.

    Raises:
        UnsupportedModel: If values cannot be set to zero, or if blocks and attention maps do not match.
    """
    runner = recording.runner
    if runner.attention_route != "hook":
        raise UnsupportedModel(
            f"{type(runner.model).__name__} does not pass its values to transformers' attention interface, "
            "so they cannot be set to zero. Use rollout or occlusion.",
            code="values-not-accessible",
        )
    clean_states = _run_blocks(recording, None, torch.arange(len(recording.rows)), None)
    _check_block_states(recording, clean_states)
    shape = recording.token_mask.shape
    distances: list[Tensor] = []
    for output in clean_states.outputs:
        distances.append(output.new_zeros((*shape, shape[1]), dtype=torch.float64))
    # One pass for each token of each example.
    passes: list[tuple[int, int]] = []
    for example, row in enumerate(recording.rows):
        passes += [(example, token) for token in range(len(row))]
    budget = recording.batch_tokens * NO_GRAD_BATCH_FACTOR.get(runner.device.type, 1)
    for pack in torch.split(torch.tensor(passes), recording.count_passes_at_once(budget)):
        run_part = partial(_compute_block_distances, recording, clean_states, pack)
        parts = run_in_halves(run_part, len(pack))
        examples, tokens = pack.T
        for block, matrix in enumerate(distances):
            matrix[examples, :, tokens] = torch.cat([part[block] for part in parts])
        call_between_passes()
    yield from distances


def _check_block_states(recording: Recording, states: BlockStates) -> None:
    """Refuse a model unless each map belongs to a block with one vector per token."""
    expected_shape = recording.token_mask.shape
    has_token_vectors = all(
        state.shape[:2] == expected_shape for state in (*states.inputs, *states.outputs)
    )
    num_maps = len(recording.attention_maps)
    num_blocks = len(states.outputs)
    if num_blocks != num_maps or not has_token_vectors:
        raise UnsupportedModel(
            f"{type(recording.runner.model).__name__} has {num_maps} attention maps, but {num_blocks} blocks "
            "that take and return one vector per token. Use rollout or occlusion.",
            code="maps-without-blocks",
        )


def _compute_block_distances(
    recording: Recording, clean_states: BlockStates, pack: Tensor, rows: slice
) -> list[list[Tensor]]:
    """Return one list with the distances of each block, ``pass query``.

    Half the squared distance of unit vectors is the cosine distance, without cancellation. A vector that
    moves by four units in the last place or less was only rounded otherwise: its distance is zero.
    """
    examples, tokens = pack[rows].T
    changed_states = _run_blocks(recording, clean_states, examples, tokens)
    runner = recording.runner
    model_eps = compute_rounding_eps(runner.device, runner.dtype)
    distances: list[Tensor] = []
    for clean, changed in zip(clean_states.outputs, changed_states.outputs, strict=True):
        clean_examples = clean[examples.to(clean.device)].double()
        clean_unit = nn.functional.normalize(clean_examples, dim=-1)
        changed_unit = nn.functional.normalize(changed.double(), dim=-1)
        distance = (clean_unit - changed_unit).square().sum(dim=-1) / 2
        eps = max(model_eps, torch.finfo(clean.dtype).eps)
        rounding_distance = (4 * eps) ** 2 / 2
        distances.append(distance.masked_fill(distance <= rounding_distance, 0.0))
    return [distances]


@torch.inference_mode(mode=False)
def _run_blocks(
    recording: Recording,
    clean_states: BlockStates | None,
    examples: Tensor,
    zeroed_tokens: Tensor | None,
) -> BlockStates:
    """Run the model and record what enters and leaves each block.

    Args:
        recording: The pass with the texts.
        clean_states: Replace the input of each block by its input there, for ``examples``.
        examples: The examples to run, as often as they are named.
        zeroed_tokens: For each of them the token with value zero.
    """
    runner = recording.runner
    states = BlockStates()

    def replace_input(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first, *others = args or (kwargs.pop("hidden_states"),)
        block = len(states.inputs)
        states.inputs.append(first)
        if clean_states is not None:
            first = clean_states.inputs[block][examples.to(first.device)]
        return (first, *others), kwargs

    def record_output(_block: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        states.outputs.append(output if isinstance(output, Tensor) else output[0])

    blocks: list[nn.Module] = []
    for block in list_blocks(runner.model):
        if not runner.recorded_modules.isdisjoint(block.modules()):
            blocks.append(block)
    recorder = attention_hook.AttentionRecorder(
        "nothing", recording.token_mask, runner.recorded_modules, zeroed_token=zeroed_tokens
    )
    runner.run(
        runner.build_inputs(recording.rows, recording.token_mask.shape[1]),
        attention_hook.attention_recorded_by(recorder),
        forward_hooks(blocks, pre_hook=replace_input, post_hook=record_output),
        attention=runner.recorded_attention,
        examples=examples,
    )
    return states
