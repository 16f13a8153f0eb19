"""The user's tokenizer, so that nobody else switches it while it reads, and its tokens as labels.

A fast tokenizer keeps in itself whether it cuts and pads, and every call switches that for all who hold
it: a thread that asks for ``truncation=True`` would cut the texts that another explains. So each call of
explain() reads through one of its own, with the user's vocabulary and rules; none is kept longer, so what the
user changes later holds from the next call on.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenlight.data.tokens import is_half
from tokenlight.errors import BadTarget, way

_made: ContextVar[dict[int, tuple[Any, Any]] | None] = ContextVar("made", default=None)


@contextmanager
def one_reading() -> Iterator[None]:
    """Within: a tokenizer that is put apart again is the one that was made first."""
    kept = _made.get()
    begun = _made.set({} if kept is None else kept)
    try:
        yield
    finally:
        _made.reset(begun)


def apart(tokenizer: Any) -> Any:
    """The same tokenizer, neither cutting nor padding; what is no fast tokenizer stays as it is."""
    inner = getattr(tokenizer, "_tokenizer", None)
    if not hasattr(inner, "get_added_tokens_decoder"):
        return tokenizer
    kept = _made.get()
    made = {} if kept is None else kept
    if id(tokenizer) not in made:
        own = object.__new__(type(tokenizer))
        own.__dict__.update(vars(tokenizer), _tokenizer=_inner_apart(inner))
        # The user's own stands beside it, so that no other can come to have its id meanwhile.
        made[id(tokenizer)] = tokenizer, own
    return made[id(tokenizer)][1]


def _inner_apart(inner: Any) -> Any:
    """A tokenizers.Tokenizer around the same model, normaliser and so on."""
    added = inner.get_added_tokens_decoder()
    made = type(inner)(inner.model)
    made.normalizer, made.pre_tokenizer = inner.normalizer, inner.pre_tokenizer
    made.post_processor, made.decoder = inner.post_processor, inner.decoder
    # Each call builds its search again, so as few calls as may be; in the order of their ids, which
    # they are given anew.
    in_order = [added[number] for number in sorted(added)]
    for special, tokens in groupby(in_order, key=lambda token: token.special):
        (made.add_special_tokens if special else made.add_tokens)(list(tokens))
    if made.get_added_tokens_decoder() != added:
        return inner  # ids that no adding gives, nor a file of this tokenizer: the user's own it is
    made.encode_special_tokens = inner.encode_special_tokens
    return made


class Vocabulary(Sequence[str]):
    """Token ids as labels. ``vocabulary[id]`` is the token as it reads behind other text, with its leading
    blank, if any; its piece where it is no text of its own.

    Read from the tokenizer when asked, since most of the many labels never are.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        piece = self.tokenizer.convert_ids_to_tokens(index) if self.tokenizer is not None else None
        if piece is None:  # ids behind the tokenizer's last, or no tokenizer at all
            return f"#{index}"
        alone, behind = (
            str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
            for ids in (self._letter, [*self._letter, index])
        )
        text = behind.removeprefix(alone) if behind.startswith(alone) else ""
        # Half of a character and control tokens have no text of their own: their piece names them.
        return text if text and "\ufffd" not in text else str(piece)

    def __contains__(self, label: object) -> bool:
        return isinstance(label, str) and self._find(label) is not None

    def id_of(self, label: str, *, blank: bool = True) -> int:
        """The one token that ``label`` is; ``blank``: a word begins here, so a blank comes first."""
        found = None if is_half(label) else self._find(label, blank=blank)
        if found is not None:
            return found
        if not label or is_half(label) or self.tokenizer is None:
            given = "give a word that its tokenizer knows, or the token's number"
            raise BadTarget(f"{label!r} names no token of this model; {given}.")
        pieces = self.tokenizer.convert_ids_to_tokens(self._behind(label, blank=blank))
        whole = way("Continuation(…)", "--continue WORDS")
        raise BadTarget(
            f"{label!r} is {len(pieces)} tokens of this model ({', '.join(map(str, pieces))}), and a "
            f"target is one. Give one of them, or, for a model that writes on, {whole} for each of them."
        )

    def _find(self, label: str, *, blank: bool = True) -> int | None:
        if self.tokenizer is None or not label:
            return None
        behind = self._behind(label, blank=blank)
        if len(behind) == 1 and behind[0] != getattr(self.tokenizer, "unk_token_id", None):
            return int(behind[0])
        known = self.tokenizer.get_vocab().get(label)  # a piece by the tokenizer's own name
        return None if known is None else int(known)

    def _behind(self, label: str, *, blank: bool) -> list[int]:
        """The tokens of ``label`` behind other text: most tokenizers read a first word otherwise."""
        if blank and not label[0].isspace() and label[0].isalnum():
            label = f" {label}"
        before, both = self._ids("a"), self._ids("a" + label)
        if both[: len(before)] == before and len(both) > len(before):
            return both[len(before) :]
        known = self.tokenizer.get_vocab().get(label)
        return self._ids(label) if known is None else [int(known)]

    def _ids(self, text: str) -> list[int]:
        reading = apart(self.tokenizer)
        return list(reading(text, add_special_tokens=False, verbose=False)["input_ids"])

    @cached_property
    def _letter(self) -> list[int]:
        return self._ids("a")
