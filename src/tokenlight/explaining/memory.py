"""Whether attention maps fit into memory, estimated before the first pass."""

from collections.abc import Sequence

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TextTooLong
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.model.batch_inputs import get_shared_source_length
from tokenlight.model.memory import measure_free_memory
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.plan import Recompute, reads_maps_by_kernel
from tokenlight.trace.sites import ATTENTION_MAP_SITES, Site

# Bytes of maps beyond which none is kept: each is recomputed when it is read.
MAX_KEPT_MAP_BYTES = 1 << 34
# Bytes of maps so small that the free memory need not be asked for, which takes time on a GPU.
SMALL_MAP_BYTES = MAX_KEPT_MAP_BYTES // 16


def check_memory(runner: ModelRunner, rows: Sequence[TokenRow], options: ExplainOptions) -> None:
    """Refuse a text with attention maps, n × n in every head, that are larger than the free memory.

    Args:
        runner: The model to run.
        rows: Rows of one call; the longest decides.
        options: The methods: without one that reads attention maps nothing is checked.

    Raises:
        TextTooLong: The maps of all blocks do not fit; where maps are recomputed, those of one block.
    """
    map_methods = [
        method for method in options.methods if method.recorded_sites & ATTENTION_MAP_SITES
    ]
    # An image has a fixed number of patches, which fits if the model does.
    if not map_methods or not rows or runner.patch_inputs is not None:
        return
    num_tokens = max(map(len, rows))
    keeps_maps = _must_keep_maps(runner, options)
    needed_bytes = _estimate_peak_bytes(runner, num_tokens, keeps_maps=keeps_maps)
    if runner.device.type == "cuda" and needed_bytes < SMALL_MAP_BYTES:
        return
    free_bytes = measure_free_memory(runner.device)
    if needed_bytes > free_bytes:
        num_blocks = "every" if keeps_maps else "a"
        raise TextTooLong(
            f"{map_methods[0].name} reads the attention maps of {num_blocks} block at once. For a text of "
            f"{num_tokens:,} tokens these alone take {needed_bytes / 1e9:,.1f} GB, but only "
            f"{free_bytes / 1e9:,.1f} GB are free. Use attcat or attnlrp, which do not read maps, a shorter "
            "text, or long='stride'.",
            code="maps-exceed-memory",
        )


def _estimate_peak_bytes(runner: ModelRunner, num_tokens: int, *, keeps_maps: bool) -> int:
    """Estimate the bytes of the maps of one text that are in memory at the same time."""
    if keeps_maps:
        return estimate_map_bytes(runner, num_tokens)
    # The map of one block, its gradient and their product, in float32 or wider.
    element_bytes = max(4, runner.dtype.itemsize)
    return 3 * element_bytes * _count_map_elements(runner, num_tokens)


def choose_recompute(
    runner: ModelRunner, rows: Sequence[TokenRow], options: ExplainOptions
) -> Recompute:
    """Choose whether the attention maps of a batch are too large to be kept.

    They are then computed when they are read. Attention runs through fused kernels, which changes scores by
    no more than rounding.

    Args:
        runner: The model to run.
        rows: The rows of the batch.
        options: The methods, for what they read of attention.

    Returns:
        Maps alone where kernels read maps without storing one, so that the graph is hardly larger than that
        of the bare pass; else the blocks of the model as well.
    """
    if not options.recorded_sites & ATTENTION_MAP_SITES or _must_keep_maps(runner, options):
        return "nothing"
    if not _exceeds_memory(runner, rows):
        return "nothing"
    source_length = get_shared_source_length(rows)
    if reads_maps_by_kernel(runner, options.recorded_sites, source_length):
        # In half precision no map of any size is kept, and the pass may be replayed.
        return "nothing" if runner.is_half_precision_gpu else "maps"
    return "maps and blocks"


def _exceeds_memory(runner: ModelRunner, rows: Sequence[TokenRow]) -> bool:
    """Return whether the maps of a batch are too large to be kept."""
    needed_bytes = len(rows) * estimate_map_bytes(runner, max(map(len, rows)))
    if needed_bytes > MAX_KEPT_MAP_BYTES:
        return True
    return needed_bytes > SMALL_MAP_BYTES and needed_bytes > measure_free_memory(runner.device) // 2


def _must_keep_maps(runner: ModelRunner, options: ExplainOptions) -> bool:
    """Return whether the maps have to be kept, since nothing could compute them a second time.

    How blocks mix attention with their input is read during the pass itself. Eager attention computes every
    map anyway. An image has few patches, so that its maps are small.
    """
    needs_mixing = Site.MIXING in options.recorded_sites
    return needs_mixing or runner.attention_route == "eager" or runner.patch_inputs is not None


def estimate_map_bytes(runner: ModelRunner, num_tokens: int) -> int:
    """Estimate the bytes of all maps of one text where they are kept.

    Each map is kept as the model computes it, with its gradient, and as the softmax saves it for the
    backward pass (float32 or wider).
    """
    element_bytes = runner.dtype.itemsize
    # Of a wider dtype the saved softmax is the map itself.
    softmax_bytes = 4 if element_bytes < 4 else 0
    num_layers = _read_config_int(runner, "num_hidden_layers")
    return (
        num_layers * _count_map_elements(runner, num_tokens) * (2 * element_bytes + softmax_bytes)
    )


def _count_map_elements(runner: ModelRunner, num_tokens: int) -> int:
    """Return the number of elements in the maps of one block."""
    return _read_config_int(runner, "num_attention_heads") * num_tokens**2


def _read_config_int(runner: ModelRunner, name: str) -> int:
    return int(getattr(runner.model.config.get_text_config(), name, 0) or 0)
