"""tokenlight: which tokens made a Transformer decide, for or against, and can that be trusted?

Names are loaded when first used, so ``import tokenlight`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenlight.answers import SpanTarget as SpanTarget
    from tokenlight.attribution import Attribution as Attribution
    from tokenlight.attribution import load as load
    from tokenlight.attribution import save as save
    from tokenlight.explainer import Explainer as Explainer
    from tokenlight.pictures import Picture as Picture
    from tokenlight.prompt import Chat as Chat
    from tokenlight.target import Continuation as Continuation
    from tokenlight.target import Contrast as Contrast
    from tokenlight.target import NextToken as NextToken
    from tokenlight.target import TokenTarget as TokenTarget
    from tokenlight.tokens import Question as Question
    from tokenlight.tokens import Tokens as Tokens

    __version__: str

_HOMES = {
    "Attribution": "tokenlight.attribution",
    "Chat": "tokenlight.prompt",
    "Continuation": "tokenlight.target",
    "Contrast": "tokenlight.target",
    "Explainer": "tokenlight.explainer",
    "NextToken": "tokenlight.target",
    "Picture": "tokenlight.pictures",
    "Question": "tokenlight.tokens",
    "SpanTarget": "tokenlight.answers",
    "TokenTarget": "tokenlight.target",
    "Tokens": "tokenlight.tokens",
    "load": "tokenlight.attribution",
    "save": "tokenlight.attribution",
}
__all__ = [
    "Attribution",
    "Chat",
    "Continuation",
    "Contrast",
    "Explainer",
    "NextToken",
    "Picture",
    "Question",
    "SpanTarget",
    "TokenTarget",
    "Tokens",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("tokenlight.version").VERSION
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tokenlight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
