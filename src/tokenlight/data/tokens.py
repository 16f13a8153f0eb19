"""Tokens: what the model reads, and where each piece stands in the text a person wrote."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from struct import pack
from typing import Any, Literal, Self

import numpy as np

from tokenlight.data.image import PatchImage
from tokenlight.errors import BadInput, way

Span = tuple[int, int]
ExplainMask = Literal["none", "cls_sep", "sep"]
Long = Literal["error", "truncate", "stride"]
PER_TOKEN = ("ids", "attention", "token_types", "pieces", "special", "spans", "segments", "words")


def is_half(text: str) -> bool:
    """Whether a text holds half of a surrogate pair, which is not a character and cannot be written."""
    return re.search("[\ud800-\udfff]", text) is not None


class Later:
    """Base of a frozen dataclass without slots. A batch makes thousands of such values, and most of
    their fields nobody reads; a field that may come later has no default in the class."""

    @classmethod
    def later(cls, fields: Callable[[], dict[str, Any]], **known: Any) -> Self:
        """With the fields that are ``known``, unchecked, and ``fields()`` once another is read."""
        found = object.__new__(cls)
        object.__setattr__(found, "_fields", fields)
        if known:
            found.__dict__.update(known)
        return found

    def __getattr__(self, name: str) -> Any:
        known = self._made()
        if name in known:
            return known[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        # A copy holds values, neither the batch they come from nor what is made of them.
        known, own = self._made(), type(self).__dataclass_fields__  # type: ignore[attr-defined]
        return {name: value for name, value in known.items() if name in own}

    def _made(self) -> dict[str, Any]:
        known = self.__dict__
        fields = known.get("_fields")
        if fields is not None:
            known.update(fields())  # before the way to them goes, for another thread's sake
            known.pop("_fields", None)
        return known


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, for models that answer with a span of the context."""

    question: str
    context: str


TextInput = str | tuple[str, str] | Question


