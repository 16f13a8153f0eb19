"""The Transformer blocks of a model: list them, and compute each of them again in the backward pass."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from tokenlight.accel.modules import list_modules
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.compat import tree_leaves, tree_map
from tokenlight.hooks.patching import forward_hooks, patched_attributes

RECOMPUTED_NOTE = (
    "there was too little memory for the whole pass: each block was computed again in the "
    "backward pass"
)
ContextFactory = Callable[[], AbstractContextManager[Any]]


def list_blocks(model: nn.Module) -> list[nn.Module]:
    """List the blocks that transformers itself computes again under gradient checkpointing."""
    modules = list_modules(model)
    return [module for module in modules if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def captured_first_block_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Capture the first tensor that the first block of ``module`` takes; the list has at most one."""
    captured: list[Tensor] = []

    def capture(_module: nn.Module, args: Any, kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and not captured:
                captured.append(value)

    with forward_hooks(list_blocks(module)[:1], pre_hook=capture):
        yield captured


@contextmanager
def recomputed_blocks(model: nn.Module, recompute_context: ContextFactory) -> Iterator[None]:
    """Keep only the input of each block, and compute the block again in the backward pass.

    torch's own checkpoints would keep the recomputed tensors of all blocks: a backward pass by rules
    reads only some of what a gradient reads, and the other way round. Here the tensors of one block are
    kept at a time.

    Args:
        model: The model.
        recompute_context: Surrounds each recomputation.
    """
    recomputed = _RecomputedBlock()
    with ExitStack() as cleanup:
        for block in list_blocks(model):
            checkpoint = _BlockCheckpoint(block.forward, recompute_context, recomputed)
            cleanup.enter_context(patched_attributes([block], forward=checkpoint))
        yield


@dataclass
class _RecomputedBlock:
    """The saved tensors of the block that was computed again last, except those already read.

    Attributes:
        call_identity: The ``identity`` of the call whose tensors these are.
        saved_tensors: By position in the order of saving.
        lock: Autograd may read from several threads.
    """

    call_identity: object = None
    saved_tensors: dict[int, Tensor] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, eq=False)
class _BlockCheckpoint:
    """Replaces ``forward`` of a block; its saved tensors are computed when autograd reads them."""

    forward: Callable[..., Any]
    recompute_context: ContextFactory
    recomputed: _RecomputedBlock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = _BlockCall(
            checkpoint=self,
            args=args,
            kwargs=kwargs,
            autocast=_get_autocast_factory((args, kwargs)),
        )
        with torch.autograd.graph.saved_tensors_hooks(call.save_position, call.load_tensor):
            return self.forward(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class _BlockCall:
    """One call of a block, with what is needed to compute it again."""

    checkpoint: _BlockCheckpoint
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: ContextFactory
    shapes: list[torch.Size] = field(default_factory=list)
    # Compared by identity. The shared _RecomputedBlock holds this instead of the call, and so does not hold
    # the graph that belongs to the call.
    identity: object = field(default_factory=object)

    def save_position(self, tensor: Tensor) -> int:
        """Save the position of a tensor instead of the tensor itself."""
        self.shapes.append(tensor.shape)
        return len(self.shapes) - 1

    def load_tensor(self, position: int) -> Tensor:
        """Return the tensor saved at ``position``, and compute the block again if it is not there."""
        recomputed = self.checkpoint.recomputed
        with recomputed.lock:
            is_other_call = recomputed.call_identity is not self.identity
            if is_other_call or position not in recomputed.saved_tensors:
                recomputed.call_identity = self.identity
                recomputed.saved_tensors = {}
                self._recompute(recomputed.saved_tensors)
            return recomputed.saved_tensors.pop(position)

    def _recompute(self, saved_tensors: dict[int, Tensor]) -> None:
        def save(tensor: Tensor) -> None:
            if tensor.shape != self.shapes[len(saved_tensors)]:
                raise UnsupportedModel(
                    "A block gives a different result when it is recomputed, so its gradient is unknown. "
                    "Use a method that needs no gradient, such as occlusion.",
                    code="block-not-repeatable",
                )
            saved_tensors[len(saved_tensors)] = tensor.detach()
            if len(saved_tensors) == len(self.shapes):
                raise _AllTensorsSaved

        hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda nothing: nothing)
        with suppress(_AllTensorsSaved), torch.enable_grad():
            args, kwargs = tree_map(_detach_input, (self.args, self.kwargs))
            with self.autocast(), self.checkpoint.recompute_context(), hooks:
                self.checkpoint.forward(*args, **kwargs)


class _AllTensorsSaved(Exception):
    """Ends a recomputation once everything that the block saves is there."""


def _get_autocast_factory(arguments: Any) -> ContextFactory:
    """Return a factory of the autocast context that is active now on the device of ``arguments``."""
    tensors = (leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor))
    first = next(tensors, None)
    device_type = "cpu" if first is None else first.device.type
    if not torch.is_autocast_enabled(device_type):
        return nullcontext
    return partial(torch.autocast, device_type, torch.get_autocast_dtype(device_type))


def _detach_input(value: Any) -> Any:
    """Cut an input off the graph; the result is no leaf, since leaves must not be overwritten."""
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach().requires_grad_(True).clone()
    return value
