"""All errors that tokenlight raises, and the helpers that word their messages.

Every error derives from :class:`TokenlightError` and also from the built-in exception that Python code
would expect (``ValueError``, ``TypeError``, ``OSError`` or ``ImportError``). A message says what was given,
why it fails, and what to do; its ``code`` is stable, so that programs need not read the text.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

MAX_WORD_LENGTH = 400  # characters of one word in a message
# Characters of a longer word that are shown, at its beginning and at its end.
WORD_HEAD_LENGTH = 200
WORD_TAIL_LENGTH = 100
MAX_SUGGESTIONS = 3
# A suggestion this much less similar than the best one is not offered.
SUGGESTION_MARGIN = 0.1


class TokenlightError(Exception):
    """Base class: ``except TokenlightError`` catches everything that tokenlight raises on purpose.

    Args:
        message: What was given, why it fails, and what to do.
        code: A stable name of this message, for programs and tests; by default that of the class.

    Example:
        >>> from tokenlight.errors import BadInput
        >>> BadInput("The text is empty. Give at least one word.").code
        'bad-input'
    """

    code = "tokenlight-error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(_shorten_words(message))
        if code is not None:
            self.code = code

    @classmethod
    @contextmanager
    def reraise_as(
        cls,
        prefix: str,
        *exceptions: type[Exception],
        suffix: str = ".",
        code: str | None = None,
    ) -> Iterator[None]:
        """Convert ``exceptions`` raised inside the block to this class.

        Errors of tokenlight pass unchanged, since they already say what to do.

        Args:
            prefix: Text before the message of the original exception.
            *exceptions: Classes to convert.
            suffix: Text after the message of the original exception.
            code: Code of the new error; by default that of the class.

        Returns:
            A context manager.

        Example:
            >>> from tokenlight.errors import BadInput
            >>> with BadInput.reraise_as("This is not a number: ", ValueError):
            ...     float("x")
            Traceback (most recent call last):
            tokenlight.errors.BadInput: This is not a number: could not convert string to float: 'x'.
        """
        try:
            yield
        except TokenlightError:
            raise
        except exceptions as error:
            raise cls(f"{prefix}{error}{suffix}", code=code) from error


def _shorten_words(message: str) -> str:
    """Cut the middle out of very long words: a message names an input, it does not print all of it."""
    long_word = rf"\S{{{MAX_WORD_LENGTH + 1},}}"

    def shorten(match: re.Match[str]) -> str:
        word = match[0]
        return f"{word[:WORD_HEAD_LENGTH]}…{word[-WORD_TAIL_LENGTH:]}"

    return re.sub(long_word, shorten, message)


def truncate_text(text: str, max_length: int) -> str:
    """Truncate to ``max_length`` characters, ending in an ellipsis."""
    if len(text) <= max_length:
        return text
    return f"{text[: max_length - 1]}…"


def short_repr(value: object, max_length: int = 60) -> str:
    """Return ``repr(value)``, truncated for use in a message."""
    return truncate_text(repr(value), max_length)


def join_first(names: Sequence[object], max_count: int) -> str:
    """Join the first ``max_count`` names with commas, with an ellipsis if there are more."""
    joined = ", ".join(map(str, names[:max_count]))
    if len(names) > max_count:
        return f"{joined} …"
    return joined


def find_close_matches(word: str, candidates: Iterable[str], *, cutoff: float = 0.5) -> list[str]:
    """Return up to three candidates that ``word`` may be a misspelling of, the most similar first.

    Args:
        word: The name that was given.
        candidates: The names that exist.
        cutoff: Similarity that a candidate must reach, from 0 to 1.

    Returns:
        The most similar candidate, and others only if they are nearly as similar.
    """
    matches = difflib.get_close_matches(word, list(candidates), n=MAX_SUGGESTIONS, cutoff=cutoff)
    similarities = [difflib.SequenceMatcher(None, name, word).ratio() for name in matches]
    # Drop matches that are clearly worse than the best.
    close = []
    for name, similarity in zip(matches, similarities, strict=True):
        if similarity > similarities[0] - SUGGESTION_MARGIN:
            close.append(name)
    return close


def format_suggestion(word: str, candidates: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return `` Did you mean …?`` (with a leading space) for close matches, or an empty string.

    Args:
        word: What was written.
        candidates: What could have been meant.
        cutoff: The least similarity of a match, from 0 to 1.
    """
    matches = find_close_matches(word, candidates, cutoff=cutoff)
    if not matches:
        return ""
    return f" Did you mean {' or '.join(map(repr, matches))}?"


class UnknownName(TokenlightError, ValueError):
    """A name that is not in a closed list; the message suggests similar names."""

    code = "unknown-name"

    @classmethod
    def from_choices(
        cls, kind: str, name: object, choices: Iterable[str], *, code: str | None = None
    ) -> Self:
        """Build the error for a name that is not one of ``choices``.

        Args:
            kind: What the name stands for, such as ``method``.
            name: The name that was given.
            choices: The names that exist.
            code: Code of the error; by default that of the class.

        Example:
            >>> from tokenlight.errors import UnknownName
            >>> print(UnknownName.from_choices("method", "rolout", ["attcat", "rollout"]))
            Unknown method 'rolout'. Did you mean 'rollout'? Known: attcat, rollout.
        """
        names = sorted(choices)
        suggestion = format_suggestion(str(name), names)
        choice_list = ", ".join(names) or "none"
        return cls(f"Unknown {kind} {name!r}.{suggestion} Known: {choice_list}.", code=code)