@dataclass(frozen=True)
class TokenRow(Later):
    """One text as the model reads it, without padding; every field has one entry a token. ``spans`` are
    character spans in ``texts[segment]``; special tokens have no span, no segment and no word. ``words``
    counts words through the whole row and never joins two segments."""

    ids: tuple[int, ...]
    attention: tuple[int, ...]
    token_types: tuple[int, ...] | None
    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    spans: tuple[Span | None, ...]
    segments: tuple[int | None, ...]
    words: tuple[int | None, ...]
    texts: tuple[str, ...]
    cut: int = 0  # tokens that long="truncate" left out
    at: int | None = None  # the token whose output is explained, where a head has one for each
    names: tuple[str, ...] = ()  # what each of ``texts`` is, say the roles of a chat
    anchor: tuple[float, ...] | None = None  # the vector a sentence embedding is compared with
    image: PatchImage | None = None  # the picture whose patches the tokens are
    source: int | None = None  # how many tokens an encoder reads; a decoder reads those behind them
    answer: tuple[int, ...] = ()  # ids foretold together, the last of them behind the last token
    asked: tuple[int, ...] = ()  # or labels: the tokens that ``answer`` gives them to

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def array(self) -> np.ndarray:
        """``ids`` as an array that nobody can write into; numpy would take four times as long as struct."""
        return np.frombuffer(pack(f"{len(self)}q", *self.ids), dtype=np.int64)

    @cached_property
    def all_seen(self) -> bool:
        """Whether attention is 0 nowhere."""
        return 0 not in self.attention

    @classmethod
    def plain(cls, ids: Sequence[int], **known: Any) -> "TokenRow":
        """A row of ids, and what else is ``known``: all are seen, none special, each a word, no text."""
        n, none = len(ids), (None,) * len(ids)
        own = tuple(ids), (1,) * n, None, tuple(map(str, ids)), (False,) * n, none, none
        return replace(cls(*own, words=tuple(range(n)), texts=()), **known)

    @property
    def surface(self) -> tuple[str, ...]:
        """Each token as it was written, without blanks at its ends unless it is all blank; or its piece."""
        return tuple(
            (written := self.texts[segment][span[0] : span[1]]).strip() or written or piece
            if span is not None and segment is not None
            else piece
            for span, segment, piece in zip(self.spans, self.segments, self.pieces, strict=True)
        )

    def written(self, positions: Sequence[int], joint: str = "") -> str:
        """What tokens in a row stand for; where that is unknown, their pieces with ``joint`` between them."""
        span, segment = self.span(positions), self.segments[positions[0]]
        if span is None or segment is None:
            return joint.join(self.pieces[i] for i in positions)
        return self.texts[segment][span[0] : span[1]]

    def span(self, positions: Sequence[int]) -> Span | None:
        """Where tokens in a row stand in their text, from the first to the last."""
        first, last = self.spans[positions[0]], self.spans[positions[-1]]
        return None if first is None or last is None else (first[0], last[1])

    @property
    def needed(self) -> list[int]:
        """The tokens without which there would be no question: those asked about, or foretold."""
        foretold = range(len(self) - max(0, len(self.answer) - 1), len(self))
        own = [] if self.at is None else [self.at]
        return [*own, *(self.asked or foretold)]

    @property
    def fingerprint(self) -> str:
        """Tells two inputs apart: all pictures of one size have the same ids."""
        return repr(self.ids) + ("" if self.image is None else self.image.digest)

    def generator(self, seed: int, *numbers: int) -> np.random.Generator:
        """Random draws that belong to this text: the same alone, in any batch, on any machine;
        ``numbers`` part the draws of one text."""
        digest = hashlib.blake2b(self.fingerprint.encode(), digest_size=8).digest()
        return np.random.default_rng([seed, int.from_bytes(digest, "little"), *numbers])

    def masked(self, positions: Sequence[bool]) -> "TokenRow":
        """The same row with attention 0 at ``positions``; ids and places stay."""
        pairs = zip(positions, self.attention, strict=True)
        return replace(self, attention=tuple(0 if hide else seen for hide, seen in pairs))

    def take(self, positions: Sequence[int]) -> "TokenRow":
        """The tokens at ``positions`` as a row of its own."""
        kept, lists = list(positions), {name: getattr(self, name) for name in PER_TOKEN}
        taken: dict[str, Any] = {n: v and tuple(v[i] for i in kept) for n, v in lists.items()}
        if self.source is not None:
            taken["source"] = sum(i < self.source for i in kept)
        if self.asked:
            whole = {*self.asked} <= {*kept}
            taken["asked"] = tuple(kept.index(i) for i in self.asked) if whole else ()
            taken["answer"] = self.answer if whole else ()
        if self.image is not None and self.image.places:
            places = tuple(map(kept.index, self.image.places))
            same = places == self.image.places
            taken["image"] = self.image if same else replace(self.image, places=places)
        return replace(self, **taken, at=kept.index(self.at) if self.at in kept else None)

    def joined(self, behind: "TokenRow", **changed: Any) -> "TokenRow":
        """Both rows as one; what is no list of tokens or texts stays this one's, or is ``changed``."""
        names = ("ids", "attention", "pieces", "special", "spans", "texts")
        both = {name: getattr(self, name) + getattr(behind, name) for name in names}
        last = max((word for word in self.words if word is not None), default=-1)
        segments = (None if one is None else len(self.texts) + one for one in behind.segments)
        words = (None if one is None else last + 1 + one for one in behind.words)
        both |= {"segments": (*self.segments, *segments), "words": (*self.words, *words)}
        return replace(self, **both, **changed)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Several rows of tokens. ``explain`` takes it wherever it takes texts."""

    rows: tuple[TokenRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TokenRow]:
        return iter(self.rows)

    @classmethod
    def from_ids(cls, ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> "Tokens":
        """Rows from 2-D arrays of token ids, one row per text. The Explainer, which knows the padding
        id, drops padding; if neither model nor tokenizer has one, what the mask hides at the ends of
        a row is padding."""
        table = _table("ids", ids)
        given = np.ones_like(table) if attention_mask is None else attention_mask
        mask = _table("attention_mask", given, table.shape)
        if not np.isin(mask, (0, 1)).all():
            raise BadInput("attention_mask holds values other than 0 and 1; give a 0/1 mask.")
        kinds: Any = [None] * len(table)
        if token_type_ids is not None:
            kinds = map(tuple, _table("token_type_ids", token_type_ids, table.shape).tolist())
        rows = zip(table.tolist(), map(tuple, mask.tolist()), kinds, strict=True)
        made = [TokenRow.plain(row, attention=seen, token_types=own) for row, seen, own in rows]
        for row, own, whole in zip(made, table, (mask != 0).all(axis=1), strict=True):
            array = np.frombuffer(own.tobytes(), dtype=np.int64)  # it does not keep the table
            vars(row).update(array=array, all_seen=bool(whole))
        return cls(tuple(made))


def _table(name: str, values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Whole numbers, a row for each text; of the ``shape`` that ids have."""
    try:
        table = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except ValueError as ragged:
        raise BadInput(
            f"{name} has rows of different lengths; pad them with the pad id and attention 0."
        ) from ragged
    whole = table.dtype == bool or np.issubdtype(table.dtype, np.integer)
    if table.ndim != 2 or table.size == 0 or table.shape != (shape or table.shape) or not whole:
        raise BadInput(
            f"{name} has shape {table.shape} and dtype {table.dtype}; give a 2-D array of integers with a "
            "row for each text (ids[None] for one text), masks and types of one shape with the ids."
        )
    return table.astype(np.int64)


