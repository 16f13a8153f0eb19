"""Maps that are not kept: the same scores, and memory that does not grow with layers × heads × n²."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.families import build
from tests.live_bytes import LiveBytes
from tests.tiny import randomised, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.writers import SOURCE, WRITTEN, writer, writing_tokenizer
from tokenlight import Continuation, Explainer, Question, Tokens
from tokenlight.capture.rewired import NOTE
from tokenlight.explaining import memory

READING = [
    "gae", ("gae", {"gradient": "attnlrp"}), "rollout", "raw_att", "grad_sam", "att_grads",
    "att_gradcam", "cam", "grads", "attention_flow", ("attcat", {"attn_reduce": "cls"}), "transatt",
    ("transatt", {"start_layer": 1, "rules": "orig"}), "lrp", "partial_lrp", "mask_lrp",
    ("mask_lrp", {"preset": "paper"}), ("mask_lrp", {"heads": [[1, 0, 1, 0], [0, 1, 1, 0]]}),
    ("attnlrp", {"way": "rules"}), ("cp_lrp", {"way": "rules"}),
    ["gae", "attcat", "transatt", "grad_x_input"],
]  # fmt: skip
AFTER_SOURCE = ["gae", "rollout", "raw_att", "attcat", ["gae", "attcat"]]
SPANS = ["gae", "transatt", ("transatt", {"preset": "official"}), "att_gradcam", "mask_lrp"]


def both_ways(monkeypatch, explain, method):
    asked = method if isinstance(method, list) else [method]
    expected = explain(asked)
    monkeypatch.setattr(memory, "LARGE", 0)
    found = explain(asked)
    for ours, theirs in zip(found, expected, strict=True):
        assert NOTE not in ours.notes
        assert abs(ours.scores - theirs.scores).max() <= 1e-12 * abs(theirs.scores).max()


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2", "t5"])
@pytest.mark.parametrize("method", READING, ids=str)
def test_maps_made_when_they_are_read_give_the_same_scores(family, method, monkeypatch):
    model = randomised(build(family), torch.float64)
    ids = torch.randint(5, 120, (3, 12), generator=torch.Generator().manual_seed(2))
    seen = torch.arange(12) < torch.tensor([[12], [9], [5]])
    ids[torch.arange(3), seen.sum(dim=1) - 1] = 2  # where encoder-decoders read their class
    tokens = Tokens.from_ids(ids, seen.long())
    both_ways(monkeypatch, lambda asked: Explainer(model).explain(tokens, asked, target=1), method)


@pytest.mark.parametrize("name", ["bart", "t5"])
@pytest.mark.parametrize("method", AFTER_SOURCE, ids=str)
def test_so_do_those_of_models_that_write_after_a_source(name, method, monkeypatch):
    explainer, written = Explainer(writer(name), writing_tokenizer()), Continuation(WRITTEN)
    both_ways(monkeypatch, lambda asked: explainer.explain(SOURCE, asked, written), method)


@pytest.mark.parametrize("method", SPANS, ids=str)
def test_so_do_those_of_answers(method, monkeypatch):
    explainer = Explainer(tiny_bert_qa(), tiny_tokenizer())
    question = Question("who sat", "the old film was a good movie")
    both_ways(monkeypatch, lambda asked: explainer.explain([question], asked), method)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_differs_by_its_rounding_alone(dtype, monkeypatch):
    explainer = Explainer(tiny_bert(dtype), tiny_tokenizer())
    expected = explainer.explain("the old film was a good movie", ["gae", "rollout"])
    monkeypatch.setattr(memory, "LARGE", 0)
    found = explainer.explain("the old film was a good movie", ["gae", "rollout"])
    for ours, theirs in zip(found, expected, strict=True):
        allowed = 16 * torch.finfo(dtype).eps * abs(theirs.scores).max()
        assert abs(ours.scores - theirs.scores).max() <= allowed


def peak(method: str, *, layers: int, tokens: int) -> int:
    config = transformers.LlamaConfig(
        vocab_size=120, hidden_size=64, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=2, pad_token_id=0, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(5, 120, (1, tokens), generator=torch.Generator().manual_seed(2))
    explainer = Explainer(model)
    explainer.explain(Tokens.from_ids(ids[:, :8]), method, target=7)
    with LiveBytes() as live:
        explainer.explain(Tokens.from_ids(ids), method, target=7)
    assert live.live < 1 << 20
    return live.peak


@pytest.mark.parametrize("method", ["gae", "rollout", "transatt"])
def test_memory_does_not_grow_with_the_maps_of_every_layer(method, monkeypatch):
    """A layer more costs what it holds for each token, and far less than one map."""
    tokens, heads = 256, 8
    one_map = heads * tokens**2 * 2
    kept = peak(method, layers=6, tokens=tokens) - peak(method, layers=2, tokens=tokens)
    assert kept / 4 > 3 * one_map  # as the model computes it, as its softmax keeps it, its gradient
    monkeypatch.setattr(memory, "LARGE", 0)
    unkept = peak(method, layers=6, tokens=tokens) - peak(method, layers=2, tokens=tokens)
    assert unkept / 4 < one_map / 2
