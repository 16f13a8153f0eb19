"""Explanations that the server keeps, so that they can be tested, played with and downloaded."""

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
from tokenlight.web.api_errors import make_not_found_error
from tokenlight.web.limits import ServerLimits

MAX_REMEMBERED_BANDS = 4  # results of random orders that are kept per explanation

BandKey = tuple[int, int]  # number of random orders, and their seed


@dataclass(eq=False)
class StoredAttribution:
    """An attribution with the results of its game as far as it was played.

    Args:
        id: Random name under which clients ask for it.
        attribution: The attribution.
        model: Name of the served model that made it; None if it is not served here.
        pinned: Whether it stays as long as the server runs.
        order: Order in which a user masks its tokens; by default highest score first.
        game_curve: The curve of the masking game in its own order; None until it is computed.
        game_bands: Mean and quartiles of random orders, as far as they were computed.
        num_bytes: Memory that it takes, as the store measured it last.
    """

    id: str
    attribution: Attribution
    model: str | None
    pinned: bool = False
    order: Sequence[int] | None = None
    game_curve: dict[str, Any] | None = None
    game_bands: dict[BandKey, Any] = field(default_factory=dict)
    num_bytes: int = 0

    def add_game_band(self, key: BandKey, band: Any) -> None:
        """Keep the results of random orders; only the last few are kept.

        Args:
            key: The number of random orders and their seed.
            band: Their mean and quartiles, as JSON values.
        """
        self.game_bands[key] = band
        for old_key in list(self.game_bands)[:-MAX_REMEMBERED_BANDS]:
            del self.game_bands[old_key]

    def measure_bytes(self) -> int:
        """Return about how many bytes of memory it takes, its game included."""
        image_bytes = 0
        image = self.attribution.row.image
        if image is not None:
            image_bytes = image.pixels.nbytes  # a second time, for the drawn picture
        # The game is copied first: a worker may add to it meanwhile.
        game_bytes = count_bytes(self.game_curve) + count_bytes({**self.game_bands})
        return image_bytes + count_bytes(self.attribution) + game_bytes


def count_bytes(value: Any) -> int:
    """Return the bytes of memory that a value takes with all its content; shared parts count each time."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    content: Iterable[Any] = ()
    if isinstance(value, tuple | list):
        content = value
    elif isinstance(value, dict):
        content = chain(value.keys(), value.values())
    elif hasattr(value, "__dataclass_fields__"):
        content = (getattr(value, name) for name in value.__dataclass_fields__)
    return sys.getsizeof(value) + sum(map(count_bytes, content))


class AttributionStore:
    """A store of limited size. Ids are random so that they cannot be guessed."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._entries: OrderedDict[str, StoredAttribution] = OrderedDict()  # oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, attribution: Attribution, model: str | None, *, pinned: bool = False
    ) -> StoredAttribution:
        """Store an attribution; the oldest ones that are not ``pinned`` make room.

        Args:
            attribution: The explanation.
            model: The name of the model on the page; None for one from a file.
            pinned: Whether it stays as long as the server runs, as those of opened files do.
        """
        entry = StoredAttribution(
            id=secrets.token_urlsafe(12), attribution=attribution, model=model, pinned=pinned
        )
        with self._lock:
            self._entries[entry.id] = entry
        self.update_sizes([entry])
        return entry

    def update_sizes(self, entries: Sequence[StoredAttribution]) -> None:
        """Measure entries again after something was added to them; the oldest ones make room."""
        for entry in entries:
            entry.num_bytes = entry.measure_bytes()
        with self._lock:
            for entry in entries:
                if entry.id in self._entries:
                    self._entries.move_to_end(entry.id)
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Remove the oldest entries until the others fit; the newest always stays."""
        removable = [entry for entry in self._entries.values() if not entry.pinned]
        num_entries = len(removable)
        num_bytes = sum(entry.num_bytes for entry in removable)
        for entry in removable[:-1]:
            fits = num_entries <= self._limits.stored_attributions
            if fits and num_bytes <= self._limits.stored_bytes:
                break
            del self._entries[entry.id]
            num_entries -= 1
            num_bytes -= entry.num_bytes

    def get(self, attribution_id: str) -> StoredAttribution:
        """Return the entry with this id; it becomes the newest."""
        with self._lock:
            if attribution_id in self._entries:
                self._entries.move_to_end(attribution_id)
                return self._entries[attribution_id]
        raise make_not_found_error(
            "There is no explanation with this id, or newer ones have replaced it.",
            "Explain the text again.",
        )
