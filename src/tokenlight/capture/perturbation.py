"""Texts with tokens taken away, and the engine that sends them through the model: a stream of changed
texts in, logits out, in order. Every metric and every perturbation method goes through it.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.entrance import entrance_of
from tokenlight.capture.live import LiveModel, source_of
from tokenlight.capture.packing import kind_of, packs
from tokenlight.capture.transfer import sent
from tokenlight.capture.turns import pause
from tokenlight.data.image import HIDDEN
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, TextTooLong

# Sequences that are looked at together: sorted, freed of duplicates, packed.
WINDOW = {"cpu": 1024, "cuda": 16384}
LOGITS = 1 << 25  # that a window may hold: a vocabulary is wide
# A GPU works on by itself: while it does, the next window is made ready.
AHEAD = {"cpu": 0, "cuda": 1}
# No graph is held, so a batch may be wider than one of an explanation. On a CPU wider batches are
# no faster, since their activations leave the cache.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}
Packs = list[tuple[list[int], Tensor]]  # which rows, and their logits, not yet fetched


@dataclass(frozen=True, slots=True, eq=False)
class Fading:
    """Every number of a token's embedding stays with the token's probability ``kept`` (``token``) and is
    zero else, drawn by ``seed`` alone: the same in any batch, on any device."""

    kept: np.ndarray
    seed: int

    def gone(self, hidden: int) -> np.ndarray:
        """``token hidden``: true where a number becomes zero."""
        drawn = np.random.default_rng(self.seed).random((len(self.kept), hidden), dtype=np.float32)
        found: np.ndarray = drawn >= self.kept[:, None]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One changed text, as the model will read it; every array has one entry a token. ``row``: the text
    that was changed; ``places``: where the tokens stood in it, None where none has moved."""

    row: TokenRow
    ids: np.ndarray
    attention: np.ndarray
    token_types: np.ndarray | None
    at: int | None  # the token whose output is asked for; None: the last
    asked: tuple[int, ...]  # or the tokens whose labels are foretold together
    source: int | None  # how many of the tokens an encoder reads
    places: np.ndarray | None = None
    fading: Fading | None = None  # what is left of the embeddings

    # What no change of tokens changes.
    anchor, image, answer = (
        property(attrgetter(f"row.{n}")) for n in ("anchor", "image", "answer")
    )

    @classmethod
    def of(cls, row: TokenRow) -> "Variant":
        """A text as it is, its attention too."""
        types = None if row.token_types is None else np.array(row.token_types, dtype=np.int8)
        ids, attention = np.array(row.ids, dtype=np.int32), np.array(row.attention, dtype=np.int8)
        return cls(row, ids, attention, types, row.at, row.asked, row.source)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def key(self) -> Hashable:
        """Equal for texts that the model cannot tell apart."""
        arrays = (self.ids, self.attention, self.token_types)
        tokens = [None if array is None else array.tobytes() for array in arrays]
        image = None if self.image is None else self.image.digest
        fading = None if self.fading is None else (self.fading.seed, self.fading.kept.tobytes())
        asked = self.at, self.anchor, self.source, self.answer, self.asked
        return *tokens, *asked, image, fading

    def place_of(self, position: int) -> int | None:
        """Where the original's token ``position`` stands now; None where it is gone."""
        if self.places is None:
            return position
        found = np.flatnonzero(self.places == position)
        return int(found[0]) if len(found) else None


@dataclass(frozen=True, slots=True)
class StandIns:
    """The ids that replace tokens. A model without [PAD] or [MASK] has one id for both."""

    pad: int
    mask: int

    @classmethod
    def of(cls, live: LiveModel, tokenizer: Any = None) -> "StandIns":
        """[PAD] and [MASK]; the pad id, the unknown token or the end of text for one that is missing."""
        if live.head.reads == "image":
            return cls(HIDDEN, HIDDEN)
        config = live.model.config.get_text_config()

        def known(name: str) -> int | None:
            own = getattr(tokenizer, f"{name}_token_id", None)
            found = own if own is not None else getattr(config, f"{name}_token_id", None)
            found = found[0] if isinstance(found, list) else found
            return found if found is not None and 0 <= found < live.vocabulary else None

        pad = next((i for i in map(known, ("pad", "unk", "eos")) if i is not None), None)
        if pad is None:
            raise BadInput(
                f"{type(live.model).__name__} names no padding, unknown or end token, so there is "
                "nothing to put in a token's place; set model.config.pad_token_id."
            )
        mask = known("mask")
        return cls(pad, pad if mask is None else mask)


