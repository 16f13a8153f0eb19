"""Kept attributions: what was explained can be played with and downloaded until newer ones need room."""

from __future__ import annotations

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
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import not_found

BANDS = 4  # kinds of random orders that are remembered of one explanation


@dataclass(eq=False)
class Entry:
    """One attribution, the served model that made it (None: none here), and its game
    as far as it was played."""

    id: str
    attribution: Attribution
    model: str | None
    pinned: bool = False
    curve: dict[str, Any] | None = None
    bands: dict[tuple[int, int], Any] = field(default_factory=dict)  # by random orders and seed
    weight: int = 0  # bytes, as the store counted them last

    def remember(self, key: tuple[int, int], band: Any) -> None:
        """What random orders did; only the last few kinds of asking are remembered."""
        self.bands[key] = band
        for older in list(self.bands)[:-BANDS]:
            del self.bands[older]

    def weighed(self) -> int:
        """About how many bytes of memory it takes, its game included."""
        image = self.attribution.row.image
        shown = 0 if image is None else image.pixels.nbytes  # and as it is drawn
        return shown + sum(held(part) for part in (self.attribution, self.curve, self.bands))


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

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._bytes = 0
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
            weight = 0 if entry.pinned else entry.weighed()
            with self._lock:
                if entry.id in self._entries:
                    self._bytes += weight - entry.weight
                    entry.weight = weight
                    self._make_room(entry)

    def get(self, identity: str) -> Entry:
        """The entry of this id; it becomes the newest."""
        with self._lock:
            entry = self._entries.get(identity)
            if entry is None:
                raise not_found(
                    "no explanation has this id, or newer ones took its place.",
                    "Explain the text again.",
                )
            self._entries.move_to_end(identity)
        return entry

    def _make_room(self, newest: Entry) -> None:
        limits = self._limits
        for identity in list(self._entries):
            free = [e for e in self._entries.values() if not e.pinned]
            if len(free) <= limits.kept_attributions and self._bytes <= limits.kept_bytes:
                return
            entry = self._entries[identity]
            if not entry.pinned and entry is not newest:
                del self._entries[identity]
                self._bytes -= entry.weight
