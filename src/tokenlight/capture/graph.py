"""The graph of a pass: blocks computed again on the way back, so that memory holds the graph of one
instead of all of them, and layers that break it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tokenlight.capture.turns import hooked, lent
from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.tracing import modules_of

NOTE = "memory did not hold the pass as a whole: each block was computed again on the way back"
Around = Callable[[], AbstractContextManager[Any]]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that transformers itself would compute again in training."""
    return [one for one in modules_of(model) if isinstance(one, GradientCheckpointingLayer)]


@contextmanager
def recomputed(model: nn.Module, again: Around) -> Iterator[None]:
    """Within: of each block the input alone is kept. ``again`` surrounds its further computations."""
    with ExitStack() as undo:
        for block in blocks_of(model):
            undo.enter_context(lent([block], forward=partial(_anew, block.forward, again)))
        yield


def _anew(forward: Callable[..., Any], again: Around, *given: Any, **named: Any) -> Any:
    around: Iterator[Around] = chain(
        [nullcontext], repeat(again)
    )  # as often as the graph is gone down

    def run(*given: Any, **named: Any) -> Any:
        with next(around)():
            return forward(*given, **named)

    # Evaluation mode draws nothing.
    return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False, **named)


def breaks_refused(model: nn.Module, modules: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Within: a layer through which no gradient goes, though what it gives depends on what it is given,
    is refused: gradients would be those of another model, mostly zero, and nobody would know."""
    leaves = [module for module in modules if not module._modules]
    return hooked(leaves, leaving=partial(_look, model))


def _look(model: nn.Module, module: nn.Module, args: Any, named: Any, output: Any) -> None:
    def turned(value: Any) -> Any:
        return (
            value.detach().flip(-1) if isinstance(value, Tensor) and value.requires_grad else value
        )

    lost = isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad
    given = (*args, *named.values())
    # Where gradients are off, somebody turned them off and knows.
    if not lost or not torch.is_grad_enabled() or all(turned(value) is value for value in given):
        return
    with torch.no_grad():
        other = module.forward(*map(turned, args), **{k: turned(v) for k, v in named.items()})
    if torch.equal(output, other):  # it reads a shape alone, as a table of positions may
        return
    path = next(name for name, one in model.named_modules() if one is module)
    raise UnsupportedModel(
        f"the layer {path} ({type(module).__name__}) of {type(model).__name__} hands no gradient on, "
        "as kernels of weights packed for inference do (bitsandbytes in four bits): most of what the "
        "model does with its tokens would be left out. Load the model without that quantisation, or "
        "use a method that needs no gradient, such as occlusion or shapley."
    )
