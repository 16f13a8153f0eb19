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
    as far as it was played."""

    id: str
    attribution: Attribution
    model: str | None
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

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._pinned: dict[str, Entry] = {}
        self._others: OrderedDict[str, Entry] = OrderedDict()  # the oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pinned) + len(self._others)

    def put(self, attribution: Attribution, model: str | None, *, pinned: bool = False) -> Entry:
        """Keep one; the oldest make room, those the server was started with (``pinned``) stay."""
        entry = Entry(secrets.token_urlsafe(12), attribution, model)
        with self._lock:
            (self._pinned if pinned else self._others)[entry.id] = entry
        self.weigh([entry])
        return entry

    def weigh(self, entries: Sequence[Entry]) -> None:
        """Count anew what these take, when a game or a test was added; the oldest make room."""
        for entry in entries:
            entry.weight = entry.weighed()
        with self._lock:
            for entry in entries:
                if entry.id in self._others:
                    self._others.move_to_end(entry.id)
            while len(self._others) > 1 and self._full():
                self._others.popitem(last=False)

    def get(self, identity: str) -> Entry:
        """The entry of this id; it becomes the newest."""
        with self._lock:
            if identity in self._others:
                self._others.move_to_end(identity)
                return self._others[identity]
            if identity in self._pinned:
                return self._pinned[identity]
        raise not_found(
            "no explanation has this id, or newer ones took its place.", "Explain the text again."
        )

    def _full(self) -> bool:
        used = sum(entry.weight for entry in self._others.values())
        return len(self._others) > self._limits.kept_attributions or used > self._limits.kept_bytes
