"""Batches in two steps: the next is launched before the previous one is fetched, and nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.accel import tensors as accel_tensors
from tokenlight.accel.transfer import AsyncTensor
from tokenlight.data.attribution import Attribution
from tokenlight.errors import NotFinite
from tokenlight.explaining import batches
from tokenlight.explaining.pending_scores import sum_layers
from tokenlight.model.objective import ArgmaxTargets
from tokenlight.model.runner import ModelRunner

TEXTS = ["the film was good , we love it", "a dull plot", "great", "a great film", "it was dull"]
ONE_EACH = {"batch_size": 1}


@pytest.fixture
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


@dataclass
class BatchLog:
    """The steps of batches in their order, and how many rows fit into one."""

    calls: list[str] = field(default_factory=list)
    launched_sizes: list[int] = field(default_factory=list)
    max_rows: int = 1 << 30


@pytest.fixture
def batch_log(monkeypatch):
    log = BatchLog()
    launch_batch = batches.launch_batch
    fetch_attributions = batches.PendingBatch.fetch_attributions

    def logged_launch(session, rows, *arguments, **keywords):
        log.calls.append("launch")
        log.launched_sizes.append(len(rows))
        if len(rows) > log.max_rows:
            raise torch.OutOfMemoryError("no room")
        return launch_batch(session, rows, *arguments, **keywords)

    def logged_fetch(self):
        log.calls.append("fetch")
        return fetch_attributions(self)

    monkeypatch.setattr(batches, "launch_batch", logged_launch)
    monkeypatch.setattr(batches.PendingBatch, "fetch_attributions", logged_fetch)
    return log


def test_a_batch_is_launched_before_the_previous_one_is_fetched(explainer, batch_log):
    explainer.explain(TEXTS[:3], "attcat", **ONE_EACH)
    assert batch_log.calls == ["launch", "launch", "fetch", "launch", "fetch", "fetch"]


def test_halves_of_a_batch_that_does_not_fit_keep_its_order(explainer, batch_log):
    expected = explainer.explain(TEXTS, "attcat", batch_tokens=20)
    batch_log.max_rows = 1
    attributions = explainer.explain(TEXTS, "attcat", batch_tokens=20)
    assert max(batch_log.launched_sizes) > 1
    for actual, reference in zip(attributions, expected, strict=True):
        assert actual.text == reference.text
        np.testing.assert_allclose(actual.scores, reference.scores, atol=1e-12)


@pytest.mark.parametrize("method", ["attcat", "attnlrp", "gae", "grad_x_input", "transatt", "lime"])
def test_a_class_chosen_on_the_device_is_the_one_named_by_number(explainer, method):
    for attribution in explainer.explain(TEXTS, method):
        expected = explainer.explain(attribution.text, method, target=attribution.prediction.index)
        assert attribution.target == expected.target
        assert attribution.target.name == attribution.prediction.label
        np.testing.assert_allclose(attribution.scores, expected.scores, atol=1e-12)


def test_launching_a_predicted_class_does_not_wait_for_logits(explainer, monkeypatch):
    explainer.explain(TEXTS, "attcat")
    waits: list[str] = []
    wait_for_array = AsyncTensor.numpy
    launch_batch = batches.launch_batch

    def logged_wait(self):
        waits.append("waited")
        return wait_for_array(self)

    def checked_launch(*arguments, **keywords):
        result = launch_batch(*arguments, **keywords)
        assert not waits
        return result

    monkeypatch.setattr(AsyncTensor, "numpy", logged_wait)
    monkeypatch.setattr(batches, "launch_batch", checked_launch)
    explainer.explain(TEXTS, ["attcat", "attnlrp", "grad_x_input", "gae", "raw_att", "cam"])
    assert waits


def test_attributions_are_created_before_the_device_is_waited_for(explainer, monkeypatch):
    expected = explainer.explain(TEXTS, ["attcat", "gae"], target="all")
    order: list[str] = []
    wait_for_array = AsyncTensor.numpy
    make_lazy = Attribution.lazy

    def logged_wait(self):
        order.append("wait")
        return wait_for_array(self)

    def logged_make(fields):
        order.append("make")
        return make_lazy(fields)

    monkeypatch.setattr(AsyncTensor, "numpy", logged_wait)
    monkeypatch.setattr(Attribution, "lazy", logged_make)
    attributions = explainer.explain(TEXTS, ["attcat", "gae"], target="all", batch_tokens=1024)
    assert order[: len(attributions)] == ["make"] * len(attributions)
    assert "wait" in order
    for actual, reference in zip(attributions, expected, strict=True):
        assert (actual.method, actual.target) == (reference.method, reference.target)
        np.testing.assert_allclose(actual.scores, reference.scores, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 7, 12, 33])
@pytest.mark.parametrize("shape", [(1, 2), (3, 9), (64, 128)])
def test_layers_are_added_up_on_a_device_as_on_the_host_to_the_bit(layers, shape):
    draw = np.random.default_rng(layers)
    size = shape[0], layers, shape[1]
    terms = draw.standard_normal(size) * 10.0 ** draw.integers(-9, 9, size)
    np.testing.assert_array_equal(sum_layers(torch.from_numpy(terms)).numpy(), terms.sum(axis=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_first_of_equal_logits_is_predicted(explainer, dtype):
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.1, -0.0, 0.0, 0.1], [5.0, 5.0, 5.0, 5.0]])
    logits = logits.to(dtype)
    targets = ArgmaxTargets.from_logits(explainer.runner.head, logits, AsyncTensor(logits))
    expected = np.argmax(AsyncTensor(logits).numpy(), axis=1)
    np.testing.assert_array_equal(targets.term_indices[:, 0].numpy(), expected)


def test_inside_inference_mode_a_class_is_chosen_too(explainer):
    expected = explainer.explain(TEXTS[0], "attcat")
    with torch.inference_mode():
        np.testing.assert_array_equal(explainer.explain(TEXTS[0], "attcat").scores, expected.scores)


def test_nan_of_the_model_is_reported_for_a_predicted_class(explainer):
    explainer.explain(TEXTS, "attcat", **ONE_EACH)
    with torch.no_grad():
        explainer.model.bert.encoder.layer[1].output.dense.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match=r"hidden state 2 \(0 is the embedding\) of text 0"):
        explainer.explain(TEXTS, "attcat", **ONE_EACH)


@pytest.mark.parametrize("max_bytes", [0, 1 << 32])
def test_maps_too_large_to_be_kept_twice_give_the_same_scores(explainer, monkeypatch, max_bytes):
    expected = explainer.explain(TEXTS, ["gae", "transatt", "rollout"], batch_tokens=64)
    monkeypatch.setattr(accel_tensors, "MAX_KEPT_BYTES", max_bytes)
    attributions = explainer.explain(TEXTS, ["gae", "transatt", "rollout"], batch_tokens=64)
    for actual, reference in zip(attributions, expected, strict=True):
        np.testing.assert_array_equal(actual.scores, reference.scores)


def test_large_maps_are_upcast_one_at_a_time(monkeypatch):
    upcast_indices = []
    tensors = [torch.ones(2) * number for number in range(3)]
    monkeypatch.setattr(accel_tensors, "MAX_KEPT_BYTES", 0)
    maps = accel_tensors.upcast_all(
        tensors, lambda number, map_: upcast_indices.append(number) or map_.double()
    )
    assert not upcast_indices
    assert [int(map_[0]) for map_ in maps] == [0, 1, 2]
    assert [int(map_[0]) for map_ in maps[1:]] == [1, 2]
    assert upcast_indices == [0, 1, 2, 1, 2]
    assert len(maps[1:]) == 2


def test_padding_to_a_multiple_gives_the_same_scores(explainer, monkeypatch):
    """As on a GPU, where shapes that return cost less."""
    expected = explainer.explain(TEXTS, ["attcat", "gae", "attnlrp"])
    monkeypatch.setattr(ModelRunner, "padding_multiple", 8)
    widths = []
    inputs = ModelRunner.build_inputs
    monkeypatch.setattr(
        ModelRunner,
        "build_inputs",
        lambda self, rows, width=None: (
            (arguments := inputs(self, rows, width)),
            widths.append(arguments[1].shape[1]),
        )[0],
    )
    attributions = explainer.explain(TEXTS, ["attcat", "gae", "attnlrp"])
    assert max(widths) % 8 == 0
    assert max(widths) > max(len(attribution) for attribution in attributions)
    for actual, reference in zip(attributions, expected, strict=True):
        np.testing.assert_allclose(
            actual.scores, reference.scores, rtol=0, atol=1e-12 * np.abs(reference.scores).max()
        )


def test_rows_of_ids_and_texts_share_a_call(explainer):
    row = explainer.explain(TEXTS[0], "attcat").row
    inputs = [*TEXTS, Tokens((row,)).rows[0], *TEXTS]
    attributions = explainer.explain(inputs, "attcat", **ONE_EACH)
    np.testing.assert_array_equal(attributions[5].scores, attributions[0].scores)
    assert len(attributions) == len(inputs)
