"""Whether a method's attention maps fit into memory, asked before the first pass."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tokenlight.capture.live import LiveModel
from tokenlight.capture.tape import MAPS, Site
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TextTooLong, long_way
from tokenlight.explaining.options import How


def check_memory(live: LiveModel, rows: Sequence[TokenRow], how: How) -> None:
    """Refuse a text whose maps alone, n × n in every head of every block, are larger than what is free."""
    mapped = [method for method in how.methods if method.sites & MAPS]
    if not mapped or not rows or live.patches is not None:
        return
    longest = max(map(len, rows))
    gradients = any({Site.ATTENTION_GRADIENT, Site.RELEVANCE} & one.sites for one in mapped)
    need, free = map_bytes(live, longest, gradients=gradients), free_bytes(live.device)
    if need > free:
        raise TextTooLong(
            f"{mapped[0].name} keeps the attention maps of every block, and for a text of {longest:,} "
            f"tokens these alone take {need / 1e9:,.1f} GB, where {free / 1e9:,.1f} GB are free. Use "
            f"attcat or attnlrp, which keep none, a shorter text, or {long_way('stride')}."
        )


def map_bytes(live: LiveModel, tokens: int, *, gradients: bool) -> int:
    """What the maps of one text take at least: as the model computes them, as its softmax keeps them for the
    way back (float32 or wider), and their gradients."""
    config = live.model.config.get_text_config()
    heads, blocks = (getattr(config, n, 0) for n in ("num_attention_heads", "num_hidden_layers"))
    own = live.dtype.itemsize
    softmax = 4 if own < 4 else 0  # of a wider dtype it is the map itself
    kept = 2 * own + softmax if gradients else own
    return int((heads or 0) * (blocks or 0) * tokens**2 * kept)


def free_bytes(device: torch.device) -> int:
    """Memory that nobody uses."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    known = Path("/proc/meminfo")
    if device.type == "cpu" and known.is_file():
        lines = dict(line.split(":") for line in known.read_text("ascii").splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    return 1 << 62  # not known: the first pass will tell
