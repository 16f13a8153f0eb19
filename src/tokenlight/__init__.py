"""tokenlight: which tokens made a Transformer decide, for or against, and can that be trusted?

Names are imported when they are first used, so that ``import tokenlight`` does not import torch.

Example:
    >>> from tokenlight import Explainer
    >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
    >>> attribution = explainer.explain("A charming and often affecting journey.")
    >>> attribution.prediction.label, attribution.method
    ('positive', 'attnlrp')
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenlight.data.attribution import Attribution as Attribution
    from tokenlight.data.span_target import SpanTarget as SpanTarget
    from tokenlight.data.target import Continuation as Continuation
    from tokenlight.data.target import Contrast as Contrast
    from tokenlight.data.target import NextToken as NextToken
    from tokenlight.data.target import RankedAbove as RankedAbove
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

# Module → the public names in it.
_EXPORTS = {
    "data.span_target": ("SpanTarget",),
    "data.attribution": ("Attribution",),
    "data.target": ("Continuation", "Contrast", "NextToken", "RankedAbove", "TokenTarget"),
    "data.tokens": ("Question", "Tokens"),
    "explainer": ("Explainer",),
    "files.saved": ("load", "save"),
    "inputs.picture": ("Picture",),
    "inputs.prompt": ("Chat", "Context"),
}
__all__ = [name for names in _EXPORTS.values() for name in names]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("tokenlight.version").VERSION
    for module_name, names in _EXPORTS.items():
        if name in names:
            return getattr(importlib.import_module(f"tokenlight.{module_name}"), name)
    raise AttributeError(f"module 'tokenlight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
