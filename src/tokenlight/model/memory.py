"""How much memory further passes may take, estimated before they run."""

from pathlib import Path
from typing import Any

import torch

# Further passes are packed until they are estimated to take this much, or as much as the recorded pass if
# that is more.
MAX_PACK_BYTES = 4 << 30
# On a GPU, where a small batch of a large model takes as long as a larger one, they may also take this share
# of the free memory: eight passes over 512 tokens of an 8B model took twice as long one by one.
PLENTIFUL_SHARE = 0.25
# Of the free memory, further passes take at most this share, whatever else allows more.
FREE_SHARE = 0.5
# Estimates so small that the free memory need not be asked for, which takes time on a GPU.
SMALL_PACK_BYTES = 1 << 28
# Vectors as wide as the hidden states, and as the feed-forward layer, that a block has in memory for each
# token: all that it saves for the backward pass, or the largest that are there at once without one.
GRAPH_VECTORS = 16, 4
NO_GRAPH_VECTORS = 8, 3
UNKNOWN_FREE_BYTES = 1 << 62
MEMINFO = Path("/proc/meminfo")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device, or the machine itself, has no memory left."""
    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def limit_pack_tokens(
    runner: Any, num_tokens: int, *, gradients: bool, recorded_tokens: int
) -> int:
    """Return how many tokens further passes may run at once; never fewer where more memory is free.

    Args:
        runner: The model, a ModelRunner.
        num_tokens: Number of tokens that the caller asks for at most.
        gradients: Whether the passes are followed by backward passes.
        recorded_tokens: Tokens of a pass that is known to fit.

    Returns:
        ``num_tokens`` or fewer, at least 1.
    """
    token_bytes = estimate_token_bytes(runner, gradients=gradients)
    if num_tokens * token_bytes <= SMALL_PACK_BYTES:
        return num_tokens
    free_bytes = measure_free_memory(runner.device)
    max_bytes = max(MAX_PACK_BYTES, recorded_tokens * token_bytes)
    if runner.device.type == "cuda":
        max_bytes = max(max_bytes, int(PLENTIFUL_SHARE * free_bytes))
    max_bytes = min(max_bytes, int(FREE_SHARE * free_bytes))
    return max(1, min(num_tokens, max_bytes // token_bytes))


def estimate_token_bytes(runner: Any, *, gradients: bool) -> int:
    """Estimate the bytes that one token of a pass takes; 0 if the config names no sizes."""
    config = runner.model.config.get_text_config()
    hidden_size = getattr(config, "hidden_size", 0) or 0
    inner_size = getattr(config, "intermediate_size", 0) or 4 * hidden_size
    num_hidden, num_inner = GRAPH_VECTORS if gradients else NO_GRAPH_VECTORS
    num_layers = 1
    if gradients:
        num_layers = getattr(config, "num_hidden_layers", 0) or 1
    num_values = num_layers * (num_hidden * hidden_size + num_inner * inner_size)
    return int(num_values * runner.dtype.itemsize)


def measure_free_memory(device: torch.device) -> int:
    """Return the free memory on ``device``, in bytes; a very large number where it is not known."""
    if device.type == "cuda":
        # PyTorch keeps freed memory for itself; it is free all the same.
        cached_bytes = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached_bytes
    if device.type == "cpu" and MEMINFO.is_file():
        for line in MEMINFO.read_text("ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                kibibytes = int(value.split()[0])
                return kibibytes << 10
    return UNKNOWN_FREE_BYTES
