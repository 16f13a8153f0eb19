"""Answer what transformers asks about a padding mask, without reading the mask from the device.

Before transformers runs an SDPA kernel without a mask, two of its functions check whether the padding mask
masks anything. On a GPU this waits for all queued work, and a pass that waits cannot be captured as a CUDA
graph. We know the answer from the rows of the batch.

The functions are called by the mask code of transformers, which knows no model, so they cannot be replaced
for one instance: while any thread records a pass, they are replaced for the whole process. The replacement
answers only for a mask of the shape of the current thread's batch. All other calls, also those of other
threads, go to the original function, and the originals return when the last recording ends (see ADR 0003).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial, wraps
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from tokenlight.accel.executor import get_current_executor
from tokenlight.data.tokens import TokenRow
from tokenlight.hooks.compat import find_mask_checks
from tokenlight.hooks.patching import patched_attributes


class _MaskState(threading.local):
    shape: torch.Size | None = None  # of the padding mask; None if nothing is known of it
    is_full: bool = False  # whether it masks nothing


# This stays thread-local: transformers calls the replaced functions with a fixed signature.
_mask_state = _MaskState()
# The patch is shared by all threads that record: the first one applies it, the last one removes it.
_patch_lock = threading.Lock()
_active_patch = ExitStack()
_active_threads: list[int] = []


@contextmanager
def answered_mask_checks(
    rows: Sequence[TokenRow], shape: torch.Size, *, has_padding: bool
) -> Iterator[None]:
    """Answer mask checks of this thread from ``rows`` inside the block.

    Args:
        rows: The rows of the batch. Nothing is answered for models that read several inputs, each with a
            mask of its own.
        shape: The shape of their padding mask, ``batch token``.
        has_padding: Whether a row is shorter than the batch.
    """
    if any(row.source_length is not None or row.image is not None for row in rows):
        yield
        return
    is_full = not has_padding and all(row.is_unmasked for row in rows)
    with _patched_mask_checks(), patched_attributes([_mask_state], shape=shape, is_full=is_full):
        yield


@contextmanager
def _patched_mask_checks() -> Iterator[None]:
    """Replace the mask checks of transformers while at least one thread is inside such a block."""
    with _patch_lock:
        if not _active_threads:
            replacements: dict[str, Callable[..., Any]] = {}
            for name, check in find_mask_checks().items():
                replacements[name] = _wrap_mask_check(check)
            _active_patch.enter_context(patched_attributes([masking_utils], **replacements))
        _active_threads.append(threading.get_ident())
    try:
        yield
    finally:
        with _patch_lock:
            _active_threads.remove(threading.get_ident())
            if not _active_threads:
                _active_patch.close()


@lru_cache(maxsize=8)
def _wrap_mask_check(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``check`` with an answer that does not read the mask of the current batch."""
    # During a capture transformers always answers False; the answer of an eager pass is kept for it.
    check_without_mask = lru_cache(maxsize=4096)(partial(check, None))

    @wraps(check)
    def answer(padding_mask: Tensor | None, *args: Any, **kwargs: Any) -> Any:
        if padding_mask is None or _mask_state.shape is None:
            return check(padding_mask, *args, **kwargs)
        if padding_mask.shape == _mask_state.shape:
            if _mask_state.is_full:
                return check_without_mask(*args, **kwargs)
            return False
        # Another mask, which must be read.
        get_current_executor().check_can_read()
        return check(padding_mask, *args, **kwargs)

    return answer
