"""Memory that the attention maps of a batch need is there, or the text is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import TextTooLong
from tokenlight.explaining import memory
from tokenlight.explaining.calls import resolve_methods
from tokenlight.model.runner import ModelRunner

TEXTS = ["the film was good , we love it", "a dull plot", "great", "a great film", "it was dull"]


@pytest.fixture
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


@pytest.mark.parametrize(("tokens", "num_queries"), [(512, 0), (1 << 16, 1)])
def test_free_memory_of_a_gpu_is_not_queried_for_small_maps(
    explainer, monkeypatch, tokens, num_queries
):
    queries: list[torch.device] = []
    monkeypatch.setattr(
        memory, "measure_free_memory", lambda device: queries.append(device) or 1 << 62
    )
    monkeypatch.setattr(ModelRunner, "device", torch.device("cuda"))
    methods = resolve_methods(explainer, "gae", 0)
    options = SimpleNamespace(methods=methods, recorded_sites=methods[0].recorded_sites)
    memory.check_memory(explainer.runner, [range(tokens)], options)
    assert len(queries) == num_queries


@pytest.mark.parametrize(
    ("method", "reads", "dtype", "bytes_a_cell"),
    [
        ("gae", "a", torch.float32, 12),  # a map, its gradient and their product
        ("gae", "a", torch.bfloat16, 12),
        (
            "alti",
            "every",
            torch.float32,
            8,
        ),  # a map and its gradient, in half precision its softmax, too
        ("alti", "every", torch.bfloat16, 8),
    ],
)
def test_maps_that_memory_cannot_hold_are_refused_before_the_first_pass(
    monkeypatch, method, reads, dtype, bytes_a_cell
):
    explainer = Explainer(tiny_bert(dtype), tiny_tokenizer())
    explainer.explain(TEXTS[1], method)
    tokens = len(explainer.explain(TEXTS[0], "attcat").tokens)
    config = explainer.model.config
    need = config.num_attention_heads * tokens**2 * bytes_a_cell
    need *= config.num_hidden_layers if reads == "every" else 1
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: need - 1)
    with monkeypatch.context() as no_pass:
        no_pass.setattr(explainer.runner, "forward", None)
        with expect_error(TextTooLong, "maps-exceed-memory", mentions=method) as refused:
            explainer.explain(TEXTS[0], method)
    assert f"of {reads} block" in str(refused.value)
    assert f"{tokens} tokens" in str(refused.value)
    assert explainer.explain(TEXTS[0], "attcat").scores.any()
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: need)
    assert explainer.explain(TEXTS[0], method).scores.any()


def test_free_memory_is_a_number_of_bytes():
    assert memory.measure_free_memory(torch.device("cpu")) > 1 << 20
