"""Rows of tokens on which the probes of ``probe.py`` run.

A probe compares two computations, so its row must let them differ: it has several distinct tokens, and it is
read at its last token, which sees all others whatever the attention mask of the model is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tokenlight.data.tokens import TokenRow
from tokenlight.hooks.embedding_layers import find_token_embeddings

if TYPE_CHECKING:
    from tokenlight.model.runner import ModelRunner

PROBE_PADDING = 5  # tokens of padding that a probe tries first
# Enough tokens to tell two computations apart, and few enough to record attention maps of.
PROBE_TOKENS = 32
# Over one token, or over many equal ones, attention gives the same whatever computes it.
MIN_DISTINCT_TOKENS = 8
# Other dtypes are quantized, or no arithmetic is defined for them.
CHECKED_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def make_probe_row(runner: ModelRunner, row: TokenRow, length: int = 0) -> TokenRow:
    """Return a row like ``row`` on which two computations that differ give different logits.

    Args:
        runner: The model to run.
        row: A row that the model reads; images are returned as they are.
        length: The number of tokens; by default a short row, below all lengths at which the model
            computes differently.
    """
    if runner.patch_inputs is not None or runner.vision_inputs is not None:
        return row
    num_tokens = length or _choose_probe_length(runner)
    if row.source_length is not None:
        source_tokens = max(length, min(num_tokens, MIN_DISTINCT_TOKENS))
        return _make_encoder_decoder_probe_row(runner, row, row.source_length, source_tokens)
    row = replace(shorten_row(row, num_tokens), target_position=None)
    if runner.head.task == "sentence-similarity" and row.reference_embedding is None:
        # Compared with zeros, any two computations would agree.
        hidden_size = runner.model.config.get_text_config().hidden_size
        reference = np.cos(np.arange(hidden_size)).tolist()
        row = replace(row, reference_embedding=tuple(reference))
    return _add_distinct_tokens(runner, row, num_tokens)


def _choose_probe_length(runner: ModelRunner) -> int:
    """Return the length of a probe row that stays in the regime of short rows when it is padded."""
    batching = runner.batching
    num_tokens = batching.find_longest_length_on_short_sides(PROBE_TOKENS + PROBE_PADDING)
    if batching.has_thresholds:
        # Leave room for the padding that is tried, unless too few tokens would remain.
        min_tokens = min(num_tokens, MIN_DISTINCT_TOKENS)
        num_tokens = max(num_tokens - PROBE_PADDING, min_tokens)
    return min(num_tokens, PROBE_TOKENS)


def _add_distinct_tokens(runner: ModelRunner, row: TokenRow, num_tokens: int) -> TokenRow:
    """Insert unused ids before the last token until ``MIN_DISTINCT_TOKENS`` distinct ids are attended to."""
    attended_ids = set()
    for token_id, is_attended in zip(row.ids, row.attention_mask, strict=True):
        if is_attended:
            attended_ids.add(token_id)
    max_tokens = runner.max_tokens
    if max_tokens is not None:
        num_tokens = min(num_tokens, max_tokens)
    num_added = max(0, min(MIN_DISTINCT_TOKENS - len(attended_ids), num_tokens - 1))
    added_ids = find_unused_ids(runner, row)[:num_added]
    if not added_ids:
        return row
    shortened = shorten_row(row, num_tokens - len(added_ids))
    return _insert_ids(shortened, added_ids, before_last=True)


def _make_encoder_decoder_probe_row(
    runner: ModelRunner, row: TokenRow, source_length: int, num_tokens: int
) -> TokenRow:
    """Return a source of ``num_tokens`` and a continuation of another length.

    Because the lengths differ, self-attention and cross-attention can be told apart by their shapes.
    """
    num_kept = min(source_length, num_tokens)
    repeated_first = [0] * (num_tokens - num_kept)
    # The last token of the source and the first of the continuation are always kept.
    positions = [*repeated_first, *range(num_kept - 1), source_length - 1, source_length]
    added_ids = find_unused_ids(runner, row)[:MIN_DISTINCT_TOKENS]
    longer = _insert_ids(row.take(positions), added_ids, before_last=False)
    return replace(longer, target_position=None)


def _insert_ids(row: TokenRow, ids: Sequence[int], *, before_last: bool) -> TokenRow:
    """Insert ``ids`` before the last token or after it; their other fields are copied from it."""
    last = len(row) - 1
    longer = row.take([*range(last), *[last] * (len(ids) + 1)])
    position = last if before_last else len(row)
    new_ids = (*row.ids[:position], *ids, *row.ids[position:])
    new_mask = (*row.attention_mask[:position], *[1] * len(ids), *row.attention_mask[position:])
    return replace(longer, ids=new_ids, attention_mask=new_mask)


def shorten_row(row: TokenRow, length: int) -> TokenRow:
    """Return the first tokens of a row and its last token, which some heads read."""
    if len(row) <= length:
        return row
    return row.take([*range(length - 1), len(row) - 1])


def make_other_row(runner: ModelRunner, row: TokenRow, *, replace_last: bool = False) -> TokenRow:
    """Return ``row`` with other tokens wherever none is special.

    Args:
        runner: The model to run.
        row: The row.
        replace_last: Whether to replace the last token even if it is special.
    """
    special_ids = _find_special_ids(runner)
    plain_ids = find_unused_ids(runner, row)
    if not plain_ids:
        plain_ids = [token_id for token_id in row.ids[::-1] if token_id not in special_ids] or [0]
    ids = []
    for position, token_id in enumerate(row.ids):
        is_replaced_last = replace_last and position == len(row) - 1
        if token_id in special_ids and not is_replaced_last:
            ids.append(token_id)
        else:
            ids.append(plain_ids[position % len(plain_ids)])
    if row.image is not None:
        # The other input of a vision-language model shows another image: this one upside down, inverted.
        pixels = np.ascontiguousarray(-row.image.pixels[:, ::-1, ::-1])
        row = replace(row, image=replace(row.image, pixels=pixels))
    return replace(row, ids=tuple(ids))


def find_unused_ids(runner: ModelRunner, row: TokenRow) -> list[int]:
    """Return plain ids from all over the vocabulary that are not in ``row``; at least one id stays free.

    Ids with embeddings that are not finite are left out.
    """
    excluded_ids = {*row.ids, *_find_special_ids(runner)}
    candidates = (i for i in _iter_spread_ids(runner.vocab_size) if i not in excluded_ids)
    # The first candidate stays free, so that a model without a padding id has one to pad with.
    unused_ids = list(islice(candidates, 1, 2 * MIN_DISTINCT_TOKENS + 1))
    table: Any = find_token_embeddings(runner.model)[0].weight
    if not unused_ids or not is_checkable(table):
        return unused_ids
    is_finite = torch.isfinite(table.detach()[unused_ids]).all(dim=-1).tolist()
    return [token_id for token_id, finite in zip(unused_ids, is_finite, strict=True) if finite]


def _iter_spread_ids(vocab_size: int) -> Iterator[int]:
    """Yield every id once, in steps, so that the first ones come from all over the vocabulary."""
    step = max(1, vocab_size // (4 * MIN_DISTINCT_TOKENS))
    for start in range(step):
        yield from range(start, vocab_size, step)


def _find_special_ids(runner: ModelRunner) -> set[int]:
    """Return the ids that the tokenizer and the config name: padding, start, end and others."""
    special_ids: set[int] = {*getattr(runner.tokenizer, "all_special_ids", ())}
    for config in (runner.model.config, runner.model.config.get_text_config()):
        for name, value in vars(config).items():
            if not name.endswith(("token_id", "token_index")) or value is None:
                continue
            special_ids.update(value if isinstance(value, list | tuple) else [value])
    return special_ids


def is_checkable(weight: Tensor) -> bool:
    """Return whether the values of a weight can be inspected: no subclass, no meta tensor, not quantized."""
    is_plain = type(weight) in (Tensor, nn.Parameter) and type(weight.data) is Tensor
    has_values = not weight.is_meta and weight.numel() > 0
    return is_plain and has_values and weight.dtype in CHECKED_DTYPES
