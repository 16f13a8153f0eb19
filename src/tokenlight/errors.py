"""Every error tokenlight raises. Each is also the error of Python that it derives from, for those who catch
that. A message says what was given, why it cannot be, and what to do.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import Any

LONGEST_WORD = 400  # of a message: what was given is named, not poured out


class TokenlightError(Exception):
    """Root of the tree: ``except TokenlightError`` catches all that tokenlight raises on purpose."""

    def __init__(self, message: str = "") -> None:
        long = rf"\S{{{LONGEST_WORD + 1},}}"
        super().__init__(re.sub(long, lambda word: f"{word[0][:200]}…{word[0][-100:]}", message))

    @classmethod
    @contextmanager
    def telling(cls, said: str, *troubles: type[Exception], end: str = ".") -> Iterator[None]:
        """Within: such troubles become this error, whose message is ``said``, their own words, ``end``."""
        try:
            yield
        except TokenlightError:
            raise
        except troubles as trouble:
            raise cls(f"{said}{trouble}{end}") from trouble


def short(text: str, most: int) -> str:
    """A text of at most ``most`` characters; a dot of three stands for what was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown(value: object, most: int = 60) -> str:
    """What was given, as a message shows it: no more of it than names it."""
    return short(repr(value), most)


def few(names: Sequence[object], most: int) -> str:
    """The first of some names; three dots where there are more."""
    return ", ".join(map(str, names[:most])) + " …" * (len(names) > most)


def near_names(given: str, known: Iterable[str], *, likeness: float = 0.5) -> list[str]:
    """Those of ``known`` that ``given`` may have been meant for, the nearest first."""
    near = difflib.get_close_matches(given, list(known), n=3, cutoff=likeness)
    # Only those about as near as the nearest: a far one is no help.
    alike = [difflib.SequenceMatcher(None, name, given).ratio() for name in near]
    return [name for name, like in zip(near, alike, strict=True) if like > alike[0] - 0.1]


def meant(given: str, known: Iterable[str], *, likeness: float = 0.5) -> str:
    """The question whether one of ``known`` was meant; empty where none is near."""
    near = near_names(given, known, likeness=likeness)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


class UnknownName(TokenlightError, ValueError):
    """A name that is not in a closed list; near names are offered."""

    @classmethod
    def among(cls, kind: str, given: object, known: Iterable[str]) -> "UnknownName":
        """Build the message for ``given``, which is not one of ``known``."""
        names = sorted(known)
        hint = meant(str(given), names)
        return cls(f"unknown {kind} {given!r}.{hint} Known: {', '.join(names) or 'none'}.")


class BadInput(TokenlightError, ValueError):
    """An input that cannot be explained."""


def one_of(option: str, value: Any, known: Sequence[str]) -> Any:
    """``value``, which must be one of ``known``."""
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"{option}={value!r} cannot be: it is one of {', '.join(map(repr, known))}.")
    return value


class TextTooLong(BadInput):
    """A text with more tokens than the model reads."""


class BadTarget(TokenlightError, ValueError):
    """A target this model's head does not have."""


class UnsupportedModel(TokenlightError, TypeError):
    """A model or head for which the numbers would be wrong."""


class UnsupportedTokenizer(TokenlightError, TypeError):
    """A tokenizer that cannot say where its tokens stand in the text."""


class DamagedFile(TokenlightError, OSError):
    """A file that is missing, cut short, changed, or unsafe to open."""


class BrokenPlugin(TokenlightError, ImportError):
    """A method or metric that another package offers and that cannot be loaded."""


class NotFinite(TokenlightError, ValueError):
    """NaN or infinity arose; the message names the place."""


class MissingExtra(TokenlightError, ImportError):
    """An optional library is needed and not installed."""

    @classmethod
    def naming(cls, libraries: str | Sequence[str], extra: str, purpose: str) -> "MissingExtra":
        """Build the message for what the extra ``extra`` brings."""
        names = libraries if isinstance(libraries, str) else " and ".join(libraries)
        return cls(f"{purpose} needs {names}. Install: pip install 'tokenlight[{extra}]'")

    @classmethod
    def importing(cls, module: str, extra: str, purpose: str, library: str = "") -> Any:
        """The module, or what to install: ``library``, where it is not called as its modules are."""
        whole = module.partition(".")[0]
        try:
            import_module(whole)
            return import_module(module)
        except ImportError as missing:
            raise cls.naming(library or whole, extra, purpose) from missing

    @classmethod
    def check(cls, libraries: Iterable[str], extra: str, purpose: str) -> None:
        """Refuse before any work what would fail at its end: ``libraries`` of the extra ``extra``."""
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            raise cls.naming(missing, extra, purpose)


def in_words(reason: BaseException) -> str:
    """An error as it is told in a table."""
    if type(reason).__name__ == "OutOfMemoryError":  # torch's, which is not imported for this
        return (
            "the device has no room for this text, even alone and tried again; free the device, use "
            "fewer workers, or another device."
        )
    if isinstance(reason, TokenlightError):
        return str(reason)
    return f"unexpected {type(reason).__name__}: {reason}"


# --- two fronts, two names ------------------------------------------------------------------------
# A refusal arises deep in the library, where nobody knows who will read it. Where Python and the
# command line have different names, the message is written with both, and the front chooses.

_FLAGS: ContextVar[bool] = ContextVar("_FLAGS", default=False)


def way(python: str, flags: str) -> str:
    """``python``; within ``in_flags()``, ``flags``: the same in options of ``tokenlight explain``."""
    return flags if _FLAGS.get() else python


def long_way(how: str) -> str:
    """What to give for a text that is too long: ``truncate`` or ``stride``."""
    return way(f"long={how!r}", f"--long {how}")


@contextmanager
def in_flags() -> Iterator[None]:
    """Messages made within name options of ``tokenlight explain``, not Python objects."""
    before = _FLAGS.set(True)
    try:
        yield
    finally:
        _FLAGS.reset(before)