class UnknownKeyword(UnknownName, TypeError):
    """A keyword argument that a public function does not have; the message suggests similar names."""

    code = "unknown-keyword"


class BadInput(TokenlightError, ValueError):
    """An input or option that cannot be used.

    Example:
        >>> from tokenlight.plugin import BadInput
        >>> raise BadInput("The text has no label. Give one.", code="text-without-label")
        Traceback (most recent call last):
        tokenlight.errors.BadInput: The text has no label. Give one.
    """

    code = "bad-input"


def check_choice(option: str, value: Any, choices: Sequence[str]) -> Any:
    """Return ``value`` if it is one of ``choices``.

    Args:
        option: Name of the option, for the message.
        value: The given value.
        choices: The values that exist.

    Raises:
        BadInput: ``value`` is not one of them (code ``invalid-choice``).
    """
    if not isinstance(value, str) or value not in choices:
        raise BadInput(
            f"{option}={value!r} is not valid. Choose one of {', '.join(map(repr, choices))}.",
            code="invalid-choice",
        )
    return value


class TextTooLong(BadInput):
    """A text with more tokens than the model can read."""

    code = "text-too-long"


class BadTarget(TokenlightError, ValueError):
    """A target that the head of this model does not have.

    Example:
        >>> from tokenlight.errors import BadTarget
        >>> BadTarget("This model has no class 7.").code
        'bad-target'
    """

    code = "bad-target"


class UnsupportedModel(TokenlightError, TypeError):
    """A model or head for which the results would be wrong.

    Example:
        >>> from tokenlight.errors import UnsupportedModel
        >>> UnsupportedModel("This model has no attention.").code
        'unsupported-model'
    """

    code = "unsupported-model"


class UnsupportedTokenizer(TokenlightError, TypeError):
    """A tokenizer that does not report the character offsets of its tokens."""

    code = "unsupported-tokenizer"


class DamagedFile(TokenlightError, OSError):
    """A file that is truncated, modified, or unsafe to open; see also :class:`MissingFile`."""

    code = "damaged-file"


class MissingFile(DamagedFile, FileNotFoundError):
    """A file that does not exist."""

    code = "missing-file"


class Unwritable(TokenlightError, OSError):
    """A path that cannot be written."""

    code = "unwritable"


class BrokenPlugin(TokenlightError, ImportError):
    """A method or metric of another package that cannot be loaded."""

    code = "broken-plugin"


class NotFinite(TokenlightError, ValueError):
    """A result that is NaN or infinite; the message names where it arose."""

    code = "not-finite"


class MissingExtra(TokenlightError, ImportError):
    """An optional library that is needed and not installed."""

    code = "missing-extra"

    @classmethod
    def for_libraries(
        cls, libraries: str | Sequence[str], extra: str, purpose: str
    ) -> "MissingExtra":
        """Build the error for missing libraries.

        Args:
            libraries: One name, or several.
            extra: The extra of tokenlight that installs them.
            purpose: What needs them, as the subject of a sentence.

        Example:
            >>> from tokenlight.errors import MissingExtra
            >>> print(MissingExtra.for_libraries("rich", "cli", "The terminal view"))
            The terminal view needs rich. Install it with: pip install 'tokenlight[cli]'
        """
        names = libraries if isinstance(libraries, str) else " and ".join(libraries)
        return cls(f"{purpose} needs {names}. Install it with: pip install 'tokenlight[{extra}]'")

    @classmethod
    def import_or_raise(cls, module: str, extra: str, purpose: str, library: str = "") -> Any:
        """Import an optional module.

        Args:
            module: Dotted name of the module.
            extra: The extra of tokenlight that installs it.
            purpose: What needs it, as the subject of a sentence.
            library: Name of the distribution, if it differs from the top-level module.

        Raises:
            MissingExtra: The module is not installed.
        """
        # The package first: if it is missing, the error names it and not one of its modules.
        top_level = module.partition(".")[0]
        try:
            import_module(top_level)
            return import_module(module)
        except ImportError as error:
            raise cls.for_libraries(library or top_level, extra, purpose) from error

    @classmethod
    def check_installed(cls, libraries: Iterable[str], extra: str, purpose: str) -> None:
        """Raise before any work starts if one of ``libraries`` is missing; see :meth:`for_libraries`.

        Args:
            libraries: Names of modules, as they are imported.
            extra: The extra of tokenlight that installs them.
            purpose: What they are needed for, as the message names it.
        """
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            raise cls.for_libraries(missing, extra, purpose)


def describe_error(error: BaseException) -> str:
    """Return one sentence about ``error`` for a table of failures."""
    # torch.OutOfMemoryError is recognized by name: importing torch only for this would be slow.
    if type(error).__name__ == "OutOfMemoryError":
        return (
            "The device ran out of memory for this text, even on its own and after retries. Free memory on "
            "the device, use fewer workers, or use another device."
        )
    if isinstance(error, TokenlightError):
        return str(error)
    return f"Unexpected {type(error).__name__}: {error}"
