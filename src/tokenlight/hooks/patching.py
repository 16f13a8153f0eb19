"""Temporary changes of objects and modules, undone at the end of a ``with`` block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def patched_attributes(owners: Sequence[Any], **values: Any) -> Iterator[None]:
    """Set attributes of ``owners`` inside the block.

    Args:
        owners: Objects that get the same attributes.
        **values: Names and values of the attributes. One that an owner takes from its class is removed
            again at the end.
    """
    previous: list[tuple[Any, str, Any, bool]] = []
    for owner in owners:
        for name in values:
            is_instance_attribute = name in vars(owner)
            previous.append((owner, name, getattr(owner, name, None), is_instance_attribute))
    try:
        for owner, name, *_ in previous:
            setattr(owner, name, values[name])
        yield
    finally:
        for owner, name, value, is_instance_attribute in previous:
            # The setter runs in any case: some attributes are properties that do more than store.
            setattr(owner, name, value)
            if not is_instance_attribute:
                vars(owner).pop(name, None)


@contextmanager
def forward_hooks(
    modules: Iterable[nn.Module],
    *,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Register hooks on ``modules`` inside the block.

    Args:
        modules: The modules.
        pre_hook: Called as ``pre_hook(module, args, kwargs)`` before a module runs. What it returns
            replaces the arguments.
        post_hook: Called as ``post_hook(module, args, kwargs, output)`` afterwards. What it returns
            replaces the output.
    """
    with ExitStack() as cleanup:
        for module in modules:
            if pre_hook is not None:
                handle = module.register_forward_pre_hook(pre_hook, with_kwargs=True)
                cleanup.callback(handle.remove)
            if post_hook is not None:
                handle = module.register_forward_hook(post_hook, with_kwargs=True)
                cleanup.callback(handle.remove)
        yield
