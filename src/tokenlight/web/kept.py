"""Kept attributions: what was explained can be played with and downloaded until newer ones need room."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from tokenlight.attribution import Attribution
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import not_found


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

    @property
    def numbers(self) -> int:
        """About how many numbers it holds."""
        layers = 0 if self.attribution.layers is None else len(self.attribution.layers)
        return len(self.attribution) * (layers + 16)


class Kept:
    """A bounded store; ids are random, so that nobody finds another's text by counting."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._numbers = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, attribution: Attribution, model: str | None, *, pinned: bool = False) -> Entry:
        """Keep one; the oldest make room, those the server was started with (``pinned``) stay."""
        entry = Entry(secrets.token_urlsafe(12), attribution, model, pinned)
        with self._lock:
            self._entries[entry.id] = entry
            self._numbers += 0 if pinned else entry.numbers
            self._make_room(entry)
        return entry

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
            if len(free) <= limits.kept_attributions and self._numbers <= limits.kept_numbers:
                return
            entry = self._entries[identity]
            if not entry.pinned and entry is not newest:
                del self._entries[identity]
                self._numbers -= entry.numbers
