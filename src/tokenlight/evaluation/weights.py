"""Which weights a number was made with: a model trained on under its old name is another model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

FEW = 16  # numbers of each weight: enough to tell a retrained model, and read in a moment


def weight_digest(explainer: Explainer) -> str:
    """A digest of the name, the shape and the first numbers of every weight.

    Of a weight that waits on disk (an offloaded model) only name and shape are known.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, weight in explainer.live.model.named_parameters():
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        if not weight.is_meta:
            digest.update(weight.detach().flatten()[:FEW].float().cpu().numpy().tobytes())
    return digest.hexdigest()