class Original:
    """One text, and the texts made from it by taking tokens away. Attention is 1 at special tokens even
    where the explanation pass masked them (``explain_mask``): the official codes predict without a mask. A
    text that loses all its tokens becomes the one token ``pad``."""

    def __init__(self, row: TokenRow, stand_ins: StandIns) -> None:
        self.row = row
        self.stand_ins = stand_ins
        special = np.array(row.special, dtype=bool)
        own = Variant.of(row)
        self._whole = replace(own, attention=own.attention | special.astype(np.int8))
        # Structural special tokens are never ranked; [UNK] is a token of the text. Nor is the token
        # that the head is asked about, nor what was written: without it there would be no question.
        ranked = ~special
        ranked[row.needed] = False
        self.rankable: np.ndarray = np.flatnonzero(ranked)

    def __len__(self) -> int:
        return len(self.row)

    def unchanged(self) -> Variant:
        """The text as it is."""
        return self._whole

    def without(self, positions: Sequence[int] | np.ndarray) -> Variant:
        """Delete tokens: those behind them move up."""
        if self.row.image is not None:
            raise BadInput(
                "a patch cannot be deleted: the picture would lose its grid. Hide it instead: give "
                "perturb='mask', which shows the picture's filling in its place."
            )
        whole = self._whole
        keep = np.ones(len(self), dtype=bool)
        keep[_places(positions)] = False
        places = np.flatnonzero(keep)
        source = None if whole.source is None else int(keep[: whole.source].sum())
        emptied = not len(places) or source == 0
        if emptied:  # [PAD] stands in the place of a text or of a source; what was written stays
            places, source = np.concatenate(([-1], places)), None if source is None else 1
        for own in [] if emptied else [*whole.asked, *([] if whole.at is None else [whole.at])]:
            if not keep[own]:
                raise BadInput(f"token {own} is the one that is asked about; it cannot be deleted.")

        def left(values: np.ndarray, first: int) -> np.ndarray:
            found = values[places]
            if emptied:
                found[0] = first
            return found

        return replace(
            whole,
            ids=left(whole.ids, self.stand_ins.pad),
            attention=left(whole.attention, 1),
            token_types=None if whole.token_types is None else left(whole.token_types, 0),
            places=places,
            at=None if whole.at is None or emptied else int(np.searchsorted(places, whole.at)),
            asked=tuple(map(int, np.searchsorted(places, whole.asked))),
            source=source,
        )

    def replaced(self, positions: Sequence[int] | np.ndarray, by: int | None = None) -> Variant:
        """Put the id ``by`` (default: [PAD]) in the place of tokens; it is attended to like them."""
        ids = self._whole.ids.copy()
        ids[_places(positions)] = self.stand_ins.pad if by is None else by
        return replace(self._whole, ids=ids)

    def hidden(self, positions: Sequence[int] | np.ndarray, by: int | None = None) -> Variant:
        """Put the id ``by`` (default: [MASK]) in the place of tokens and attention 0 on it; where no token
        would be left to attend to, all stay attended: a softmax over nothing is no model's input."""
        if self.row.image is not None:
            return self.replaced(positions, by)  # what is filled in hides a patch by itself
        variant = self.replaced(positions, self.stand_ins.mask if by is None else by)
        attention = variant.attention.copy()
        attention[_places(positions)] = 0
        parts = np.split(attention, [self.row.source or 0])
        unread = any(len(part) and not part.any() for part in parts)
        return variant if unread else replace(variant, attention=attention)

    def faded(self, kept: np.ndarray, seed: int) -> Variant:
        """Each number of the embedding of token i stays with probability ``kept[i]``."""
        return replace(self._whole, fading=Fading(kept.astype(np.float32), seed))

    def taken(self, positions: Sequence[int] | np.ndarray) -> Variant:
        """Take tokens away as fits the input: deleted from a text, hidden in a picture."""
        return self.without(positions) if self.row.image is None else self.replaced(positions)


