"""Loans: what a model has within a ``with`` alone, attributes of other values and hooks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


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
