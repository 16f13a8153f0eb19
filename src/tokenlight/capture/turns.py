"""Turns and loans: what a thread has of a model within a ``with`` alone. What two models share is used by
one thread at a time; between two passes whoever drives the work may do something else first."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from torch import nn

from tokenlight.errors import BadInput

PATIENCE = 60.0  # seconds
Numbered = tuple[int, threading.RLock]
_guard = threading.Lock()
_numbers = count()
# By the id of a part, since configs have no hash; each forgets its place as it dies.
_held: dict[int, tuple[ReferenceType[Any], Numbered]] = {}


class _Here(threading.local):
    between: Callable[[], None] | None = None
    holds: tuple[int, ...] = ()  # numbers of locks


_here = _Here()


def locks_of(parts: Iterable[Any]) -> list[Numbered]:
    """The locks of all ``parts``, which are held weakly, in the one order in which every thread must take
    them. Parts that come together first get one lock; one that holds another model's has that, too."""
    with _guard:
        found: dict[int, threading.RLock] = {}
        own: Numbered = next(_numbers), threading.RLock()
        for part in parts:
            # No lock is taken to forget it: Python may let a part go while one is held.
            weak = ref(part, partial(_held.pop, id(part)))
            found.update((_held.setdefault(id(part), (weak, own))[1],))
        return sorted(found.items())


@contextmanager
def taken(locks: Sequence[Numbered]) -> Iterator[None]:
    """Within: all ``locks`` are held, taken in their order. A thread that holds some already (a hook that
    explains another model) cannot keep to the order, and is refused rather than left waiting for ever."""
    mine = _here.holds
    with ExitStack() as undo:
        for number, lock in locks:
            waits = PATIENCE if any(number < held for held in mine) else -1
            if not lock.acquire(timeout=waits):
                raise BadInput(
                    "this model shares a part with one that another thread explains, and that thread "
                    "waits for a model that is explained around this call, in a hook; explain one "
                    "after the other."
                )
            undo.callback(lock.release)
        undo.enter_context(lent([_here], holds=(*mine, *(number for number, _ in locks))))
        yield


@contextmanager
def lent(owners: Sequence[Any], **values: Any) -> Iterator[None]:
    """Within: each of ``owners`` has ``values`` as its attributes."""
    before = [
        (owner, name, getattr(owner, name, None), name in vars(owner))
        for owner in owners
        for name in values
    ]
    try:
        for owner, name, *_ in before:
            setattr(owner, name, values[name])
        yield
    finally:
        for owner, name, own, held in before:
            setattr(owner, name, own)
            if not held:  # it was the class's
                vars(owner).pop(name, None)


@contextmanager
def hooked(
    modules: Iterable[nn.Module],
    *,
    entering: Callable[..., Any] | None = None,
    leaving: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Within: ``entering(module, arguments, named)`` is called before each module runs, and
    ``leaving(module, arguments, named, output)`` behind it; what they return takes the place."""
    with ExitStack() as undo:
        for module in modules:
            if entering is not None:
                hook = module.register_forward_pre_hook(entering, with_kwargs=True)
                undo.callback(hook.remove)
            if leaving is not None:
                undo.callback(module.register_forward_hook(leaving, with_kwargs=True).remove)
        yield


def pausing(between: Callable[[], None] | None) -> AbstractContextManager[None]:
    """Within, on this thread, ``between``, if any, is called from pass to pass; it ends them by raising."""
    return lent([_here], between=between)


def pause() -> None:
    """A place to pause, passed over where this thread holds a model; what is done in one makes none."""
    between = _here.between
    if between is not None and not _here.holds:
        with pausing(None):
            between()
