"""The method gim equals what the authors' package computes (:mod:`make_gim`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden.gim_models import TEXTS, build_gim_model
from tokenlight import Explainer, Tokens

VECTORS = load_file(Path(__file__).parent / "vectors" / "gim.safetensors")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_scores_equal_the_scores_of_gim_explain(name: str) -> None:
    explainer = Explainer(build_gim_model(name))
    expected = VECTORS[name]
    for ids, row in zip(TEXTS, expected, strict=True):
        tokens = Tokens.from_ids([ids])
        attribution = explainer.explain(tokens, ("gim", {"site": "token_embeddings"}), target=1)
        gap = np.abs(attribution.scores - row[: len(ids)]).max()
        assert gap <= 1e-6 * np.abs(expected).max(), (attribution.scores, row)
        assert not row[len(ids) :].any()
