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
    from tokenlight.inputs.context import Context as Context
    from tokenlight.inputs.picture import Picture as Picture
    from tokenlight.inputs.prompt import Chat as Chat

    __version__: str

_HOMES = {
    "Above": "tokenlight.data.target",
    "Attribution": "tokenlight.data.attribution",
    "Chat": "tokenlight.inputs.prompt",
    "Context": "tokenlight.inputs.context",
    "Continuation": "tokenlight.data.target",
    "Contrast": "tokenlight.data.target",
    "Explainer": "tokenlight.explainer",
    "NextToken": "tokenlight.data.target",
    "Picture": "tokenlight.inputs.picture",
    "Question": "tokenlight.data.tokens",
    "SpanTarget": "tokenlight.data.answers",
    "TokenTarget": "tokenlight.data.target",
    "Tokens": "tokenlight.data.tokens",
    "load": "tokenlight.files.saved",
    "save": "tokenlight.files.saved",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("tokenlight.version").VERSION
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tokenlight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
