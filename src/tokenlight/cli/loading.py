"""A model for a command, loaded without the chatter of the libraries."""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any

from tokenlight.cli.console import tell
from tokenlight.progress import progress

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer


def hushed(*, verbose: bool) -> None:
    """Only tokenlight speaks from here on: no bars, retries or advice of transformers and its hub."""
    if verbose:
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel("ERROR")


def loaded(
    name: str,
    *,
    batch: tuple[int | None, int | None] = (None, None),
    verbose: bool = False,
    **how: Any,
) -> Explainer:
    """The Explainer of a model, ``how`` as from_pretrained takes it; a bar on the terminal while it
    loads. ``batch``: most tokens and most texts that go through it at once."""
    with progress(f"loading {name}", None):
        hushed(verbose=verbose)
        from tokenlight.explainer import Explainer

        explainer = Explainer.from_pretrained(name, **how)
    live = explainer.live
    live.batch_tokens, live.batch_size = batch
    if how.get("device") is None and live.device.type == "cuda":
        tell(f"computing on the GPU ({live.device}); --device cpu takes the processor")
    return explainer
