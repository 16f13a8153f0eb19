"""Values out of a YAML mapping, with every problem noted and none raised: a reader of a suite sees
all that is wrong with it at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from tokenlight.errors import TokenlightError, shown

WORDS = {str: "a text", int: "a whole number", bool: "yes or no", dict: "a mapping", list: "a list"}


class Keys:
    """One mapping of a suite: its keys are taken one by one; :meth:`finish` notes what is left.

    ``place`` says where it stands in the file (``methods, entry 3``).
    """

    def __init__(self, content: Mapping[Any, Any], place: str, problems: list[str]) -> None:
        self.content = content
        self.place = place
        self.problems = problems
        self.known: list[str] = []

    def text(self, key: str, default: str = "") -> str:
        """A text; a number is taken as one, since YAML reads 2024 so."""
        found = self._take(key, default)
        if isinstance(found, int | float) and not isinstance(found, bool):
            return str(found)
        return str(self._checked(key, found, str, default))

    def number(self, key: str, default: int | None, *, least: int = 0) -> int | None:
        """A whole number of at least ``least``."""
        found = self._checked(key, self._take(key, default), int, default)
        if found is not None and found < least:
            self.complain(f"{key} is {found}, but must be at least {least}")
            return default
        return None if found is None else int(found)

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping with text keys."""
        found = self._checked(key, self._take(key, {}), dict, {})
        return {str(name): value for name, value in (found or {}).items()}

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; one text is a list of one."""
        found = self._take(key, [])
        listed = [found] if isinstance(found, str) else found
        return tuple(str(one) for one in self._checked(key, listed, list, []) or ())

    def entries(self, key: str) -> list[Any]:
        """A list of anything; one entry may stand without the list."""
        found = self._take(key, [])
        return found if isinstance(found, list) else [] if found is None else [found]

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """One of ``choices``."""
        found = self.text(key, default)
        if found in choices:
            return found
        self.complain(
            f"{key} is {shown(found)}{near(found, choices)}; it may be {', '.join(choices)}"
        )
        return default

    def finish(self) -> None:
        """Note every key that nobody asked for."""
        for key in self.content:
            if key not in self.known:
                hint = near(str(key), self.known)
                known = ", ".join(sorted(set(self.known)))
                self.complain(f"unknown key {shown(str(key))}{hint}; known: {known}")

    def complain(self, what: str) -> None:
        """Note a problem of this mapping."""
        self.problems.append(f"{self.place}: {what}" if self.place else what)

    def _take(self, key: str, default: Any) -> Any:
        self.known.append(key)
        found = self.content.get(key, default)
        return default if found is None else found

    def _checked(self, key: str, found: Any, kind: type, default: Any) -> Any:
        if found is default or (isinstance(found, kind) and not (kind is int and found is True)):
            return found
        self.complain(f"{key} is {shown(found)}, but must be {WORDS[kind]}")
        return default


def near(given: str, known: list[str] | tuple[str, ...]) -> str:
    """``" (did you mean 'x'?)"`` where a known name is near, else nothing."""
    found = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


class SuiteRefused(TokenlightError):
    """A suite that cannot be run; the message lists every problem."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(
            f"the suite {name} has {count} problem{'s' * (count != 1)}; nothing was run:{listed}"
        )
