"""Further passes are packed by the memory that is free, and give the same numbers in smaller packs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, LlamaConfig

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.model import memory
from tokenlight.perturb import logits_stream
from tokenlight.trace.extra_passes import ExtraPasses

TEXT = "the film is not very charming , but we love it !"
# Per token of BERT-base in float32: 16 × 768 + 4 × 3072 numbers in each of twelve blocks.
TOKEN_BYTES = 12 * (16 * 768 + 4 * 3072) * 4


@pytest.fixture
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


@pytest.fixture
def bert_base():
    return SimpleNamespace(
        model=SimpleNamespace(config=BertConfig()),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(
    ("requested_tokens", "recorded", "free", "expected"),
    [
        (64, 64, 0, 64),  # small: the free memory is not asked for
        (1 << 20, 64, 1 << 50, (4 << 30) // TOKEN_BYTES),
        (1 << 20, 16384, 1 << 50, 16384),  # as much as a pass that is known to fit
        (1 << 20, 16384, 2 << 30, (1 << 30) // TOKEN_BYTES),
        (1 << 20, 16384, 1, 1),
    ],
)
def test_a_pack_takes_no_more_than_is_free(
    bert_base, monkeypatch, requested_tokens, recorded, free, expected
):
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: free)
    tokens = memory.limit_pack_tokens(
        bert_base, requested_tokens, gradients=True, recorded_tokens=recorded
    )
    assert tokens == expected


@pytest.fixture
def llama_8b():
    """A model of eight billion parameters on a GPU: each token of a pass takes 7.9 MB."""
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32)
    return SimpleNamespace(
        model=SimpleNamespace(config=config),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
    )


@pytest.fixture
def count_packed_passes(llama_8b, monkeypatch):
    """Return how many passes over 512 tokens share a batch on a GPU with this memory."""

    def count(free_gigabytes, cached_gigabytes=0):
        free_bytes = int(free_gigabytes * 1e9)
        cached_bytes = int(cached_gigabytes * 1e9)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, 150 * 10**9))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20 * 10**9 + cached_bytes)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20 * 10**9)
        tokens = memory.limit_pack_tokens(llama_8b, 16384, gradients=True, recorded_tokens=512)
        return tokens // 512

    return count


def test_more_free_memory_of_a_gpu_never_makes_a_smaller_pack(count_packed_passes):
    counts = [count_packed_passes(free) for free in range(1, 140)]
    assert counts == sorted(counts)
    assert counts[:2] == [0, 0]  # less than half of what one pass takes is given
    assert counts[0] < counts[-1]


@pytest.mark.parametrize(("free", "expected"), [(12, 1), (80, 4), (130, 8)])
def test_a_large_model_shares_batches_where_memory_is_plentiful(
    count_packed_passes, free, expected
):
    assert count_packed_passes(free) == expected
    # What torch caches is free, too.
    assert count_packed_passes(free / 2, free / 2) == expected


def test_a_pass_without_a_graph_holds_one_block_at_a_time(bert_base):
    with_graph = memory.estimate_token_bytes(bert_base, gradients=True)
    without_graph = memory.estimate_token_bytes(bert_base, gradients=False)
    assert with_graph == TOKEN_BYTES
    assert with_graph > 12 * without_graph


def test_a_model_that_names_no_sizes_has_no_limit(bert_base, monkeypatch):
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: 1)
    bert_base.model.config = SimpleNamespace(get_text_config=SimpleNamespace)
    assert memory.limit_pack_tokens(bert_base, 99, gradients=True, recorded_tokens=0) == 99


@pytest.fixture
def little_memory(explainer, monkeypatch):
    """Room for the graphs of two texts of this length."""
    num_tokens = len(explainer.explain(TEXT, "attcat").tokens)
    token_bytes = memory.estimate_token_bytes(explainer.runner, gradients=True)
    free_bytes = int(2 * num_tokens * token_bytes / memory.FREE_SHARE)
    monkeypatch.setattr(memory, "SMALL_PACK_BYTES", 0)
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: free_bytes)


@pytest.mark.parametrize("method", ["integrated_gradients", "gradient_shap", "smooth"])
def test_path_methods_are_packed_by_memory_with_equal_scores(
    explainer, monkeypatch, request, method
):
    expected = explainer.explain(TEXT, method, seed=3)
    request.getfixturevalue("little_memory")
    sizes = []
    run_pack = ExtraPasses.compute_gradient_at

    def count_passes(self, examples, embeddings, **options):
        sizes.append(len(examples))
        return run_pack(self, examples, embeddings, **options)

    monkeypatch.setattr(ExtraPasses, "compute_gradient_at", count_passes)
    attribution = explainer.explain(TEXT, method, seed=3)
    assert max(sizes) == 2
    assert len(sizes) > 1
    largest = np.abs(expected.scores).max()
    np.testing.assert_allclose(attribution.scores, expected.scores, atol=1e-9 * largest)


@pytest.mark.parametrize("method", ["occlusion", "lime"])
def test_perturbations_are_packed_by_memory_with_equal_scores(explainer, monkeypatch, method):
    expected = explainer.explain(TEXT, method, seed=3)
    num_tokens = len(expected.tokens)
    token_bytes = memory.estimate_token_bytes(explainer.runner, gradients=False)
    free_bytes = int(2 * num_tokens * token_bytes / memory.FREE_SHARE)
    monkeypatch.setattr(memory, "SMALL_PACK_BYTES", 0)
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: free_bytes)
    sizes = []
    run_batch = logits_stream._try_batch

    def count_rows(runner, rows):
        sizes.append(max(map(len, rows)) * len(rows))
        return run_batch(runner, rows)

    monkeypatch.setattr(logits_stream, "_try_batch", count_rows)
    attribution = explainer.explain(TEXT, method, seed=3)
    assert max(sizes) <= 2 * num_tokens
    assert len(sizes) > 1
    largest = np.abs(expected.scores).max()
    np.testing.assert_allclose(attribution.scores, expected.scores, atol=1e-9 * largest)
