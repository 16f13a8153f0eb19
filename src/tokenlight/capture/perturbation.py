"""The perturbation engine: a stream of changed texts in, the model's logits out, in order.

Every metric and every perturbation method goes through :func:`stream_logits`; the changed texts come
from :class:`Original`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.live import LiveModel
from tokenlight.capture.packing import packs
from tokenlight.capture.rewired import rewired
from tokenlight.capture.variants import Original, StandIns, Variant
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.progress import Advance
from tokenlight.progress import progress as progress_bar
from tokenlight.tokens import TokenRow, Tokens

__all__ = ["Original", "Readable", "StandIns", "Variant", "stream_logits"]

# Sequences that are looked at together: sorted, freed of duplicates, packed. What an interrupt loses.
WINDOW = {"cpu": 1024, "cuda": 16384}
# No graph is held, so a batch may be wider than one of an explanation. On a CPU wider batches are
# no faster, since their activations leave the cache.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}


class Readable(Protocol):
    """What the engine reads: a TokenRow or a Variant."""

    @property
    def ids(self) -> Sequence[int] | np.ndarray: ...
    @property
    def attention(self) -> Sequence[int] | np.ndarray: ...
    @property
    def token_types(self) -> Sequence[int] | np.ndarray | None: ...


def stream_logits(
    live: LiveModel,
    sequences: Iterable[Readable],
    *,
    batch_tokens: int | None = None,
    total: int | None = None,
    what: str = "perturbing",
    progress: bool | None = None,
) -> Iterator[np.ndarray]:
    """The logits of each sequence, in order: ``label`` of a classifier, ``token 2`` of a span head.

    Memory is bounded: a window of sequences at a time is freed of duplicates (same ids, attention
    and segment ids), sorted by length, packed by ``batch_tokens`` and run with the model's own
    attention and no graph; out of memory halves the batch and goes on. Logits that are not finite
    are handed on as they are, for the caller knows what they mean.
    """
    waiting = iter(sequences)
    device = live.device.type if live.device.type in WINDOW else "cpu"
    budget = BATCH_TOKENS[device] if batch_tokens is None else batch_tokens
    with progress_bar(what, total, progress) as advance:
        while window := list(islice(waiting, WINDOW[device])):
            unique: dict[bytes, int] = {}
            rows: list[Variant] = []
            order = np.empty(len(window), dtype=np.int64)
            for number, sequence in enumerate(window):
                row = _variant(sequence)
                key = _key(row)
                if key not in unique:
                    unique[key] = len(rows)
                    rows.append(row)
                order[number] = unique[key]
            _check(live, rows)
            live.verify(_row(rows[0]), maps=False)  # is it proof against padding?
            found, budget = _run(live, rows, budget, advance)
            advance(len(window) - len(rows))
            for position in order:
                yield found[position]


def _variant(sequence: Readable) -> Variant:
    if isinstance(sequence, Variant):
        return sequence
    types = sequence.token_types
    return Variant(
        np.asarray(sequence.ids, dtype=np.int32),
        np.asarray(sequence.attention, dtype=np.int8),
        None if types is None else np.asarray(types, dtype=np.int8),
    )


def _row(variant: Variant) -> TokenRow:
    types = None if variant.token_types is None else variant.token_types[None]
    return Tokens.from_ids(variant.ids[None], variant.attention[None], types).rows[0]


def _key(row: Variant) -> bytes:
    # The length first: else the bytes of a short row could read as those of a longer one.
    types = b"" if row.token_types is None else row.token_types.tobytes()
    return len(row).to_bytes(4, "little") + row.ids.tobytes() + row.attention.tobytes() + types


def _check(live: LiveModel, rows: Sequence[Variant]) -> None:
    longest = max(len(row) for row in rows)
    if live.max_tokens is not None and longest > live.max_tokens:
        raise TextTooLong(
            f"a changed text has {longest} tokens but this model reads at most {live.max_tokens}."
        )
    low, high = min(int(row.ids.min()) for row in rows), max(int(row.ids.max()) for row in rows)
    # On a GPU an id outside the vocabulary does not raise: it kills the process's device.
    if low < 0 or high >= live.vocabulary:
        raise BadInput(
            f"token ids run from {low} to {high}, but this model knows 0 to {live.vocabulary - 1}."
        )


def _run(
    live: LiveModel, rows: list[Variant], budget: int, advance: Advance
) -> tuple[list[np.ndarray], int]:
    """Logits of each row, and the budget that memory allowed."""
    filler = _filler(live, rows)
    lengths = [len(row) for row in rows]
    # Without any id to pad with, each row goes alone: it needs none.
    proof = live.padding_proof
    waiting = deque(
        packs(lengths, budget, padding_proof=proof)
        if filler is not None
        else [[i] for i in range(len(rows))]
    )
    done: list[tuple[list[int], Tensor]] = []
    with rewired(live.model, attention="own", gradients=False, filler=filler):
        while waiting:
            pack = waiting.popleft()
            try:
                logits = _forward(live, [rows[i] for i in pack], filler)
            except RuntimeError as error:
                if len(pack) == 1 or not _out_of_memory(error):
                    raise
                budget = max(1, lengths[pack[0]] * len(pack) // 2)
            else:
                done.append((pack, logits))
                advance(len(pack))
                continue
            # Outside the except block, so that the failed pass's tensors are already let go.
            if live.device.type == "cuda":
                torch.cuda.empty_cache()
            left = [*pack, *(i for later in waiting for i in later)]
            again = packs([lengths[i] for i in left], budget, padding_proof=proof)
            waiting = deque([left[i] for i in group] for group in again)
    return _in_order(done, lengths), budget


def _in_order(done: list[tuple[list[int], Tensor]], lengths: list[int]) -> list[np.ndarray]:
    found: list[np.ndarray] = [np.empty(0)] * len(lengths)
    for pack, logits in done:  # fetched last: a fetch in the loop would wait for the device
        values = logits.double().cpu().numpy()
        for i, row in zip(pack, values, strict=True):
            found[i] = row[: lengths[i]] if row.ndim == 2 else row
    return found


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _filler(live: LiveModel, rows: Sequence[Variant]) -> int | None:
    """The model's padding id; where it has none, an id that no row uses."""
    if live.pad_id is not None:
        return live.pad_id
    used = np.unique(np.concatenate([row.ids for row in rows]))
    free = np.setdiff1d(np.arange(min(live.vocabulary, len(used) + 1)), used)
    return int(free[0]) if len(free) else None


def _forward(live: LiveModel, rows: Sequence[Variant], filler: int | None) -> Tensor:
    width = max(len(row) for row in rows)

    def table(arrays: Sequence[np.ndarray], fill: int) -> Tensor:
        padded = np.full((len(arrays), width), fill, dtype=np.int64)
        for line, array in zip(padded, arrays, strict=True):
            line[: len(array)] = array
        return torch.from_numpy(padded).to(live.device)

    arguments = {
        "input_ids": table([row.ids for row in rows], 0 if filler is None else filler),
        "attention_mask": table([row.attention for row in rows], 0),
    }
    if "token_type_ids" in live.accepts and any(row.token_types is not None for row in rows):
        # A row without segment ids is all segment 0, whatever its neighbours in the batch have.
        none = np.zeros(0, dtype=np.int8)
        types = [none if row.token_types is None else row.token_types for row in rows]
        arguments["token_type_ids"] = table(types, 0)
    return live.logits_of(live.call(arguments))
