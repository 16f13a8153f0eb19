"""Texts with tokens taken away: deleted, replaced or hidden, and all that must stay in step."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenlight.capture.live import LiveModel
from tokenlight.data.image import HIDDEN, PatchImage
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput


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
    """One changed text, as the model will read it; every array has one entry a token.

    ``places[token]``: where the token stood in the original; None where no token has moved.
    """

    ids: np.ndarray
    attention: np.ndarray
    token_types: np.ndarray | None
    places: np.ndarray | None = None
    at: int | None = None  # the token whose output is asked for; None: the last
    anchor: tuple[float, ...] | None = None  # what the text's vector is compared with
    image: PatchImage | None = None  # the picture whose patches the tokens are
    source: int | None = None  # how many of the tokens an encoder reads
    answer: tuple[int, ...] = ()  # ids foretold together behind the last tokens
    fading: Fading | None = None  # what is left of the embeddings
    asked: tuple[int, ...] = ()  # or labels, at these tokens

    @classmethod
    def of(cls, row: TokenRow) -> "Variant":
        """A text as it is, its attention too."""
        types = None if row.token_types is None else np.array(row.token_types, dtype=np.int8)
        ids, attention = np.array(row.ids, dtype=np.int32), np.array(row.attention, dtype=np.int8)
        return cls(ids, attention, types, **asked_of(row))

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


def asked_of(row: TokenRow) -> dict[str, Any]:
    """What a row tells the model beside its tokens."""
    own = ("at", "anchor", "image", "source", "answer", "asked")
    return {name: getattr(row, name) for name in own}


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
    """One text, and the texts made from it by taking tokens away.

    Segment ids, attention and positions stay in step with the tokens that are left. Attention is 1
    at special tokens even where the explanation pass masked them (``explain_mask``): the official
    codes predict without a mask. A text that loses all its tokens becomes the one token ``pad``.
    """

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
        source = None if whole.source is None else int(keep[: whole.source].sum())
        if not keep.any() or source == 0:
            return self._emptied(np.flatnonzero(keep))
        for own in (*whole.asked, *([] if whole.at is None else [whole.at])):
            if not keep[own]:
                raise BadInput(f"token {own} is the one that is asked about; it cannot be deleted.")
        places = np.flatnonzero(keep)
        return replace(
            whole,
            ids=whole.ids[keep],
            attention=whole.attention[keep],
            token_types=None if whole.token_types is None else whole.token_types[keep],
            places=places,
            at=None if whole.at is None else int(np.searchsorted(places, whole.at)),
            asked=tuple(map(int, np.searchsorted(places, whole.asked))),
            source=source,
        )

    def _emptied(self, left: np.ndarray) -> Variant:
        """The token ``pad`` in the place of a text or of a source; what was written stays."""
        whole = self._whole
        ids = np.concatenate(([self.stand_ins.pad], whole.ids[left])).astype(np.int32)
        return replace(
            whole,
            ids=ids,
            attention=np.ones(len(ids), dtype=np.int8),
            token_types=None if whole.token_types is None else np.zeros(len(ids), dtype=np.int8),
            places=np.concatenate(([-1], left)),
            at=None,
            source=None if whole.source is None else 1,
        )

    def replaced(self, positions: Sequence[int] | np.ndarray, by: int | None = None) -> Variant:
        """Put the id ``by`` (default: [PAD]) in the place of tokens; it is attended to like them."""
        ids = self._whole.ids.copy()
        ids[_places(positions)] = self.stand_ins.pad if by is None else by
        return replace(self._whole, ids=ids)

    def hidden(self, positions: Sequence[int] | np.ndarray, by: int | None = None) -> Variant:
        """Put the id ``by`` (default: [MASK]) in the place of tokens and attention 0 on it.

        Where no token would be left to attend to, all of them stay attended, as the id ``by``: a
        softmax over nothing is no model's input.
        """
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
