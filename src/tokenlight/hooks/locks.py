"""Locks on models and their parts, and points between passes where other work may run.

Two models may share a module or a config. Each part has a lock, so that models that share one are used by one
thread at a time, while models that share nothing run in parallel.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from tokenlight.errors import BadInput
from tokenlight.hooks.patching import patched_attributes

LOCK_TIMEOUT_SECONDS = 60.0
# A lock with its number. Every thread acquires locks in the order of their numbers.
OrderedLock = tuple[int, threading.RLock]
_registry_lock = threading.Lock()
_lock_numbers = count()
# This registry stays global: parts belong to several models, so no model can own their locks. Keys are ids,
# since configs have no hash; an entry is removed when its part dies.
_locks_by_id: dict[int, tuple[ReferenceType[Any], OrderedLock]] = {}


class _LockState(threading.local):
    callback: Callable[[], None] | None = None
    held_locks: tuple[int, ...] = ()  # numbers of the locks that this thread holds


# This stays thread-local: which locks are held is a fact about a thread, and a hook that explains another
# model inside a pass has no argument through which it could be told.
_lock_state = _LockState()


def get_locks(objects: Iterable[Any]) -> list[OrderedLock]:
    """Return the locks of ``objects`` in the order in which every thread must acquire them.

    Objects that have no lock yet share one new lock. An object that already has one, because another model
    uses it, keeps that. Objects are referenced weakly.
    """
    with _registry_lock:
        locks: dict[int, threading.RLock] = {}
        new_lock: OrderedLock = next(_lock_numbers), threading.RLock()
        for part in objects:
            # Removal takes no lock: Python may free a part while this thread holds the registry lock.
            reference = ref(part, partial(_locks_by_id.pop, id(part)))
            _, (number, lock) = _locks_by_id.setdefault(id(part), (reference, new_lock))
            locks[number] = lock
        return sorted(locks.items())


@contextmanager
def acquire_in_order(locks: Sequence[OrderedLock]) -> Iterator[None]:
    """Hold all ``locks`` inside the block.

    Raises:
        BadInput: If this thread already holds a later lock, as a hook does that explains another model,
            and the locks are not free within ``LOCK_TIMEOUT_SECONDS``. Waiting on could last forever.
    """
    held_locks = _lock_state.held_locks
    with ExitStack() as cleanup:
        for number, lock in locks:
            is_out_of_order = any(number < held for held in held_locks)
            timeout = LOCK_TIMEOUT_SECONDS if is_out_of_order else -1
            if not lock.acquire(timeout=timeout):
                raise BadInput(
                    "Deadlock: another thread is explaining a model that shares a part with this one, and "
                    "is waiting for the model from whose hook this call was made. Explain the models one "
                    "after the other.",
                    code="models-wait-for-each-other",
                )
            cleanup.callback(lock.release)
        new_locks = [number for number, _ in locks]
        all_held = (*held_locks, *new_locks)
        cleanup.enter_context(patched_attributes([_lock_state], held_locks=all_held))
        yield


def callback_between_passes(callback: Callable[[], None] | None) -> AbstractContextManager[None]:
    """Let :func:`call_between_passes` of this thread call ``callback`` inside the block.

    Args:
        callback: Lets other work run, for example; it may raise an error to end the passes.
    """
    return patched_attributes([_lock_state], callback=callback)


def call_between_passes() -> None:
    """Let other work run between two passes: call what :func:`callback_between_passes` set, if anything.

    Nothing is called while this thread holds the lock of a model, or inside the callback itself.
    """
    callback = _lock_state.callback
    if callback is not None and not _lock_state.held_locks:
        with callback_between_passes(None):
            callback()
