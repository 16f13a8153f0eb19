"""tokenlight: which tokens made a Transformer decide, for or against, and can that be trusted?

Names are loaded when first used, so ``import tokenlight`` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenlight.data.answers import SpanTarget as SpanTarget
    from tokenlight.data.attribution import Attribution as Attribution
    from tokenlight.data.target import Above as Above
    from tokenlight.data.target import Continuation as Continuation
    from tokenlight.data.target import Contrast as Contrast
    from tokenlight.data.target import NextToken as NextToken
    from tokenlight.data.target import TokenTarget as TokenTarget
    from tokenlight.data.tokens import Question as Question
    from tokenlight.data.tokens import Tokens as Tokens
    from tokenlight.explainer import Explainer as Explainer
    from tokenlight.files.saved import load as load
    from tokenlight.files.saved import save as save
    from tokenlight.inputs.picture import Picture as Picture
    from tokenlight.inputs.prompt import Chat as Chat
    from tokenlight.inputs.prompt import Context as Context

    __version__: str

_HOMES = {
    "data.answers": ("SpanTarget",),
    "data.attribution": ("Attribution",),
    "data.target": ("Above", "Continuation", "Contrast", "NextToken", "TokenTarget"),
    "data.tokens": ("Question", "Tokens"),
    "explainer": ("Explainer",),
    "files.saved": ("load", "save"),
    "inputs.picture": ("Picture",),
    "inputs.prompt": ("Chat", "Context"),
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("tokenlight.version").VERSION
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"tokenlight.{home}"), name)
    raise AttributeError(f"module 'tokenlight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
