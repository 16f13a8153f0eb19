"""Private copies of the user's tokenizer, and its tokens as labels.

A fast tokenizer stores its truncation and padding settings, and every call changes them for all who hold
the tokenizer: a thread that calls it with ``truncation=True`` would truncate the texts that another thread
explains. So each call of explain() reads through a copy with the same vocabulary and rules. The copy lives
no longer than the call, so that changes the user makes to the tokenizer take effect at the next call.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenlight.data.tokens import has_lone_surrogate
from tokenlight.errors import BadTarget, UnsupportedTokenizer, truncate_text

RUNNER = "limited_runner"  # attribute of a tokenizer from a folder: runs its rules under limits
# The copies of the current call of explain(): id of the user's tokenizer → (the tokenizer, its copy). This
# is a context variable because copies are needed in three unrelated places of one call: encoding texts,
# looking up the token of a target (Vocabulary, which belongs to the model and outlives the call) and
# generating text. Handing the copy on would put a parameter into every signature between them.
_isolated_tokenizers: ContextVar[dict[int, tuple[Any, Any]] | None] = ContextVar(
    "isolated_tokenizers", default=None
)


@contextmanager
def isolated_tokenizer_cache() -> Iterator[None]:
    """Make :func:`isolate_tokenizer` return the same copy for the same tokenizer inside the block."""
    outer_cache = _isolated_tokenizers.get()
    token = _isolated_tokenizers.set({} if outer_cache is None else outer_cache)
    try:
        yield
    finally:
        _isolated_tokenizers.reset(token)


def isolate_tokenizer(tokenizer: Any) -> Any:
    """Return a copy of a fast tokenizer that neither truncates nor pads; anything else unchanged."""
    backend = getattr(tokenizer, "_tokenizer", None)
    if not hasattr(backend, "get_added_tokens_decoder"):
        return tokenizer
    cache = _isolated_tokenizers.get()
    if cache is None:
        cache = {}
    if id(tokenizer) not in cache:
        copy = object.__new__(type(tokenizer))
        copy.__dict__.update(vars(tokenizer), _tokenizer=_copy_backend(backend))
        # The original is kept along with its copy, so that no other object can get its id meanwhile.
        cache[id(tokenizer)] = tokenizer, copy
    return cache[id(tokenizer)][1]


def tokenize(tokenizer: Any, *texts: Any, **options: Any) -> Any:
    """Tokenize texts, neither truncated nor padded.

    Args:
        tokenizer: The user's tokenizer, or one from a folder, whose rules are run under limits first.
        texts: A text or a list of texts, and those that they are paired with.
        options: Keywords of the tokenizer.

    Raises:
        UnsupportedTokenizer: The tokenizers library ended in a panic.
    """
    runner = getattr(tokenizer, RUNNER, None)
    if runner is not None:
        runner.try_under_limits(list(_flatten((*texts, options.get("text_target")))))
    with tokenizer_panics_as_errors("The tokenizer"):
        return isolate_tokenizer(tokenizer)(*texts, **options)


@contextmanager
def tokenizer_panics_as_errors(description: str) -> Iterator[None]:
    """Turn a panic of the tokenizers library, which is no ``Exception``, into an UnsupportedTokenizer.

    Args:
        description: What fails, as the beginning of a sentence.
    """
    try:
        yield
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        raise UnsupportedTokenizer(
            f"{description} fails in the tokenizers library: {truncate_text(str(panic), 240)}. Its rules "
            "(tokenizer.json) are damaged, or a regular expression in them takes too long for this text. "
            "Use another tokenizer.",
            code="tokenizer-panic",
        ) from None


def _flatten(texts: Any) -> Iterator[str]:
    """Yield every text in nested lists of texts."""
    if isinstance(texts, str):
        yield texts
    elif isinstance(texts, list | tuple):
        for inner in texts:
            yield from _flatten(inner)


def _copy_backend(backend: Any) -> Any:
    """Return a tokenizers.Tokenizer with the same model, normalizer and other parts."""
    added_tokens = backend.get_added_tokens_decoder()
    copy = type(backend)(backend.model)
    copy.normalizer = backend.normalizer
    copy.pre_tokenizer = backend.pre_tokenizer
    copy.post_processor = backend.post_processor
    copy.decoder = backend.decoder
    # Each call builds the search structure again, so tokens are added in as few calls as possible. They
    # are added in the order of their ids, because the library reassigns the ids.
    in_order = [added_tokens[token_id] for token_id in sorted(added_tokens)]
    for is_special, tokens in groupby(in_order, key=lambda token: token.special):
        if is_special:
            copy.add_special_tokens(list(tokens))
        else:
            copy.add_tokens(list(tokens))
    if copy.get_added_tokens_decoder() != added_tokens:
        # These ids cannot be produced by adding tokens, so the user's own backend is used.
        return backend
    copy.encode_special_tokens = backend.encode_special_tokens
    return copy


class Vocabulary(Sequence[str]):
    """Token ids as labels.

    ``vocabulary[id]`` is the token as it reads after other text, with its leading blank, if any. A token
    without a text of its own is named by its piece. Labels are computed when they are read, because most
    of the many labels never are.

    Args:
        tokenizer: The model's tokenizer, or None.
        size: Number of labels, which may be more than the tokenizer knows.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer = tokenizer
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        piece = None
        if self.tokenizer is not None:
            piece = self.tokenizer.convert_ids_to_tokens(index)
        if piece is None:  # ids beyond the tokenizer's last one, or no tokenizer at all
            return f"#{index}"
        prefix = self._decode(self._letter_ids)
        prefix_and_token = self._decode([*self._letter_ids, index])
        text = ""
        if prefix_and_token.startswith(prefix):
            text = prefix_and_token.removeprefix(prefix)
        # Part of a character and control tokens have no text of their own: their piece names them.
        has_text = text and "\ufffd" not in text
        return text if has_text else str(piece)

    def __contains__(self, label: object) -> bool:
        return isinstance(label, str) and self._lookup(label) is not None

    def token_id(self, label: str, *, leading_space: bool = True) -> int:
        """Return the id of the one token that ``label`` is.

        Args:
            label: A word, or a piece as the tokenizer names it.
            leading_space: Whether a new word begins here, so that a blank comes first.

        Raises:
            BadTarget: The label is no token of this model, or several.
        """
        is_encodable = not has_lone_surrogate(label)
        if is_encodable:
            token_id = self._lookup(label, leading_space=leading_space)
            if token_id is not None:
                return token_id
        if not label or not is_encodable or self.tokenizer is None:
            raise BadTarget(
                f"{label!r} is not a token of this model. Give a word that its tokenizer knows, or the "
                "token's number.",
                code="token-unknown",
            )
        ids = self._encode_after_text(label, leading_space=leading_space)
        pieces = self.tokenizer.convert_ids_to_tokens(ids)
        raise BadTarget(
            f"{label!r} is {len(pieces)} tokens of this model ({', '.join(map(str, pieces))}), but a "
            "target is a single token. Give one, or, for a model that generates text, Continuation(…) for "
            "each of them.",
            code="token-ambiguous",
        )

    def _lookup(self, label: str, *, leading_space: bool = True) -> int | None:
        """Return the id of a label that is one token; None for any other label."""
        if self.tokenizer is None or not label:
            return None
        ids = self._encode_after_text(label, leading_space=leading_space)
        if len(ids) == 1 and ids[0] != getattr(self.tokenizer, "unk_token_id", None):
            return int(ids[0])
        piece_id = self.tokenizer.get_vocab().get(label)
        return None if piece_id is None else int(piece_id)

    def _encode_after_text(self, label: str, *, leading_space: bool) -> list[int]:
        """Tokenize ``label`` as it reads after other text: most tokenizers treat a first word otherwise."""
        if leading_space and not label[0].isspace() and label[0].isalnum():
            label = f" {label}"
        prefix_ids = self._encode("a")
        ids = self._encode("a" + label)
        if ids[: len(prefix_ids)] == prefix_ids and len(ids) > len(prefix_ids):
            return ids[len(prefix_ids) :]
        # The tokenizer merges the label with the letter before it.
        piece_id = self.tokenizer.get_vocab().get(label)
        return self._encode(label) if piece_id is None else [int(piece_id)]

    def _encode(self, text: str) -> list[int]:
        encoded = tokenize(self.tokenizer, text, add_special_tokens=False, verbose=False)
        return list(encoded["input_ids"])

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    @cached_property
    def _letter_ids(self) -> list[int]:
        """A short text before the token, so that it is decoded as a continuation."""
        return self._encode("a")
