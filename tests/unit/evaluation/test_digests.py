"""Digests of weights and tokenizers."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.evaluation import digests
from tokenlight.evaluation.digests import digest_tokenizer, digest_weights


def load_explainer(**changes):
    return Explainer(tiny_bert(dtype=torch.float32, **changes), tiny_tokenizer(), name="tiny")


@pytest.fixture
def explainer():
    return load_explainer()


def negate_all_but_the_first(explainer):
    """All but the first numbers of a matrix negated."""
    with torch.no_grad():
        explainer.model.classifier.weight.view(-1)[16:] *= -1


def test_a_digest_of_weights_does_not_depend_on_how_they_are_summed(explainer, monkeypatch):
    original = digest_weights(explainer)
    assert original == digest_weights(load_explainer())
    torch.set_num_threads(2)
    try:
        assert digest_weights(explainer) == original
    finally:
        torch.set_num_threads(1)
    monkeypatch.setattr(digests, "SUM_CHUNK_SIZE", 1 << 30)
    assert digest_weights(explainer) == original  # every matrix here is one piece
    assert digest_weights(load_explainer(num_hidden_layers=2)) != original


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_every_precision_have_a_digest(dtype, explainer):
    explainer.model.to(dtype)
    before = digest_weights(explainer)
    negate_all_but_the_first(explainer)
    assert digest_weights(explainer) != before


def test_a_slow_tokenizer_has_a_digest_too():
    class Slow:
        def __init__(self, **words):
            self.get_vocab = lambda: words

    assert digest_tokenizer(Slow(a=1)) == digest_tokenizer(Slow(a=1))
    assert digest_tokenizer(Slow(a=1)) != digest_tokenizer(Slow(a=2))
    assert digest_tokenizer(None).startswith("NoneType")
