"""The user's tokenizer, so that nobody else switches it while it reads.

A fast tokenizer keeps in itself whether it cuts and pads, and every call of it switches that for all
who hold it: a thread that asks for ``truncation=True`` would cut the texts that another explains. So
each reading goes through a tokenizer of its own. It is no copy: the vocabulary and the rules are the
user's own objects, only the two switches and the list of added tokens are apart. Making one takes
microseconds whatever the size of the vocabulary, but some milliseconds for thousands of added tokens:
one serves a whole call of explain(). None is kept longer, so whatever the user changes later (added
tokens, rules, ``model_input_names``) holds from the next call on.
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
    if _made.get() is not None:
        yield
        return
    begun = _made.set({})
    try:
        yield
    finally:
        _made.reset(begun)


def apart(tokenizer: Any) -> Any:
    """The same tokenizer, neither cutting nor padding; what is no fast tokenizer stays as it is."""
    inner = getattr(tokenizer, "_tokenizer", None)
    if not hasattr(inner, "get_added_tokens_decoder"):
        return tokenizer
    made = _made.get()
    if made is None:
        return _apart(tokenizer, inner)
    if id(tokenizer) not in made:
        # The user's own stands beside it, so that no other can come to have its id meanwhile.
        made[id(tokenizer)] = tokenizer, _apart(tokenizer, inner)
    return made[id(tokenizer)][1]


def _apart(tokenizer: Any, inner: Any) -> Any:
    own = object.__new__(type(tokenizer))
    own.__dict__.update(vars(tokenizer))
    own.__dict__["_tokenizer"] = _inner_apart(inner)
    return own


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
