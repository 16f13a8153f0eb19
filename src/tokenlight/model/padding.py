"""Padding: how rows of different lengths become one rectangular batch.

This is the one place that adds padding to batches of the explained model: width, padding id, mask and whether
there is any padding are decided here. ``ModelRunner.build_inputs`` asks here and hands the decisions on in
``ModelInputs``; nothing derives them again from the lengths of rows. To change any of them, change this
module. A caller that gives a width took it from here (:func:`choose_replayed_width`), from another pass of
the same rows, or, in ``probe.py``, asks for padding to see what it does. The masked language model that
``evaluation/word_filler.py`` runs is another model, with rows of its own.

The side is no such decision. Padding is always on the right, and code elsewhere relies on that: it cuts a row
out of a batch as ``[: len(row)]``, takes position 0 for the first token and ``len(row) - 1`` for the last.

Related decisions are made elsewhere, with what is decided here as a given:

* ``packing.py`` groups rows into batches and limits how much of a batch may be padding; only
  ``ModelRunner.pack_rows`` calls it, with the lengths to which rows are padded;
* ``trace/row_batches.py`` groups rows whose passes are replayed, by the widths that are chosen here;
* ``regimes.py`` says which widths a row must not be padded to, since the model would compute it differently;
* ``probe.py`` finds out by trial whether padding changes the logits of a model (``is_padding_invariant``);
* ``explaining/attribution_fields.py`` drops the scores of padding;
* ``explaining/session.py`` (``find_pad_id``) says which given ids are padding, for rows that come padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.transfer import concatenate_rows, to_device
from tokenlight.errors import UnsupportedModel
from tokenlight.model.model_row import ModelRow

if TYPE_CHECKING:
    from tokenlight.model.runner import ModelRunner

# GPU kernels read a mask fastest if each of its rows begins at such a multiple.
ALIGNMENT_BYTES = 16
# Widths of batches that are replayed as CUDA graphs are multiples of this, so that few shapes are captured.
REPLAYED_WIDTH_STEP = 4


@dataclass(frozen=True)
class PaddedBatch:
    """The shape of one right-padded batch.

    Attributes:
        is_real: ``batch width``; true at real tokens, false at padding.
        pad_id: The id that is put at padding; an id outside the vocabulary if the model has no padding
            id and the batch needs none.
        has_padding: Whether any row is shorter than the batch.
        device: Where the tensors go.
    """

    is_real: np.ndarray
    pad_id: int
    has_padding: bool
    device: torch.device

    def token_mask(self) -> Tensor:
        """Return ``is_real`` on the device."""
        return to_device(self.is_real, self.device)

    def pad(self, values: Sequence[Any], fill: int) -> Tensor:
        """Return one value per token as a tensor, ``batch width``, with ``fill`` at padding."""
        if not self.has_padding:
            table = concatenate_rows(values).reshape(self.is_real.shape)
        else:
            table = np.full(self.is_real.shape, fill)
            table[self.is_real] = concatenate_rows(values)
        return to_device(table, self.device)


def plan_padding(
    runner: ModelRunner,
    rows: Sequence[ModelRow],
    source_length: int | None,
    width: int | None = None,
) -> PaddedBatch:
    """Decide the width and the padding id of a batch.

    Args:
        runner: The model to run.
        rows: Rows or perturbed inputs, each with ``ids``.
        source_length: Tokens of each row that an encoder reads; None if one stack reads all.
        width: The width of the batch; by default as :func:`choose_width` says.

    Raises:
        UnsupportedModel: The batch needs padding, and no id is left to pad with.
    """
    lengths = [len(row.ids) for row in rows]
    width = width or choose_width(runner, lengths, source_length)
    has_padding = min(lengths) < width
    pad_id = choose_pad_id(runner, rows)
    if pad_id is None and has_padding:
        raise UnsupportedModel(
            f"{type(runner.model).__name__} has no padding id, and the batch uses its whole vocabulary, so "
            "no id is free to pad with. Set model.config.pad_token_id.",
            code="no-padding-id",
        )
    if pad_id is None:
        pad_id = runner.vocab_size  # an id that no token has
    # Right padding: the real tokens of a row come first.
    is_real = np.arange(width) < np.array(lengths)[:, None]
    return PaddedBatch(
        is_real=is_real, pad_id=pad_id, has_padding=has_padding, device=runner.device
    )


def round_up(length: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``length``."""
    return -(-length // multiple) * multiple


def choose_width(runner: ModelRunner, lengths: Sequence[int], source_length: int | None) -> int:
    """Return the width of a batch of rows of these lengths.

    A GPU prepares kernels and graphs for every new shape. A batch that is padded anyway is therefore
    padded to a multiple of :func:`choose_padding_multiple`, so that shapes recur.

    Args:
        runner: The model, which may not read more tokens or may compute wide batches differently.
        lengths: The number of tokens of each row.
        source_length: Tokens that an encoder reads; such batches are never widened.
    """
    longest = max(lengths)
    has_one_length = min(lengths) == longest
    if has_one_length or source_length is not None:
        return longest
    width = round_up(longest, runner.padding_multiple)
    max_tokens = runner.max_tokens
    if max_tokens is not None:
        width = min(width, max_tokens)
    return width if runner.batching.may_be_padded(longest, width) else longest


def choose_replayed_width(runner: ModelRunner, longest: int) -> int:
    """Return the width of a batch that is replayed as a CUDA graph.

    It depends on the longest row alone, so that few shapes are captured, and rows of one length are widened
    too. Only models that give a row the same results at any width have such batches.

    Args:
        runner: The model, which may not read more tokens.
        longest: The number of tokens of the longest row.
    """
    width = round_up(longest, max(REPLAYED_WIDTH_STEP, runner.padding_multiple))
    max_tokens = runner.max_tokens
    return width if max_tokens is None else max(longest, min(width, max_tokens))


def pad_lengths(runner: ModelRunner, lengths: Sequence[int]) -> list[int]:
    """Return the lengths to which rows are padded, by which they are packed into batches."""
    multiple = runner.padding_multiple
    return [round_up(length, multiple) for length in lengths]


def choose_padding_multiple(runner: ModelRunner) -> int:
    """Return the number of tokens of which the width of a padded batch is a multiple."""
    can_pad_more = runner.is_padding_invariant and runner.vision_inputs is None
    if runner.device.type != "cuda" or not can_pad_more:
        return 1
    return max(1, ALIGNMENT_BYTES // runner.dtype.itemsize)


def choose_pad_id(runner: ModelRunner, rows: Sequence[ModelRow]) -> int | None:
    """Return the padding id of the model, or the lowest id that no row uses.

    Returns:
        None for images, which are never padded, and if ``rows`` use the whole vocabulary of a model
        without a padding id.
    """
    if runner.pad_id is not None or runner.patch_inputs is not None:
        return runner.pad_id
    used_ids = np.unique(np.concatenate([row.ids for row in rows]))
    candidates = np.arange(min(runner.vocab_size, len(used_ids) + 1))
    free_ids = np.setdiff1d(candidates, used_ids)
    return int(free_ids[0]) if len(free_ids) else None
