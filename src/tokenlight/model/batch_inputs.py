"""Build the keyword arguments of a model's ``forward`` from rows of tokens.

``padding.py`` makes the rows rectangular; this module adds what else the model and its head read: segment
ids, pixels, the inputs of a decoder, and the positions at which a head is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.transfer import to_device
from tokenlight.model.model_row import ModelRow
from tokenlight.model.padding import PaddedBatch, plan_padding
from tokenlight.model.vision import TOKEN_TYPE_ARGUMENTS

if TYPE_CHECKING:
    from tokenlight.model.runner import ModelRunner

# Arguments that tell ``outputs.read_logits`` where to read; the model itself does not get them.
READOUT_ARGUMENTS = ("read_positions", "continuation_ids", "reference_embedding")


class ModelInputs(NamedTuple):
    """The inputs of one pass.

    Attributes:
        arguments: The arguments of the model, and the ``READOUT_ARGUMENTS`` of its head.
        token_mask: ``batch token``: true where a token is not padding.
        pad_id: The id that pads the batch, for a model whose config names none.
        has_padding: Whether some row is shorter than the batch.
    """

    arguments: dict[str, Tensor]
    token_mask: Tensor
    pad_id: int | None
    has_padding: bool


def build_model_inputs(
    runner: ModelRunner, rows: Sequence[ModelRow], width: int | None = None
) -> ModelInputs:
    """Build the arguments of one pass over ``rows``; see :meth:`ModelRunner.build_inputs`.

    Args:
        runner: The model that will read them.
        rows: Rows or perturbed inputs that may share a batch.
        width: The width of the batch; None for the narrowest that is fast.
    """
    if runner.patch_inputs is not None:
        pixels = runner.patch_inputs.build_pixels(rows)
        token_mask = pixels.new_ones(len(rows), len(rows[0])).bool()
        return ModelInputs({"pixel_values": pixels}, token_mask, pad_id=None, has_padding=False)
    source_length = get_shared_source_length(rows)
    has_source = source_length is not None
    assert has_source == runner.generates_from_source, (
        "Rows of this model must have a source_length."
    )
    batch = plan_padding(runner, rows, source_length, width)
    token_mask = batch.token_mask()
    arguments = {
        "input_ids": batch.pad(_read_ids(runner, rows), batch.pad_id),
        "attention_mask": _pad_attention_mask(rows, batch, token_mask),
    }
    arguments |= _build_token_type_arguments(runner, rows, batch)
    if runner.vision_inputs is not None:
        arguments["pixel_values"] = runner.vision_inputs.build_pixels(rows)
    if source_length is not None:
        arguments = _split_source(arguments, source_length)
    arguments |= _build_readout_arguments(runner, rows)
    return ModelInputs(arguments, token_mask, batch.pad_id, batch.has_padding)


def get_shared_source_length(rows: Sequence[ModelRow]) -> int | None:
    """Return how many tokens of each row of a batch an encoder reads; None if one stack reads all."""
    (source_length,) = {row.source_length for row in rows}
    return source_length


def _read_ids(runner: ModelRunner, rows: Sequence[ModelRow]) -> list[Any]:
    """Return the ids of each row; occluded patches keep the id of an image token."""
    if runner.vision_inputs is not None:
        return [runner.vision_inputs.restore_image_ids(row) for row in rows]
    return [getattr(row, "ids_array", row.ids) for row in rows]


def _pad_attention_mask(rows: Sequence[ModelRow], batch: PaddedBatch, token_mask: Tensor) -> Tensor:
    for row in rows:
        if not getattr(row, "is_unmasked", False):
            return batch.pad([row.attention_mask for row in rows], 0)
    return token_mask.long()  # nothing is masked but padding


def _build_token_type_arguments(
    runner: ModelRunner, rows: Sequence[ModelRow], batch: PaddedBatch
) -> dict[str, Tensor]:
    """Return the segment ids under the name that the model reads, if it reads any and a row has them."""
    names = [name for name in TOKEN_TYPE_ARGUMENTS if name in runner.forward_parameters]
    if not names or all(row.token_type_ids is None for row in rows):
        return {}
    # A row without segment ids is all segment 0, whatever its neighbors in the batch have.
    token_types: list[Sequence[int] | np.ndarray] = []
    for row in rows:
        if row.token_type_ids is None:
            token_types.append((0,) * len(row.ids))
        else:
            token_types.append(row.token_type_ids)
    return {names[0]: batch.pad(token_types, 0)}


def _split_source(arguments: dict[str, Tensor], source_length: int) -> dict[str, Tensor]:
    """Give the first tokens of each row to the encoder and the others to the decoder."""
    encoder_arguments = {name: table[:, :source_length] for name, table in arguments.items()}
    decoder_arguments = {
        f"decoder_{name}": table[:, source_length:] for name, table in arguments.items()
    }
    return encoder_arguments | decoder_arguments


def _build_readout_arguments(runner: ModelRunner, rows: Sequence[ModelRow]) -> dict[str, Tensor]:
    """Return the ``READOUT_ARGUMENTS`` of the head: token positions, or embeddings to compare with."""
    if runner.head.task in ("text-generation", "fill-mask", "token-classification"):
        return _build_position_arguments(rows)
    if runner.head.task == "sentence-similarity":
        embeddings = []
        for row in rows:
            # No comparison is needed if only attention or vectors are read.
            embeddings.append(row.reference_embedding or (0.0,))
        return {"reference_embedding": to_device(embeddings, runner.device, runner.dtype)}
    return {}


def _build_position_arguments(rows: Sequence[ModelRow]) -> dict[str, Tensor]:
    """Return the positions at which the head is read, counted from the start of the decoder's tokens."""
    source_length = get_shared_source_length(rows) or 0
    (continuation_length,) = {len(row.continuation_ids) for row in rows}
    if continuation_length:
        # Each token of a continuation is predicted at the token before it.
        positions = []
        for row in rows:
            end = len(row) - source_length
            default_positions = range(end - continuation_length, end)
            positions.append([*(row.target_positions or default_positions)])
        continuation_ids = torch.tensor([row.continuation_ids for row in rows])
        return {"read_positions": torch.tensor(positions), "continuation_ids": continuation_ids}
    if rows[0].target_positions:
        return {
            "read_positions": torch.tensor([row.target_positions for row in rows]) - source_length
        }
    read_positions = [_read_position(row) for row in rows]
    return {"read_positions": torch.tensor(read_positions) - source_length}


def _read_position(row: ModelRow) -> int:
    """Return the position at which the head is read: that of the target, by default the last."""
    if row.target_position is None:
        return len(row) - 1
    return int(row.target_position)
