"""Blocks computed again on the way back: memory for the graph of one block instead of all of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tokenlight.relevance.tracing import modules_of

NOTE = "memory did not hold the pass as a whole: each block was computed again on the way back"


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that transformers itself would compute again in training."""
    return [one for one in modules_of(model) if isinstance(one, GradientCheckpointingLayer)]


class _Anew:
    """A context that can be entered as often as the graph is gone down."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._entered = make, list[AbstractContextManager[Any]]()

    def __enter__(self) -> None:
        self._entered.append(self._make())
        self._entered[-1].__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


@contextmanager
def recomputed(
    model: nn.Module, again: Callable[[], AbstractContextManager[Any]]
) -> Iterator[None]:
    """Within: of each block the input alone is kept. ``again``: what surrounds the second computation, so
    that it is the first one's like."""
    blocks = blocks_of(model)
    before = [block.__dict__.get("forward") for block in blocks]
    try:
        for block in blocks:
            block.__dict__["forward"] = partial(
                checkpoint,
                block.forward,
                use_reentrant=False,
                preserve_rng_state=False,  # evaluation mode draws nothing
                context_fn=lambda: (nullcontext(), _Anew(again)),
            )
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            block.__dict__.pop("forward", None)
            if own is not None:
                block.__dict__["forward"] = own
