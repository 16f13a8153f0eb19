"""Lazy attention maps: the same scores, and memory that does not grow with layers × heads × n²."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    SOURCE,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
)
from tests.helpers.expect import expect_error
from tests.helpers.families import build_model
from tests.helpers.live_bytes import LiveBytes
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.tolerance import assert_close
from tokenlight import Continuation, Explainer, Question, Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.explaining import memory
from tokenlight.hooks.blocks import RECOMPUTED_NOTE
from tokenlight.hooks.instrument import supports_attention_hook

METHODS_READING_MAPS = [
    "gae", ("gae", {"gradient": "attnlrp"}), "rollout", "raw_att", "grad_sam", "att_grads",
    "att_gradcam", "cam", "grads", "attention_flow", ("attcat", {"attn_reduce": "cls"}), "transatt",
    ("transatt", {"start_layer": 1, "rules": "chefer_orig"}), "lrp", "partial_lrp", "mask_lrp",
    ("mask_lrp", {"preset": "paper"}), ("mask_lrp", {"heads": [[1, 0, 1, 0], [0, 1, 1, 0]]}),
    ("attnlrp", {"propagation": "rules"}), ("cp_lrp", {"propagation": "rules"}),
    ["gae", "attcat", "transatt", "grad_x_input"], ["gae", "attnlrp"],
]  # fmt: skip
ENCODER_DECODER_METHODS = ["gae", "rollout", "raw_att", "attcat", ["gae", "attcat"]]
SPAN_METHODS = ["gae", "transatt", ("transatt", {"preset": "official"}), "att_gradcam", "mask_lrp"]


def compare_kept_and_lazy(monkeypatch, explain, method):
    methods = method if isinstance(method, list) else [method]
    expected = explain(methods)
    monkeypatch.setattr(memory, "MAX_KEPT_MAP_BYTES", 0)
    attributions = explain(methods)
    for actual, reference in zip(attributions, expected, strict=True):
        assert RECOMPUTED_NOTE not in actual.notes
        assert abs(actual.scores - reference.scores).max() <= 1e-12 * abs(reference.scores).max()


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2", "t5"])
@pytest.mark.parametrize("method", METHODS_READING_MAPS, ids=str)
def test_lazy_maps_give_the_same_scores(family, method, monkeypatch):
    model = randomize_weights(build_model(family), torch.float64)
    ids = torch.randint(5, 120, (3, 12), generator=torch.Generator().manual_seed(2))
    is_real = torch.arange(12) < torch.tensor([[12], [9], [5]])
    ids[torch.arange(3), is_real.sum(dim=1) - 1] = 2  # where encoder-decoders read their class
    tokens = Tokens.from_ids(ids, is_real.long())
    if "mask_lrp" in str(method) and not supports_attention_hook(model):
        # T5 of the oldest supported transformers computes attention by itself.
        with expect_error(UnsupportedModel, "no-relevance-gates"):
            Explainer(model).explain(tokens, [method], target=1)
        return
    compare_kept_and_lazy(
        monkeypatch, lambda methods: Explainer(model).explain(tokens, methods, target=1), method
    )


@pytest.mark.parametrize("name", ["bart", "t5"])
@pytest.mark.parametrize("method", ENCODER_DECODER_METHODS, ids=str)
def test_lazy_maps_of_encoder_decoders_give_the_same_scores(name, method, monkeypatch):
    explainer = Explainer(make_seq2seq_model(name), make_seq2seq_tokenizer())
    target = Continuation(CONTINUATION)
    compare_kept_and_lazy(
        monkeypatch, lambda methods: explainer.explain(SOURCE, methods, target), method
    )


@pytest.mark.parametrize("method", SPAN_METHODS, ids=str)
def test_lazy_maps_of_answers_give_the_same_scores(method, monkeypatch):
    explainer = Explainer(tiny_bert_qa(), tiny_tokenizer())
    question = Question("who sat", "the old film was a good movie")
    compare_kept_and_lazy(
        monkeypatch, lambda methods: explainer.explain([question], methods), method
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_differs_only_by_its_rounding(dtype, monkeypatch):
    explainer = Explainer(tiny_bert(dtype), tiny_tokenizer())
    expected = explainer.explain("the old film was a good movie", ["gae", "rollout"])
    monkeypatch.setattr(memory, "MAX_KEPT_MAP_BYTES", 0)
    attributions = explainer.explain("the old film was a good movie", ["gae", "rollout"])
    for actual, reference in zip(attributions, expected, strict=True):
        allowed = 16 * torch.finfo(dtype).eps * abs(reference.scores).max()
        assert abs(actual.scores - reference.scores).max() <= allowed


def measure_peak(method: str, *, layers: int, tokens: int) -> int:
    config = transformers.LlamaConfig(
        vocab_size=120, hidden_size=64, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=2, pad_token_id=0, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(5, 120, (1, tokens), generator=torch.Generator().manual_seed(2))
    explainer = Explainer(model)
    explainer.explain(Tokens.from_ids(ids[:, :8]), method, target=7)
    with LiveBytes() as live_bytes:
        explainer.explain(Tokens.from_ids(ids), method, target=7)
    assert live_bytes.live < 1 << 20
    return live_bytes.peak


@pytest.mark.parametrize("method", ["gae", "rollout", "transatt"])
def test_memory_does_not_grow_with_the_maps_of_every_layer(method, monkeypatch):
    """A layer more costs what it holds for each token, and far less than one map."""
    tokens = 256
    heads = 8
    one_map = heads * tokens**2 * 2
    with_maps = measure_peak(method, layers=6, tokens=tokens) - measure_peak(
        method, layers=2, tokens=tokens
    )
    # The map itself, what its softmax saves, and its gradient.
    assert with_maps / 4 > 3 * one_map
    monkeypatch.setattr(memory, "MAX_KEPT_MAP_BYTES", 0)
    without_maps = measure_peak(method, layers=6, tokens=tokens) - measure_peak(
        method, layers=2, tokens=tokens
    )
    assert without_maps / 4 < one_map / 2


def test_blocks_run_once_where_kernels_read_maps_without_storing_them(monkeypatch):
    """A GPU in float32 keeps the graph of its blocks, and no map; its kernels are plain torch here."""
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    methods = ["gae", "rollout", "grads"]
    expected = explainer.explain("the old film was a good movie", methods)
    monkeypatch.setattr(memory, "MAX_KEPT_MAP_BYTES", 0)
    monkeypatch.setattr(memory, "reads_maps_by_kernel", lambda *_: True)
    num_runs = []
    first_block = explainer.model.bert.encoder.layer[0]
    first_block.register_forward_hook(lambda *_: num_runs.append(1))
    attributions = explainer.explain("the old film was a good movie", methods)
    assert len(num_runs) == 1
    for actual, reference in zip(attributions, expected, strict=True):
        assert_close(actual.scores, reference.scores)
