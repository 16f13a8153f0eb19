"""Batches in two steps: the next is queued before the one ahead is waited for, and nothing is lost."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.capture import transfer
from tokenlight.capture.live import LiveModel
from tokenlight.capture.objective import Predicted
from tokenlight.capture.transfer import Fetched
from tokenlight.data.attribution import Attribution
from tokenlight.errors import NotFinite, TextTooLong
from tokenlight.explaining import batch, memory
from tokenlight.explaining.scores import summed

TEXTS = ["the film was good , we love it", "a dull plot", "great", "a great film", "it was dull"]
ONE_EACH = {"batch_size": 1}


@pytest.fixture
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


@pytest.fixture
def steps(monkeypatch):
    """What is queued and what is collected, by the size of the batch, in order."""
    seen: list[tuple[str, int]] = []
    queue, collect = batch.queue_batch, batch.Batch.results

    def queue_batch(session, rows, *given, **named):
        seen.append(("queue", len(rows)))
        if len(rows) > short_of[0]:
            raise torch.OutOfMemoryError("no room")
        return queue(session, rows, *given, **named)

    def results(self):
        seen.append(("collect", len(self.counts)))
        return collect(self)

    short_of = [1 << 30]
    monkeypatch.setattr(batch, "queue_batch", queue_batch)
    monkeypatch.setattr(batch.Batch, "results", results)
    return seen, short_of


def test_a_batch_is_queued_before_the_one_ahead_is_waited_for(explainer, steps):
    explainer.explain(TEXTS[:3], "attcat", **ONE_EACH)
    names = [name for name, _ in steps[0]]
    assert names == ["queue", "queue", "collect", "queue", "collect", "collect"]


def test_halves_of_a_batch_that_memory_does_not_hold_stand_where_it_stood(explainer, steps):
    expected = explainer.explain(TEXTS, "attcat", batch_tokens=20)
    steps[1][0] = 1
    found = explainer.explain(TEXTS, "attcat", batch_tokens=20)
    assert max(size for name, size in steps[0] if name == "queue") > 1
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.text == theirs.text
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-12)


@pytest.mark.parametrize("method", ["attcat", "attnlrp", "gae", "grad_x_input", "transatt", "lime"])
def test_a_class_chosen_on_the_device_is_the_one_named_by_number(explainer, method):
    for one in explainer.explain(TEXTS, method):
        again = explainer.explain(one.text, method, target=one.prediction.index)
        assert one.target == again.target
        assert one.target.name == one.prediction.label
        np.testing.assert_allclose(one.scores, again.scores, atol=1e-12)


def test_nobody_waits_for_the_logits_of_a_predicted_class(explainer, monkeypatch):
    explainer.explain(TEXTS, "attcat")
    asked: list[str] = []
    arrived, queue = Fetched.arrived, batch.queue_batch

    def watched(self):
        asked.append("asked")
        return arrived(self)

    def queue_batch(*given, **named):
        found = queue(*given, **named)
        assert not asked
        return found

    monkeypatch.setattr(Fetched, "arrived", watched)
    monkeypatch.setattr(batch, "queue_batch", queue_batch)
    explainer.explain(TEXTS, ["attcat", "attnlrp", "grad_x_input", "gae", "raw_att", "cam"])
    assert asked


def test_explanations_are_made_while_the_device_works(explainer, monkeypatch):
    expected = explainer.explain(TEXTS, ["attcat", "gae"], target="all")
    order: list[str] = []
    arrived, later = Fetched.arrived, Attribution.later

    def watched(self):
        order.append("wait")
        return arrived(self)

    def made(fields):
        order.append("make")
        return later(fields)

    monkeypatch.setattr(Fetched, "arrived", watched)
    monkeypatch.setattr(Attribution, "later", made)
    found = explainer.explain(TEXTS, ["attcat", "gae"], target="all", batch_tokens=1024)
    assert order[: len(found)] == ["make"] * len(found)
    assert "wait" in order
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.method, ours.target) == (theirs.method, theirs.target)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 7, 12, 33])
@pytest.mark.parametrize("shape", [(1, 2), (3, 9), (64, 128)])
def test_layers_are_added_up_on_a_device_as_on_the_host_to_the_bit(layers, shape):
    draw = np.random.default_rng(layers)
    size = shape[0], layers, shape[1]
    terms = draw.standard_normal(size) * 10.0 ** draw.integers(-9, 9, size)
    np.testing.assert_array_equal(summed(torch.from_numpy(terms)).numpy(), terms.sum(axis=1))


@pytest.mark.parametrize(("tokens", "asks"), [(512, 0), (1 << 16, 1)])
def test_a_gpu_is_not_asked_whether_little_is_free(explainer, monkeypatch, tokens, asks):
    asked: list[torch.device] = []
    monkeypatch.setattr(memory, "free_bytes", lambda device: asked.append(device) or 1 << 62)
    monkeypatch.setattr(LiveModel, "device", torch.device("cuda"))
    how = SimpleNamespace(methods=explainer._methods("gae", 0))
    memory.check_memory(explainer.live, [range(tokens)], how)
    assert len(asked) == asks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_of_equal_logits_the_first_is_predicted(explainer, dtype):
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.1, -0.0, 0.0, 0.1], [5.0, 5.0, 5.0, 5.0]])
    logits = logits.to(dtype)
    chosen = Predicted.of(explainer.live.head, logits, Fetched(logits))
    expected = np.argmax(Fetched(logits).arrived(), axis=1)
    np.testing.assert_array_equal(chosen.places.numpy(), expected)


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
    monkeypatch.setattr(memory, "free_bytes", lambda _: need - 1)
    with monkeypatch.context() as no_pass:
        no_pass.setattr(explainer.live, "call", None)
        with pytest.raises(
            TextTooLong,
            match=rf"{method} reads .* {reads} block .* of {tokens} tokens .* attcat or",
        ):
            explainer.explain(TEXTS[0], method)
    assert explainer.explain(TEXTS[0], "attcat").scores.any()
    monkeypatch.setattr(memory, "free_bytes", lambda _: need)
    assert explainer.explain(TEXTS[0], method).scores.any()


def test_free_memory_is_a_number_of_bytes():
    assert memory.free_bytes(torch.device("cpu")) > 1 << 20


def test_inside_inference_mode_a_class_is_chosen_too(explainer):
    expected = explainer.explain(TEXTS[0], "attcat")
    with torch.inference_mode():
        np.testing.assert_array_equal(explainer.explain(TEXTS[0], "attcat").scores, expected.scores)


def test_where_the_model_gives_nan_it_is_named_for_a_predicted_class(explainer):
    explainer.explain(TEXTS, "attcat", **ONE_EACH)
    with torch.no_grad():
        explainer.model.bert.encoder.layer[1].output.dense.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match=r"hidden state 2 \(0 is the embedding\) of text 0"):
        explainer.explain(TEXTS, "attcat", **ONE_EACH)


@pytest.mark.parametrize("kept", [0, 1 << 32])
def test_maps_too_large_to_be_kept_twice_give_the_same_scores(explainer, monkeypatch, kept):
    expected = explainer.explain(TEXTS, ["gae", "transatt", "rollout"], batch_tokens=64)
    monkeypatch.setattr(transfer, "KEPT", kept)
    found = explainer.explain(TEXTS, ["gae", "transatt", "rollout"], batch_tokens=64)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_large_maps_are_widened_one_at_a_time(monkeypatch):
    made = []
    tensors = [torch.ones(2) * number for number in range(3)]
    monkeypatch.setattr(transfer, "KEPT", 0)
    maps = transfer.all_widened(tensors, lambda number, one: made.append(number) or one.double())
    assert not made
    assert [int(one[0]) for one in maps] == [0, 1, 2]
    assert [int(one[0]) for one in maps[1:]] == [1, 2]
    assert made == [0, 1, 2, 1, 2]
    assert len(maps[1:]) == 2


def test_widths_in_steps_give_the_same_scores(explainer, monkeypatch):
    """As on a GPU, where shapes that return cost less."""
    expected = explainer.explain(TEXTS, ["attcat", "gae", "attnlrp"])
    monkeypatch.setattr(LiveModel, "step", 8)
    widths = []
    inputs = LiveModel.inputs
    monkeypatch.setattr(
        LiveModel,
        "inputs",
        lambda self, rows, width=None: (
            (found := inputs(self, rows, width)),
            widths.append(found[1].shape[1]),
        )[0],
    )
    found = explainer.explain(TEXTS, ["attcat", "gae", "attnlrp"])
    assert max(widths) % 8 == 0
    assert max(widths) > max(len(a) for a in found)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            ours.scores, theirs.scores, rtol=0, atol=1e-12 * np.abs(theirs.scores).max()
        )


def test_rows_of_ids_go_among_texts(explainer):
    row = explainer.explain(TEXTS[0], "attcat").row
    given = [*TEXTS, Tokens((row,)).rows[0], *TEXTS]
    found = explainer.explain(given, "attcat", **ONE_EACH)
    np.testing.assert_array_equal(found[5].scores, found[0].scores)
    assert len(found) == len(given)