def trimmed(row: TokenRow, pad_id: int | None) -> TokenRow:
    """Drop padding (attention 0 *and* the pad id) from both ends; other masked positions keep their places.
    Without a pad id, a row of ids is padded where the mask hides its ends, one of a text nowhere."""
    inside = real_tokens(row, pad_id)
    return row if len(inside) == len(row) else row.take(inside)


def real_tokens(row: TokenRow, pad_id: int | None) -> range:
    """The positions between the padding at both ends."""
    if row.all_seen or (pad_id is None and row.texts):
        return range(len(row))
    pairs = zip(row.ids, row.attention, strict=True)
    real = [i for i, (own, seen) in enumerate(pairs) if seen or pad_id not in (None, own)]
    if not real:
        raise BadInput("a row of ids is all padding; there is no token to explain.")
    inside = range(real[0], real[-1] + 1)
    between = [] if pad_id is None else sorted({*inside}.difference(real))
    if between:
        raise BadInput(
            f"position {between[0]} is padding (pad id {pad_id}, attention 0) between real tokens; "
            "padding belongs at one end of the row."
        )
    return inside


def named(row: TokenRow, tokenizer: Any) -> TokenRow:
    """Give a row made from ids its pieces and special flags, where a tokenizer is at hand."""
    if tokenizer is None or row.texts:
        return row
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    pieces = map(str, tokenizer.convert_ids_to_tokens(list(row.ids)))
    return replace(row, pieces=tuple(pieces), special=tuple(i in special for i in row.ids))


def explain_masked(row: TokenRow, how: ExplainMask, tokenizer: Any) -> TokenRow:
    """Attention 0 at [CLS] and [SEP] (``cls_sep``) or at [SEP] (``sep``), as the official codes of
    AttCAT and Mask-LRP feed their explanation pass; ids and positions stay."""
    if how == "none":
        return row
    if tokenizer is None or tokenizer.sep_token_id is None:
        given = way(f"explain_mask={how!r}", f"--explain-mask {how}")
        raise BadInput(
            f"{given} needs a tokenizer with a separator token, and this model's has none; leave it "
            "out, or in Python mask positions by Tokens.from_ids(ids, attention_mask)."
        )
    hidden = {tokenizer.sep_token_id} | ({tokenizer.cls_token_id} if how == "cls_sep" else set())
    return row.masked([i in hidden for i in row.ids])
