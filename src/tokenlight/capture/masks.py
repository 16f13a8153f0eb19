"""What transformers asks of a mask before it takes a kernel that needs none, answered by who made it: asked
of a GPU, it would wait for all that is queued there, and no pass that asks could be replayed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial, wraps
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from tokenlight.capture.transfer import Unrepeatable, repeating
from tokenlight.capture.turns import lent
from tokenlight.data.tokens import TokenRow

QUESTIONS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")


class _Known(threading.local):
    known: tuple[torch.Size, bool] | None = None


_thread = _Known()
_guard = threading.Lock()
_answered = ExitStack()  # puts back what transformers asks with, once no thread is within
_within: list[int] = []  # threads


@contextmanager
def mask_known(rows: Sequence[TokenRow], shape: torch.Size) -> Iterator[None]:
    """Within, on this thread: it is known whether the padding mask of ``rows``, of ``shape``, hides anything.
    Of a model that reads several things, each has a mask of its own."""
    if any(row.source is not None or row.image is not None for row in rows):
        yield
        return
    whole = all(len(row) == shape[1] and row.all_seen for row in rows)
    with _guard:
        if not _within:
            asked = {n: getattr(masking_utils, n, None) for n in QUESTIONS}
            answers = {name: _answering(ask) for name, ask in asked.items() if ask is not None}
            _answered.enter_context(lent([masking_utils], **answers))
        _within.append(threading.get_ident())
    try:
        with lent([_thread], known=(shape, whole)):
            yield
    finally:
        with _guard:
            _within.remove(threading.get_ident())
            if not _within:
                _answered.close()


@lru_cache(maxsize=8)
def _answering(ask: Callable[..., Any]) -> Callable[..., Any]:
    # While a pass is recorded transformers takes no such kernel: it is told what it said before.
    of_none = lru_cache(maxsize=4096)(partial(ask, None))

    @wraps(ask)
    def answer(padding_mask: Tensor | None, *more: Any, **named: Any) -> Any:
        if padding_mask is not None and _thread.known is not None:
            shape, whole = _thread.known
            if padding_mask.shape == shape:
                return of_none(*more, **named) if whole else False
            if repeating():
                raise Unrepeatable
        return ask(padding_mask, *more, **named)

    return answer
