"""Kept attributions: what was explained can be played with and downloaded until newer ones need room."""

import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import not_found

BANDS = 4  # kinds of random orders that are remembered of one explanation


@dataclass(eq=False)
class Entry:
    """One attribution, the served model that made it (None: none here), and its game
    as far as it was played: its curve (None), and by random orders and seed what those did."""

    id: str
    attribution: Attribution
    model: str | None
    pinned: bool = False  # the server was started with it, so it stays
    order: Sequence[int] | None = None  # in which a person hides its tokens
    played: dict[tuple[int, int] | None, Any] = field(default_factory=dict)
    weight: int = 0  # bytes, as the store counted them last

    def remember(self, key: tuple[int, int] | None, part: Any) -> None:
        """Of what random orders did only the last few kinds of asking are remembered."""
        self.played[key] = part
        for older in [one for one in self.played if one is not None][:-BANDS]:
            del self.played[older]

    def weighed(self) -> int:
        """About how many bytes of memory it takes, its game included."""
        image = self.attribution.row.image
        shown = 0 if image is None else image.pixels.nbytes  # and as it is drawn
        return shown + held(self.attribution) + held({**self.played})  # while more may be played


def held(value: Any) -> int:
    """Bytes of memory that a value takes with all that is in it; what is shared counts each time."""
    inner: Iterable[Any] = ()
    if isinstance(value, tuple | list):
        inner = value
    elif isinstance(value, dict):
        inner = chain(value.keys(), value.values())
    elif isinstance(value, np.ndarray):
        return value.nbytes
    elif hasattr(value, "__dataclass_fields__"):
        inner = (getattr(value, name) for name in value.__dataclass_fields__)
    return sys.getsizeof(value) + sum(map(held, inner))


class Kept:
    """A bounded store; ids are random, so that nobody finds another's text by counting."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._entries: OrderedDict[str, Entry] = OrderedDict()  # the oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, attribution: Attribution, model: str | None, *, pinned: bool = False) -> Entry:
        """Keep one; the oldest make room, those the server was started with (``pinned``) stay."""
        entry = Entry(secrets.token_urlsafe(12), attribution, model, pinned)
        with self._lock:
            self._entries[entry.id] = entry
        self.weigh([entry])
        return entry

    def weigh(self, entries: Sequence[Entry]) -> None:
        """Count anew what these take, when a game or a test was added; the oldest make room."""
        for entry in entries:
            entry.weight = entry.weighed()
        with self._lock:
            for entry in entries:
                if entry.id in self._entries:
                    self._entries.move_to_end(entry.id)
            others = [entry for entry in self._entries.values() if not entry.pinned]
            used = sum(entry.weight for entry in others)
            for place, entry in enumerate(others[:-1]):
                fits = len(others) - place <= self._limits.kept_attributions
                if fits and used <= self._limits.kept_bytes:
                    break
                used -= self._entries.pop(entry.id).weight

    def get(self, identity: str) -> Entry:
        """The entry of this id; it becomes the newest."""
        with self._lock:
            if identity in self._entries:
                self._entries.move_to_end(identity)
                return self._entries[identity]
        said = "no explanation has this id, or newer ones took its place."
        raise not_found(said, "Explain the text again.")
