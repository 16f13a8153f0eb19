"""Stream perturbed inputs through the model: rows or variants in, logits out, in order.

Every metric and every perturbation method goes through :func:`stream_logits`.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.transfer import to_device
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TextTooLong
from tokenlight.hooks.first_token import find_last_feed_forward, first_token_alone
from tokenlight.hooks.locks import call_between_passes
from tokenlight.model.batch_inputs import get_shared_source_length
from tokenlight.model.embeddings import find_embedding_hooks
from tokenlight.model.memory import is_out_of_memory, limit_pack_tokens
from tokenlight.model.probe import reads_first_token_alone
from tokenlight.model.runner import CPU_BATCH_TOKENS, ModelRunner
from tokenlight.perturb.variants import Variant

# Number of inputs that are deduplicated, sorted and packed together, by device type.
CHUNK_SIZES = {"cpu": 1024, "cuda": 16384}
MAX_CHUNK_LOGITS = 1 << 25  # entries of all logits of a chunk; vocabularies are large
# A GPU runs asynchronously: while it works on one chunk, the next one is prepared.
PREFETCHED_CHUNKS = {"cpu": 0, "cuda": 1}
# No graph is kept, so a batch may be larger than in an explanation. On a CPU larger batches are not
# faster, since their activations leave the cache.
DEFAULT_BATCH_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 65536}
BatchLogits = list[tuple[list[int], Tensor]]  # indices of rows, and their logits on the device


def stream_logits(
    runner: ModelRunner, sequences: Iterable[TokenRow | Variant], *, batch_tokens: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the logits of each input, in order.

    Memory is bounded: one chunk of inputs at a time is deduplicated, sorted by length, packed into
    batches, smaller ones where little memory is free, and run without a graph. If a batch does not fit
    into memory all the same, it is halved. Logits that are not finite are yielded as well, because the
    caller knows what they mean.

    Args:
        runner: The model to run.
        sequences: Rows or variants; read lazily, a chunk at a time.
        batch_tokens: Number of tokens per batch, padding included.

    Yields:
        An array of labels for a classifier, or ``token 2`` for a span head.

    Raises:
        TextTooLong: An input has more tokens than the model reads.
        BadInput: An input holds ids outside the vocabulary.
    """
    variants = (
        sequence if isinstance(sequence, Variant) else Variant.from_row(sequence)
        for sequence in sequences
    )
    device_type = runner.device.type if runner.device.type in CHUNK_SIZES else "cpu"
    batch_tokens = batch_tokens or runner.batch_tokens or DEFAULT_BATCH_TOKENS[device_type]
    batch_tokens = limit_pack_tokens(runner, batch_tokens, gradients=False, recorded_tokens=0)
    max_rows = MAX_CHUNK_LOGITS // max(1, len(runner.head.labels))
    chunk_size = min(CHUNK_SIZES[device_type], max(16, max_rows))
    launched: deque[Iterator[np.ndarray]] = deque()
    while chunk := list(islice(variants, chunk_size)):
        keys = [variant.dedup_key for variant in chunk]
        unique = dict(zip(keys, chunk, strict=True))
        batches, batch_tokens = _launch_batches(runner, list(unique.values()), batch_tokens)
        launched.append(_collect_logits(keys, unique, batches))
        if len(launched) > PREFETCHED_CHUNKS[device_type]:
            yield from launched.popleft()
    while launched:
        yield from launched.popleft()


def _collect_logits(
    keys: list[Hashable], unique: dict[Hashable, Variant], batches: BatchLogits
) -> Iterator[np.ndarray]:
    """Wait for the device and yield the logits of the variant of each key, in order."""
    keyed_variants = list(unique.items())
    logits_by_key = {}
    for batch, logits in batches:
        batch_logits = logits.cpu().double().numpy()
        has_token_axis = batch_logits.ndim == 3  # of a span head: ``batch token 2``
        for index, row_logits in zip(batch, batch_logits, strict=True):
            key, variant = keyed_variants[index]
            # Drop the logits of padding.
            logits_by_key[key] = row_logits[: len(variant)] if has_token_axis else row_logits
    for key in keys:
        yield logits_by_key[key]


