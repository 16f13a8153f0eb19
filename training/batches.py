"""Endless seeded batches of each task, packed by length."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.masking import MaskedTokens, mask_ordinary_tokens

BATCHES_PER_CHUNK = 40
WIDTH_MULTIPLE = 8
# Ids in the pruned vocabulary, which begins with vocabulary.SPECIAL_PIECES.
CLS_ID = 2
SEP_ID = 3
MASK_ID = 4
FIRST_ORDINARY_ID = 5

Arrays = dict[str, np.ndarray]
Batch = dict[str, Tensor]


def pad_rows(flat: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gather rows of unequal length into one matrix, padded with zeros.

    Args:
        flat: All rows laid end to end.
        ends: Where each row ends in ``flat``.
        rows: Indices of the rows to gather.

    Returns:
        Ids, ``batch token``, and the length of each row.
    """
    starts = np.where(rows > 0, ends[rows - 1], 0)
    lengths = ends[rows] - starts
    width = -(-int(lengths.max()) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    positions = np.arange(width)
    is_token = positions < lengths[:, None]  # batch token
    indices = np.minimum(starts[:, None] + positions, len(flat) - 1)
    return np.where(is_token, flat[indices], 0).astype(np.int64), lengths


def build_inputs(ids: np.ndarray, lengths: np.ndarray, second_starts: np.ndarray | None) -> Batch:
    """Build what a BERT model takes from padded ids.

    Args:
        ids: Padded ids, ``batch token``.
        lengths: Length of each row.
        second_starts: Where the second segment of each row begins; None gives no segments.

    Returns:
        ``input_ids``, ``attention_mask`` and, with segments, ``token_type_ids``.
    """
    positions = np.arange(ids.shape[1])
    is_token = positions < lengths[:, None]  # batch token
    inputs = {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(is_token.astype(np.int64)),
    }
    if second_starts is not None:
        is_second = (positions >= second_starts[:, None]) & is_token
        inputs["token_type_ids"] = torch.from_numpy(is_second.astype(np.int64))
    return inputs


def add_reviews(arrays: Arrays) -> Arrays:
    """Add the labeled reviews to the training rows of the sentiment task."""
    merged = dict(arrays)
    merged["sentiment_train_label"] = np.concatenate(
        [arrays["sentiment_train_label"], arrays["reviews_label"]]
    )
    for spelling in ("raw", "respelled"):
        ids_name = f"sentiment_train_{spelling}_ids"
        ends_name = f"sentiment_train_{spelling}_ends"
        num_sentiment_ids = len(arrays[ids_name])
        review_ids = arrays[f"reviews_{spelling}_ids"]
        review_ends = arrays[f"reviews_{spelling}_ends"] + num_sentiment_ids
        merged[ids_name] = np.concatenate([arrays[ids_name], review_ids])
        merged[ends_name] = np.concatenate([arrays[ends_name], review_ends])
    return merged


def iter_row_batches(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the row numbers of one epoch in batches of similar length, in random order."""
    order = generator.permutation(len(lengths))
    chunk_size = batch_size * BATCHES_PER_CHUNK
    for chunk_start in range(0, len(order) - batch_size + 1, chunk_size):
        chunk = order[chunk_start : chunk_start + chunk_size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches = []
        for start in range(0, len(chunk), batch_size):
            batches.append(chunk[start : start + batch_size])
        for index in generator.permutation(len(batches)):
            yield batches[index]


def build_classification_batch(
    arrays: Arrays, prefix: str, rows: np.ndarray, spelling: str
) -> Batch:
    """Build a batch of labeled texts in one spelling (``raw`` or ``respelled``)."""
    ids, lengths = pad_rows(
        arrays[f"{prefix}_{spelling}_ids"], arrays[f"{prefix}_{spelling}_ends"], rows
    )
    labels = torch.from_numpy(arrays[f"{prefix}_label"][rows])
    return build_inputs(ids, lengths, None) | {"labels": labels}


def build_question_batch(arrays: Arrays, prefix: str, rows: np.ndarray) -> Batch:
    """Build a batch of windows with the first and the last token of their answers."""
    ids, lengths = pad_rows(arrays[f"{prefix}_ids"], arrays[f"{prefix}_ends"], rows)
    inputs = build_inputs(ids, lengths, arrays[f"{prefix}_context"][rows])
    answers = torch.from_numpy(arrays[f"{prefix}_answer"][rows])
    return inputs | {"start_positions": answers[:, 0], "end_positions": answers[:, 1]}


def iter_task_batches(arrays: Arrays, task: str, batch_size: int, seed: int) -> Iterator[Batch]:
    """Yield training batches of a supervised task, epoch after epoch."""
    generator = np.random.default_rng(seed)
    prefix = f"{task}_train"
    ends_name = f"{prefix}_ends" if task == "qa" else f"{prefix}_raw_ends"
    lengths = np.diff(arrays[ends_name], prepend=0)
    while True:
        for rows in iter_row_batches(lengths, batch_size, generator):
            if task == "qa":
                yield build_question_batch(arrays, prefix, rows)
            else:
                spelling = "raw" if generator.random() < 0.5 else "respelled"
                yield build_classification_batch(arrays, prefix, rows, spelling)


def read_token_stream(path: Path) -> Tensor:
    """Read the token ids of running text that ``prepare`` wrote."""
    ids = np.frombuffer(lzma.decompress(path.read_bytes()), dtype="<u2")
    return torch.from_numpy(ids.astype(np.int32))


def cut_blocks(
    stream: Tensor, width: int, offset: int, *, cls_id: int = CLS_ID, sep_id: int = SEP_ID
) -> Tensor:
    """Cut a stream of token ids into ``[CLS] … [SEP]`` blocks.

    Args:
        stream: Token ids of running text.
        width: Tokens of a block, with [CLS] and [SEP].
        offset: Where the first block begins.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].

    Returns:
        Blocks, ``batch token``; what does not fill a block is left out.
    """
    inner_width = width - 2
    num_blocks = (len(stream) - offset) // inner_width
    inner = stream[offset : offset + num_blocks * inner_width].view(num_blocks, inner_width)
    cls_column = inner.new_full((num_blocks, 1), cls_id)
    sep_column = inner.new_full((num_blocks, 1), sep_id)
    return torch.cat([cls_column, inner, sep_column], dim=1)


def iter_shuffled_blocks(
    stream: Tensor,
    width: int,
    batch_size: int,
    generator: torch.Generator,
    *,
    cls_id: int = CLS_ID,
    sep_id: int = SEP_ID,
) -> Iterator[Tensor]:
    """Yield batches of blocks in random order without end; every epoch cuts at another offset."""
    while True:
        offset = int(torch.randint(width, (1,), generator=generator, device=stream.device))
        blocks = cut_blocks(stream, width, offset, cls_id=cls_id, sep_id=sep_id)
        order = torch.randperm(len(blocks), generator=generator, device=stream.device)
        for start in range(0, max(1, len(blocks) - batch_size + 1), batch_size):
            yield blocks[order[start : start + batch_size]].long()


def iter_block_batches(
    stream: Tensor, batch_size: int, widths: tuple[int, ...], generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield batches of blocks of each width in turn, so that short texts are seen too.

    Args:
        stream: Token ids of running text.
        batch_size: Blocks of the largest width; batches of narrower blocks have equally many tokens.
        widths: Tokens of a block.
        generator: Source of the random choices, on the device of the stream.

    Yields:
        Blocks, ``batch token``.
    """
    tokens_per_batch = batch_size * max(widths)
    sources = []
    for width in widths:
        num_blocks = tokens_per_batch // width
        sources.append(iter_shuffled_blocks(stream, width, num_blocks, generator))
    while True:
        for source in sources:
            yield next(source)


def mask_tokens(
    ids: Tensor, share: float, vocabulary_size: int, generator: torch.Generator
) -> MaskedTokens:
    """Mask tokens of the pruned vocabulary; see :func:`training.masking.mask_ordinary_tokens`."""
    return mask_ordinary_tokens(
        ids,
        share,
        vocabulary_size,
        generator,
        mask_id=MASK_ID,
        first_ordinary_id=FIRST_ORDINARY_ID,
    )
