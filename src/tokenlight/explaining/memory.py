"""Whether attention maps fit into memory, and whether they are kept; asked before the first pass."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tokenlight.capture.live import LiveModel
from tokenlight.capture.tape import MAPS, Site
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TextTooLong, long_way
from tokenlight.explaining.options import How

# Bytes of maps beyond which none is kept: each is made again when it is read.
LARGE = 1 << 34


def check_memory(live: LiveModel, rows: Sequence[TokenRow], how: How) -> None:
    """Refuse a text whose maps alone, n × n in every head, are larger than what is free: those of every
    block, or of one where none is kept."""
    mapped = [method for method in how.methods if method.sites & MAPS]
    if not mapped or not rows or live.patches is not None:
        return
    longest, kept = max(map(len, rows)), _must_be_kept(live, how)
    # Where none is kept: a map, its gradient and their product, float32 or wider.
    one = 3 * max(4, live.dtype.itemsize) * _cells(live, longest)
    need = map_bytes(live, longest) if kept else one
    if live.device.type == "cuda" and need < LARGE // 16:
        return  # a GPU takes its time to answer
    if need > (free := free_bytes(live.device)):
        raise TextTooLong(
            f"{mapped[0].name} reads the attention maps of {'every' if kept else 'a'} block at once, and "
            f"for a text of {longest:,} tokens these alone take {need / 1e9:,.1f} GB, where "
            f"{free / 1e9:,.1f} GB are free. Use attcat or attnlrp, which read none, a shorter text, or "
            f"{long_way('stride')}."
        )


def maps_are_large(live: LiveModel, rows: Sequence[TokenRow], how: How) -> bool:
    """Whether the maps of a batch are better made again than kept, where they can be; attention then runs
    through fused kernels, which changes scores by no more than their dtype's rounding."""
    if not any(method.sites & MAPS for method in how.methods) or _must_be_kept(live, how):
        return False
    need = len(rows) * map_bytes(live, max(map(len, rows)))
    return need > LARGE or (need > LARGE // 16 and need > free_bytes(live.device) // 2)


def _must_be_kept(live: LiveModel, how: How) -> bool:
    mixes = any(Site.MIXING in method.sites for method in how.methods)
    return mixes or live.route == "eager" or live.patches is not None


def map_bytes(live: LiveModel, tokens: int) -> int:
    """What the maps of one text take at least where they are kept: as the model computes them, as its
    softmax keeps them for the way back (float32 or wider), and their gradients."""
    own = live.dtype.itemsize
    softmax = 4 if own < 4 else 0  # of a wider dtype it is the map itself
    return _of_config(live, "num_hidden_layers") * _cells(live, tokens) * (2 * own + softmax)


def _cells(live: LiveModel, tokens: int) -> int:
    return _of_config(live, "num_attention_heads") * tokens**2


def _of_config(live: LiveModel, name: str) -> int:
    return int(getattr(live.model.config.get_text_config(), name, 0) or 0)


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
