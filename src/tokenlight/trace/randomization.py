"""Copies of a model with redrawn weights, stage by stage, for the cascading randomization check."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.model.runner import ModelRunner


def randomize_cascade(runner: ModelRunner, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Redraw the weights of a copy, stage by stage from the head down.

    Each tensor is drawn from a normal distribution with its own mean and standard deviation.

    Args:
        runner: The model, which stays as it is.
        seed: Seed of the random weights.

    Yields:
        The name of the stage, and the copy with all weights down to it redrawn. All stages yield the
        same copy, which changes from one to the next.
    """
    randomized = copy.deepcopy(runner.model)
    weights = dict(randomized.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    for stage, weight_names in list_stages(runner):
        with torch.no_grad():
            for name in weight_names:
                _redraw(weights[name], generator)
        yield stage, randomized


def _redraw(weight: Tensor, generator: torch.Generator) -> None:
    mean = float(weight.float().mean())
    deviation = float(weight.float().std(correction=0))
    drawn = torch.randn(weight.shape, generator=generator) * deviation + mean
    weight.copy_(drawn.to(weight.device, weight.dtype))


def list_stages(runner: ModelRunner) -> list[tuple[str, list[str]]]:
    """List stages from the head down, each with the names of its weights.

    A model whose blocks cannot be found has a single stage.
    """
    names = _list_float_weights(runner.model)
    num_blocks = getattr(runner.model.config.get_text_config(), "num_hidden_layers", None)
    blocks_path = _find_blocks(runner.model, num_blocks)
    if not blocks_path:
        return [("all weights", names)]
    in_blocks = [i for i, name in enumerate(names) if name.startswith(f"{blocks_path}.")]
    stages = [("head", names[in_blocks[-1] + 1 :])]
    for block in reversed(range(num_blocks or 0)):
        prefix = f"{blocks_path}.{block}."
        stages.append((f"block {block}", [name for name in names if name.startswith(prefix)]))
    stages.append(("embeddings", names[: in_blocks[0]]))
    return [(stage, weight_names) for stage, weight_names in stages if weight_names]


def _list_float_weights(model: nn.Module) -> list[str]:
    """List the names of weights that can be drawn from a normal distribution."""
    return [name for name, weight in model.named_parameters() if weight.is_floating_point()]


def _find_blocks(model: nn.Module, num_blocks: int | None) -> str | None:
    """Find the path of the first list of modules with one module per block."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_blocks:
            return str(path)
    return None
