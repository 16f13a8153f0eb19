"""tokenlight: which tokens made a Transformer decide, for or against, and can that be trusted?

Names are loaded when first used, so ``import tokenlight`` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenlight.data.answers import SpanTarget
    from tokenlight.data.attribution import Attribution
    from tokenlight.data.target import Above, Continuation, Contrast, NextToken, TokenTarget
    from tokenlight.data.tokens import Question, Tokens
    from tokenlight.explainer import Explainer
    from tokenlight.files.saved import load, save
    from tokenlight.inputs.context import Context
    from tokenlight.inputs.picture import Picture
    from tokenlight.inputs.prompt import Chat

    __version__: str

_HOMES = {
    "data.answers": ("SpanTarget",),
    "data.attribution": ("Attribution",),
    "data.target": ("Above", "Continuation", "Contrast", "NextToken", "TokenTarget"),
    "data.tokens": ("Question", "Tokens"),
    "explainer": ("Explainer",),
    "files.saved": ("load", "save"),
    "inputs.context": ("Context",),
    "inputs.picture": ("Picture",),
    "inputs.prompt": ("Chat",),
}
__all__ = [
    "Above", "Attribution", "Chat", "Context", "Continuation", "Contrast", "Explainer", "NextToken",
    "Picture", "Question", "SpanTarget", "TokenTarget", "Tokens", "load", "save",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("tokenlight.version").VERSION
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"tokenlight.{home}"), name)
    raise AttributeError(f"module 'tokenlight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
