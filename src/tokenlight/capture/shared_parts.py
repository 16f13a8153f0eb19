"""Locks by parts: what two models share, an encoder or a config, is used by one thread at a time."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from tokenlight.errors import BadInput

Numbered = tuple[int, threading.RLock]
PATIENCE = 60.0  # seconds
_here = threading.local()  # numbers of the locks this thread holds
_guard = threading.Lock()
_numbers = count()
# By the id of a part, since configs have no hash; each forgets its place as it dies.
_held: dict[int, tuple[ReferenceType[Any], Numbered]] = {}


def locks_of(parts: Iterable[Any]) -> list[Numbered]:
    """The locks of all ``parts``, in the one order in which every thread must take them.

    Parts that come together for the first time get one lock together, so a model that shares
    nothing has a single lock; one that holds parts of another model has that model's, too. Parts are
    held weakly.
    """
    with _guard:
        found: dict[int, threading.RLock] = {}
        own: Numbered = next(_numbers), threading.RLock()
        for part in parts:
            place = id(part)
            known = _held.get(place)
            if known is None or known[0]() is not part:
                known = _held[place] = ref(part, partial(_forget, place)), own
            found.update((known[1],))
        return sorted(found.items())


@contextmanager
def taken(locks: Sequence[Numbered]) -> Iterator[None]:
    """Within: all ``locks`` are held, taken in their order.

    A thread that holds a later one already (a hook that explains another model) cannot keep to the
    order: it waits for a while, and is refused rather than left waiting for ever.
    """
    mine: list[int] = _here.__dict__.setdefault("numbers", [])
    before = len(mine)
    with ExitStack() as undo:
        for number, lock in locks:
            waits = PATIENCE if any(number < held for held in mine[:before]) else -1
            if not lock.acquire(timeout=waits):
                raise BadInput(
                    "this model shares a part with one that another thread explains, and that thread "
                    "waits for a model that is explained around this call, in a hook; explain one "
                    "after the other."
                )
            undo.callback(lock.release)
            mine.append(number)
            undo.callback(mine.pop)
        yield


def holding() -> bool:
    """Whether this thread holds any lock, so that a model is not as it was loaded."""
    return bool(_here.__dict__.get("numbers"))


def _forget(place: int, gone: ReferenceType[Any]) -> None:
    # No lock is taken: this runs wherever Python lets the part go, maybe while one is held.
    known = _held.get(place)
    if known is not None and known[0] is gone:
        del _held[place]
