"""Endless seeded batches of each task, packed by length."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

CHUNK_OF_BATCHES = 40
MULTIPLE = 8
FIRST = 2
SEPARATOR = 3
MASK = 4
FIRST_PLAIN = 5

Arrays = dict[str, np.ndarray]
Batch = dict[str, torch.Tensor]


def padded(flat: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chosen sequences as one matrix padded with zeros, and their lengths."""
    starts = np.where(rows > 0, ends[rows - 1], 0)
    lengths = ends[rows] - starts
    width = -(-int(lengths.max()) // MULTIPLE) * MULTIPLE
    positions = np.arange(width)
    inside = positions < lengths[:, None]  # batch token
    places = np.minimum(starts[:, None] + positions, len(flat) - 1)
    return np.where(inside, flat[places], 0).astype(np.int64), lengths


def with_reviews(arrays: Arrays) -> Arrays:
    """The arrays with the labeled reviews added to the training rows of sentiment."""
    merged = dict(arrays)
    first = "sentiment_train"
    second = "reviews"
    merged[f"{first}_label"] = np.concatenate([arrays[f"{first}_label"], arrays[f"{second}_label"]])
    for spelling in ("raw", "respelled"):
        flat = f"{first}_{spelling}_ids"
        ends = f"{first}_{spelling}_ends"
        shift = len(arrays[flat])
        more_flat = arrays[f"{second}_{spelling}_ids"]
        more_ends = arrays[f"{second}_{spelling}_ends"]
        merged[flat] = np.concatenate([arrays[flat], more_flat])
        merged[ends] = np.concatenate([arrays[ends], more_ends + shift])
    return merged


def row_order(lengths: np.ndarray, size: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """One epoch of row numbers in batches of like length, in random order."""
    order = random.permutation(len(lengths))
    for start in range(0, len(order) - size + 1, size * CHUNK_OF_BATCHES):
        chunk = order[start : start + size * CHUNK_OF_BATCHES]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        pieces = [chunk[place : place + size] for place in range(0, len(chunk), size)]
        for index in random.permutation(len(pieces)):
            yield pieces[index]


def classification(arrays: Arrays, prefix: str, rows: np.ndarray, spelling: str) -> Batch:
    """One batch of labeled texts in the given spelling (``raw`` or ``respelled``)."""
    ids, lengths = padded(
        arrays[f"{prefix}_{spelling}_ids"], arrays[f"{prefix}_{spelling}_ends"], rows
    )
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(
            (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        ),
        "labels": torch.from_numpy(arrays[f"{prefix}_label"][rows]),
    }


def questions(arrays: Arrays, prefix: str, rows: np.ndarray) -> Batch:
    """One batch of windows with the first and last answer token."""
    ids, lengths = padded(arrays[f"{prefix}_ids"], arrays[f"{prefix}_ends"], rows)
    positions = np.arange(ids.shape[1])
    context = arrays[f"{prefix}_context"][rows][:, None]
    inside = positions < lengths[:, None]
    answers = torch.from_numpy(arrays[f"{prefix}_answer"][rows])
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(inside.astype(np.int64)),
        "token_type_ids": torch.from_numpy(((positions >= context) & inside).astype(np.int64)),
        "start_positions": answers[:, 0],
        "end_positions": answers[:, 1],
    }


def endless(arrays: Arrays, task: str, size: int, seed: int) -> Iterator[Batch]:
    """Training batches of a supervised task, epoch after epoch."""
    random = np.random.default_rng(seed)
    prefix = f"{task}_train"
    ends = arrays[f"{prefix}_ends" if task == "qa" else f"{prefix}_raw_ends"]
    lengths = np.diff(ends, prepend=0)
    while True:
        for rows in row_order(lengths, size, random):
            if task == "qa":
                yield questions(arrays, prefix, rows)
            else:
                spelling = "raw" if random.random() < 0.5 else "respelled"
                yield classification(arrays, prefix, rows, spelling)


def read_stream(path: Path) -> torch.Tensor:
    """The piece ids of running text that ``prepare`` wrote."""
    raw = np.frombuffer(lzma.decompress(path.read_bytes()), dtype="<u2")
    return torch.from_numpy(raw.astype(np.int32))


def blocks(stream: torch.Tensor, width: int, offset: int) -> torch.Tensor:
    """The stream from ``offset`` cut into ``[CLS] … [SEP]`` blocks, ``batch token``."""
    inner = width - 2
    count = (len(stream) - offset) // inner
    body = stream[offset : offset + count * inner].view(count, inner)
    edge = body.new_full((count, 1), FIRST)
    return torch.cat([edge, body, torch.full_like(edge, SEPARATOR)], dim=1)


def endless_blocks(
    stream: torch.Tensor, size: int, widths: tuple[int, ...], generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Blocks for masking: each epoch cuts at another offset; the token count per batch is fixed.

    Several ``widths`` are taken in turn, so that short texts are seen too.
    """
    tokens = size * max(widths)
    sources = [_shuffled(stream, width, tokens // width, generator) for width in widths]
    while True:
        for source in sources:
            yield next(source)


def _shuffled(
    stream: torch.Tensor, width: int, size: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    while True:
        offset = int(torch.randint(0, width, (1,), generator=generator, device=stream.device))
        cut = blocks(stream, width, offset)
        order = torch.randperm(len(cut), generator=generator, device=stream.device)
        for start in range(0, max(1, len(cut) - size + 1), size):
            yield cut[order[start : start + size]].long()


def mask(
    ids: torch.Tensor, share: float, vocabulary_size: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BERT's masking: of the chosen share 80 % become [MASK], 10 % a random piece, 10 % stay.

    Special and unknown pieces are never chosen. Gives masked ids, chosen places in the flattened
    batch and the pieces to be found there.
    """
    draw = torch.rand(ids.shape, generator=generator, device=ids.device)
    chosen = (draw < share) & (ids >= FIRST_PLAIN)
    masked = torch.where(chosen & (draw < 0.8 * share), MASK, ids)
    anything = torch.randint(
        FIRST_PLAIN, vocabulary_size, ids.shape, generator=generator, device=ids.device
    )
    masked = torch.where(chosen & (draw >= 0.9 * share), anything, masked)
    places = chosen.flatten().nonzero().squeeze(1)
    return masked, places, ids.flatten()[places]
