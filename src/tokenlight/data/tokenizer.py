"""The user's tokenizer, so that nobody else switches it while it reads.

A fast tokenizer keeps in itself whether it cuts and pads, and every call switches that for all who hold
it: a thread that asks for ``truncation=True`` would cut the texts that another explains. So each reading
goes through one of its own: vocabulary and rules are the user's objects, the two switches and the list of
added tokens are apart. Thousands of added tokens take milliseconds, so one serves a whole call of
explain(); none is kept longer, so what the user changes later holds from the next call on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any

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
