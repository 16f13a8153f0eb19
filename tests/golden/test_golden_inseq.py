"""What each written token is explained by equals what inseq computes (:mod:`make_inseq`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    PROMPT,
    SOURCE,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tokenlight import Continuation, Explainer

VECTORS = load_file(Path(__file__).parent / "vectors" / "inseq.safetensors")
METHODS = {
    "input_x_gradient": ("grad_x_input", {"site": "token_embeddings"}),
    "saliency": ("saliency", {"site": "token_embeddings"}),
    "integrated_gradients": (
        "integrated_gradients", {"site": "token_embeddings", "baseline": "unk", "num_steps": 20}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["t5", "bart", "marian", "llama"])
@pytest.mark.parametrize("inseq_method", METHODS)
def test_scores_of_generated_tokens_equal_inseqs(name: str, inseq_method: str) -> None:
    from_source = name != "llama"
    model = make_seq2seq_model(name) if from_source else make_small_llama()
    explainer = Explainer(model, make_seq2seq_tokenizer(ends=from_source))
    text = SOURCE if from_source else PROMPT
    method, options = METHODS[inseq_method]
    continuation = CONTINUATION if from_source else f" {CONTINUATION}"
    attributions = explainer.explain(
        text, target=Continuation(continuation, against=None), method=(method, options)
    )
    expected = VECTORS[f"{name}.{inseq_method}"]
    assert len(attributions) == 3
    for row, attribution in zip(expected, attributions, strict=False):
        gap = np.abs(attribution.scores - row[: len(attribution)]).max()
        assert gap <= 1e-7 * np.abs(expected).max(), (
            attribution.target.name,
            attribution.scores,
            row,
        )
        assert not row[len(attribution) :].any()