def _launch_batches(
    runner: ModelRunner, rows: list[Variant], batch_tokens: int
) -> tuple[BatchLogits, int]:
    """Run distinct rows; return their logits and the number of tokens per batch that fits into memory."""
    _check_rows(runner, rows)
    _verify_model_for(runner, rows)
    pending = _pack_rows(runner, rows, range(len(rows)), batch_tokens)
    finished: BatchLogits = []
    while pending:
        batch = pending.popleft()
        logits = _try_batch(runner, [rows[index] for index in batch])
        if logits is not None:
            finished.append((batch, logits))
            call_between_passes()
            continue
        # Out of memory. The tensors of the failed pass were released when _try_batch returned.
        if runner.device.type == "cuda":
            torch.cuda.empty_cache()
        batch_tokens = max(1, len(rows[batch[0]]) * len(batch) // 2)
        remaining = list(batch)
        for later_batch in pending:
            remaining.extend(later_batch)
        pending = _pack_rows(runner, rows, remaining, batch_tokens)
    return finished, batch_tokens


def _check_rows(runner: ModelRunner, rows: Sequence[Variant]) -> None:
    """Refuse rows that are too long for the model, and ids outside its vocabulary."""
    max_tokens = runner.max_tokens
    if max_tokens is not None:
        for row in rows:
            source_length = row.source_length or 0
            # Encoder and decoder have position embeddings of their own.
            num_tokens = max(source_length, len(row) - source_length)
            if num_tokens > max_tokens:
                raise TextTooLong(
                    f"A perturbed text has {num_tokens} tokens, but this model reads at most "
                    f"{max_tokens}. Give a shorter text.",
                    code="variant-too-long",
                )
    ids = np.concatenate([row.ids for row in rows])
    runner.check_ids(int(ids.min()), int(ids.max()))


def _verify_model_for(runner: ModelRunner, rows: Sequence[Variant]) -> None:
    """Verify the model for each length regime among ``rows``, so that padding is known to be safe."""
    for variant in runner.batching.pick_probe_rows(rows):
        row = variant.row
        if runner.batching.has_thresholds:
            row = _to_probe_row(variant)
        runner.verify(replace(row, target_positions=()), reads_attention=False)


def _to_probe_row(variant: Variant) -> TokenRow:
    """Return a row of the same length as ``variant``, for the probes of the model."""
    if variant.original_positions is None:
        return variant.row
    # The padding token of an emptied text has the position −1; any token stands for it here.
    positions = np.maximum(variant.original_positions, 0).tolist()
    return replace(
        variant.row.take(positions), target_position=None, source_length=variant.source_length
    )


def _pack_rows(
    runner: ModelRunner, rows: list[Variant], indices: Sequence[int], batch_tokens: int
) -> deque[list[int]]:
    """Group the rows at ``indices`` into batches."""
    selected = [rows[index] for index in indices]
    # Without a padding id, each row is a batch of its own and needs no padding.
    needs_pad_id = runner.patch_inputs is None
    is_alone = needs_pad_id and runner.choose_pad_id(selected) is None
    groups = runner.pack_rows(selected, batch_tokens, 1 if is_alone else None)
    batches: deque[list[int]] = deque()
    for group in groups:
        batches.append([indices[position] for position in group])
    return batches


def _try_batch(runner: ModelRunner, rows: list[Variant]) -> Tensor | None:
    """Return the logits of ``rows``; None if several rows do not fit into memory together."""
    try:
        inputs = runner.build_inputs(rows)
        dropped_embeddings = _dropped_embeddings(runner, rows, inputs.token_mask)
        _, logits = runner.run(inputs, dropped_embeddings, _shortened_last_block(runner, rows[0]))
    except RuntimeError as error:
        if len(rows) == 1 or not is_out_of_memory(error):
            raise
        return None
    return logits


def _shortened_last_block(runner: ModelRunner, variant: Variant) -> AbstractContextManager[None]:
    """Skip what a classifier of the BERT family computes in its last block and does not read.

    Of a model of six blocks this is a tenth of the time.
    """
    block = find_last_feed_forward(runner.model)
    if block is None or not reads_first_token_alone(runner, variant.row, block):
        return nullcontext()
    return first_token_alone(block)


def _dropped_embeddings(
    runner: ModelRunner, rows: list[Variant], token_mask: Tensor
) -> AbstractContextManager[None]:
    """Set entries of embeddings to zero inside the block, as the ``embedding_dropout`` of each row says."""
    if all(row.embedding_dropout is None for row in rows):
        return nullcontext()
    embedding_hooks = find_embedding_hooks(runner, rows[0].row, "embeddings")
    source_length = get_shared_source_length(rows)
    zero_masks: list[Tensor] = []  # one per hook point, drawn when the hidden size is known

    def drop(hook_index: int, embeddings: Tensor) -> Tensor:
        if not zero_masks:
            is_zero = _draw_zeros(rows, (*token_mask.shape, embeddings.shape[2]))
            token_zeros = to_device(is_zero, token_mask.device)
            position_zeros = embedding_hooks.spread_to_positions(token_zeros, token_mask)
            zero_masks.extend(embedding_hooks.split_by_hook(position_zeros, source_length))
        return embeddings.masked_fill(zero_masks[hook_index].to(embeddings.device), 0.0)

    return embedding_hooks.hooked_embeddings(runner.model, token_mask.shape[1], source_length, drop)


def _draw_zeros(rows: list[Variant], shape: tuple[int, int, int]) -> np.ndarray:
    """Return ``batch token hidden``, true where an entry of an embedding becomes zero."""
    is_zero = np.zeros(shape, dtype=bool)
    for index, row in enumerate(rows):
        if row.embedding_dropout is not None:
            is_zero[index, : len(row)] = row.embedding_dropout.draw_zeros(shape[2])
    return is_zero
