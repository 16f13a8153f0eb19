"""The perturbation engine: a stream of changed texts in, the model's logits out, in order.

Every metric and every perturbation method goes through :func:`stream_logits`; the changed texts come
from :class:`Original`.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.entrance_search import entrance_of
from tokenlight.capture.live import LiveModel, source_of
from tokenlight.capture.packing import kind_of, packs
from tokenlight.capture.transfer import sent
from tokenlight.capture.turns import pause
from tokenlight.capture.variants import Original, StandIns, Variant
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import TextTooLong

__all__ = ["Original", "StandIns", "Variant", "stream_logits"]

# Sequences that are looked at together: sorted, freed of duplicates, packed.
WINDOW = {"cpu": 1024, "cuda": 16384}
LOGITS = 1 << 25  # that a window may hold: a vocabulary is wide
# A GPU works on by itself: while it does, the next window is made ready.
AHEAD = {"cpu": 0, "cuda": 1}
# No graph is held, so a batch may be wider than one of an explanation. On a CPU wider batches are
# no faster, since their activations leave the cache.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}
Packs = list[tuple[list[int], Tensor]]  # which rows, and their logits, not yet fetched


def stream_logits(
    live: LiveModel,
    sequences: Iterable[TokenRow | Variant],
    *,
    batch_tokens: int | None = None,
) -> Iterator[np.ndarray]:
    """The logits of each sequence, in order: ``label`` of a classifier, ``token 2`` of a span head.

    Memory is bounded: a window of sequences at a time is freed of duplicates (same ids, attention
    and segment ids), sorted by length, packed by ``batch_tokens`` and run with the model's own
    attention and no graph; out of memory halves the batch and goes on. Logits that are not finite
    are handed on as they are, for the caller knows what they mean.
    """
    waiting = (one if isinstance(one, Variant) else Variant.of(one) for one in sequences)
    device = live.device.type if live.device.type in WINDOW else "cpu"
    engine = _Engine(live, batch_tokens or live.batch_tokens or BATCH_TOKENS[device])
    room = min(WINDOW[device], max(16, LOGITS // max(1, len(live.head.labels))))
    launched: deque[Iterator[np.ndarray]] = deque()
    while window := list(islice(waiting, room)):
        keys = [variant.key for variant in window]
        unique: dict[Hashable, Variant] = {}
        for key, variant in zip(keys, window, strict=True):
            unique.setdefault(key, variant)
        launched.append(_answers(keys, unique, engine.launched([*unique.values()])))
        if len(launched) > AHEAD[device]:
            yield from launched.popleft()
    while launched:
        yield from launched.popleft()


def _answers(
    keys: list[Hashable], unique: dict[Hashable, Variant], packs: Packs
) -> Iterator[np.ndarray]:
    """The logits of the text of each key, in order; here the device is waited for."""
    texts, found = list(unique.items()), {}
    for pack, logits in packs:
        for i, values in zip(pack, logits.cpu().double().numpy(), strict=True):
            key, variant = texts[i]
            found[key] = values[: len(variant)] if values.ndim == 2 else values
    yield from (found[key] for key in keys)


class _Engine:
    """One model and the token budget that its memory has allowed so far."""

    def __init__(self, live: LiveModel, budget: int) -> None:
        self.live, self.budget = live, budget

    def launched(self, rows: list[Variant]) -> Packs:
        """Rows without duplicates, through the model."""
        live, ids = self.live, np.concatenate([row.ids for row in rows])
        longest = max(max(row.source or 0, len(row) - (row.source or 0)) for row in rows)
        if live.max_tokens is not None and longest > live.max_tokens:
            raise TextTooLong(
                f"a changed text has {longest} tokens but this model reads at most {live.max_tokens}."
            )
        live.check_ids(int(ids.min()), int(ids.max()))
        live.verify(_row(rows[0]), maps=False)  # is it proof against padding?
        lengths, everything = [len(row) for row in rows], list(range(len(rows)))
        # Without any id to pad with, each row goes alone: it needs none.
        alone = live.patches is None and live.filler(rows) is None
        kinds = [kind_of(row) for row in rows]

        def packed(chosen: list[int]) -> deque[list[int]]:
            found = packs(
                [lengths[i] for i in chosen],
                self.budget,
                padding_proof=live.padding_proof,
                most=live.batch_size,
                kinds=[kinds[i] for i in chosen],
            )
            return deque([chosen[i] for i in group] for group in found)

        waiting = deque([i] for i in everything) if alone else packed(everything)
        done = Packs()
        while waiting:
            pack = waiting.popleft()
            try:
                chosen = [rows[i] for i in pack]
                given = live.inputs(chosen)
                _, logits = live.run(given, self._fading(chosen, given[1]))
            except RuntimeError as error:
                full = isinstance(error, torch.OutOfMemoryError)
                if len(pack) == 1 or not (full or "can't allocate memory" in str(error)):
                    raise
                self.budget = max(1, lengths[pack[0]] * len(pack) // 2)
            else:
                done.append((pack, logits))
                pause()
                continue
            # Outside the except block, so that the failed pass's tensors are already let go.
            if live.device.type == "cuda":
                torch.cuda.empty_cache()
            waiting = packed([*pack, *(i for p in waiting for i in p)])
        return done

    def _fading(self, rows: list[Variant], real: Tensor) -> AbstractContextManager[None]:
        """Within: of what passes the entrance, random numbers are zero, as each of ``rows`` says."""
        if all(row.fading is None for row in rows):
            return nullcontext()
        entrance, source = entrance_of(self.live, _row(rows[0]), "hidden"), source_of(rows)
        pieces: list[Tensor] = []

        def fade(door: int, own: Tensor) -> Tensor:
            if not pieces:
                gone = np.zeros((*real.shape, own.shape[2]), dtype=bool)
                for number, row in enumerate(rows):
                    if row.fading is not None:
                        gone[number, : len(row)] = row.fading.gone(own.shape[2])
                places = entrance.spread(sent(gone, real.device), real)
                pieces.extend(entrance.split(places, source))
            return own.masked_fill(pieces[door].to(own.device), 0.0)

        return entrance.open(self.live.model, real.shape[1], source, fade)


def _row(variant: Variant) -> TokenRow:
    types = None if variant.token_types is None else variant.token_types[None]
    row = Tokens.from_ids(variant.ids[None], variant.attention[None], types).rows[0]
    return replace(
        row, at=variant.at, anchor=variant.anchor, image=variant.image, source=variant.source
    )