def _places(positions: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(positions, dtype=np.int64)  # an empty list would be an array of floats


def stream_logits(
    live: LiveModel, sequences: Iterable[TokenRow | Variant], *, batch_tokens: int | None = None
) -> Iterator[np.ndarray]:
    """The logits of each sequence, in order: ``label`` of a classifier, ``token 2`` of a span head.

    Memory is bounded: a window of sequences at a time is freed of duplicates, sorted by length, packed by
    ``batch_tokens`` and run with the model's own attention and no graph; out of memory halves the batch
    and goes on. Logits that are not finite are handed on, for the caller knows what they mean.
    """
    waiting = (one if isinstance(one, Variant) else Variant.of(one) for one in sequences)
    device = live.device.type if live.device.type in WINDOW else "cpu"
    budget = batch_tokens or live.batch_tokens or BATCH_TOKENS[device]
    room = min(WINDOW[device], max(16, LOGITS // max(1, len(live.head.labels))))
    launched: deque[Iterator[np.ndarray]] = deque()
    while window := list(islice(waiting, room)):
        keys = [variant.key for variant in window]
        unique = dict(zip(keys, window, strict=True))
        passes, budget = _launched(live, [*unique.values()], budget)
        launched.append(_answers(keys, unique, passes))
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


def _launched(live: LiveModel, rows: list[Variant], budget: int) -> tuple[Packs, int]:
    """Rows without duplicates, through the model; and the token budget that its memory has allowed."""
    ids = np.concatenate([row.ids for row in rows])
    longest = max(max(row.source or 0, len(row) - (row.source or 0)) for row in rows)
    if live.max_tokens is not None and longest > live.max_tokens:
        most = f"this model reads at most {live.max_tokens}"
        raise TextTooLong(f"a changed text has {longest} tokens but {most}.")
    live.check_ids(int(ids.min()), int(ids.max()))
    live.verify(replace(rows[0].row, asked=()), maps=False)  # is it proof against padding?
    lengths, kinds = [len(row) for row in rows], [kind_of(row) for row in rows]
    # Without any id to pad with, each row goes alone: it needs none.
    alone = live.patches is None and live.filler(rows) is None

    def packed(chosen: Sequence[int]) -> deque[list[int]]:
        found = packs(
            [lengths[i] for i in chosen],
            budget,
            padding_proof=live.padding_proof,
            most=1 if alone else live.batch_size,
            kinds=[kinds[i] for i in chosen],
        )
        return deque([chosen[i] for i in group] for group in found)

    waiting, done = packed(range(len(rows))), Packs()
    while waiting:
        pack = waiting.popleft()
        try:
            chosen = [rows[i] for i in pack]
            given = live.inputs(chosen)
            _, logits = live.run(given, _fading(live, chosen, given[1]))
        except RuntimeError as error:
            full = isinstance(error, torch.OutOfMemoryError)
            if len(pack) == 1 or not (full or "can't allocate memory" in str(error)):
                raise
        else:
            done.append((pack, logits))
            pause()
            continue
        # Outside the except block, so that the failed pass's tensors are already let go.
        budget = max(1, lengths[pack[0]] * len(pack) // 2)
        if live.device.type == "cuda":
            torch.cuda.empty_cache()
        waiting = packed([*pack, *(i for p in waiting for i in p)])
    return done, budget


def _fading(live: LiveModel, rows: list[Variant], real: Tensor) -> AbstractContextManager[None]:
    """Within: of what passes the entrance, random numbers are zero, as each of ``rows`` says."""
    if all(row.fading is None for row in rows):
        return nullcontext()
    entrance, source = entrance_of(live, rows[0].row, "hidden"), source_of(rows)
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

    return entrance.open(live.model, real.shape[1], source, fade)
