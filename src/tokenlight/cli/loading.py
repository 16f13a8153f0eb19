"""A model for a command, loaded without the chatter of the libraries."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from logging import getLogger
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer


def loaded(name: str, *, device: str | None = None, verbose: bool = False) -> Explainer:
    """The Explainer of a model; a spinner on the terminal while it loads."""
    from tokenlight.plots.terminal import console_on

    with console_on(sys.stderr).status(f"loading {name}") if sys.stderr.isatty() else nullcontext():
        from transformers.utils import logging

        if not verbose:
            logging.set_verbosity_error()
            logging.disable_progress_bar()
            getLogger("huggingface_hub").setLevel("ERROR")
        from tokenlight.explainer import Explainer

        return Explainer.from_pretrained(name, device=device)
