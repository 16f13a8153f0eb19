"""Passes that are recorded and launched at once: they give the numbers of the plain pass, or are not used."""

import numpy as np
import pytest
import torch

from tests.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.capture import replay
from tokenlight.capture.transfer import (
    Answer,
    Crossings,
    Fetched,
    Unrepeatable,
    crossing,
    repeating,
    sent,
)
from tokenlight.errors import NotFinite
from tokenlight.explaining import repeat

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_what_was_sent_is_read_again_in_the_same_order():
    kept = Crossings()
    with crossing(kept):
        first, second = sent([1, 2], CPU), sent([3.0], CPU, torch.float64)
    assert not repeating()
    kept.repeating = True
    with crossing(kept):
        assert repeating()
        assert sent([7, 8], CPU) is first
        assert sent([9.0], CPU, torch.float64) is second


def test_what_is_made_of_targets_can_be_made_of_others():
    kept = Crossings()
    with crossing(kept):
        sent([1, 2], CPU)
        sent([1, 2], CPU, by=lambda targets: [10 * one for one in targets])
    (_, fixed), (found, made) = kept.sent
    assert fixed is None
    assert found.tolist() == [10, 20]
    assert made is not None
    assert made([3, 4]).tolist() == [30, 40]


def test_an_answer_of_a_recorded_pass_reads_what_stands_there_now():
    kept, place = Crossings(repeating=True), torch.tensor([1.0, 2.0], dtype=torch.float64)
    with crossing(kept):
        answer = Answer(Fetched(place), lambda values: values.sum())
    place += 1
    assert answer.again()() == 5.0


def test_an_answer_is_asked_with_what_is_known_by_then():
    answer = Answer(Fetched(torch.tensor([1.0])), lambda values, targets: (values[0], targets))
    assert answer(["positive"]) == (1.0, ["positive"])


@pytest.mark.parametrize("config", [None, {"width": 3}])
def test_a_module_may_call_anything_its_config(config):
    model = torch.nn.Linear(2, 2)
    model.config = config
    assert replay._same(replay._look(model), replay._look(model))


def test_texts_of_a_recorded_pass_can_be_counted_and_not_read():
    rows = replay.Unread(("a", "b"))
    assert len(rows) == 2
    for read in (lambda: rows[0], lambda: list(rows), lambda: "a" in rows):
        with pytest.raises(Unrepeatable):
            read()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.classifier.register_forward_hook(lambda *_: None),
        lambda m: setattr(m.bert.encoder.layer[0].attention.self, "scaling", 0.5),
        lambda m: setattr(m.config, "problem_type", "regression"),
        lambda m: setattr(m.classifier.weight, "data", m.classifier.weight.data.clone()),
        lambda m: setattr(m, "classifier", torch.nn.Linear(16, 3)),
        lambda m: m.train(),
        lambda m: m.add_module("more", torch.nn.Identity()),
    ],
    ids=["hook", "attribute", "config", "weights", "module", "mode", "part"],
)
def test_a_changed_model_looks_different(change):
    model = tiny_bert().eval()
    before = replay._look(model)
    assert replay._same(before, replay._look(model))
    change(model)
    assert not replay._same(before, replay._look(model))


def test_explaining_leaves_a_model_as_it_looked():
    model = tiny_bert()
    rows = Tokens.from_ids(torch.randint(5, 50, (2, 7)))
    explainer = Explainer(model)
    explainer.explain(rows, ["attcat", "attnlrp"])
    before = replay._look(model)
    explainer.explain(rows, ["attcat", "attnlrp"])
    assert replay._same(before, replay._look(model))


def batches(count, shape=(3, 9), seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(5, 50, shape, generator=draw)
        lengths = torch.randint(shape[1] - 2, shape[1] + 1, shape[:1], generator=draw)
        lengths[0] = shape[1]
        yield Tokens.from_ids(ids, (torch.arange(shape[1]) < lengths[:, None]).long())


@needs_gpu
@pytest.mark.parametrize("target", ["predicted", 1])
@pytest.mark.parametrize(
    "method", ["attcat", "attnlrp", "transatt", "gae", ["rollout", "random", "cat"]]
)
def test_a_replayed_pass_gives_the_numbers_of_the_plain_one(method, target, monkeypatch):
    model = tiny_bert().cuda()
    explainer, plain = Explainer(model), Explainer(model)
    for tokens in batches(8):
        found = explainer.explain(tokens, method, target=target)
        with monkeypatch.context() as never:
            never.setattr(repeat, "SMALL", 0)
            expected = plain.explain(tokens, method, target=target)
        for one, other in zip(found, expected, strict=True):
            assert one.target == other.target
            assert one.extras.keys() == other.extras.keys()
            np.testing.assert_allclose(
                one.scores, other.scores, atol=1e-6 * np.abs(other.scores).max(), rtol=0
            )
    known = list(explainer.live.replays._known.values())
    assert any(isinstance(one, replay.Recorded) and one.trials == {True} for one in known)


@needs_gpu
def test_a_check_of_a_replayed_pass_names_the_target_of_its_own_batch():
    model = tiny_bert().cuda()
    explainer = Explainer(model)
    for tokens in batches(6):
        explainer.explain(tokens, "rollout")
    model.classifier.weight.data.zero_()  # in place: the same model to a replay
    with pytest.raises(NotFinite, match=r"target '\w+' has gradient zero at every token of text 0"):
        explainer.explain(tokens, "rollout")


@needs_gpu
def test_a_changed_model_is_not_replayed():
    model = tiny_bert().cuda()
    explainer = Explainer(model)
    for tokens in batches(6):
        before = explainer.explain(tokens, "attcat", target=1)
    model.classifier.weight = torch.nn.Parameter(3 * model.classifier.weight.detach())
    after = explainer.explain(tokens, "attcat", target=1)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(3 * one.scores, other.scores, rtol=1e-4, atol=1e-12)


@needs_gpu
def test_a_pass_that_asks_the_device_is_left_plain_and_torch_goes_on():
    model = tiny_bert().cuda()
    model.bert.register_forward_hook(lambda *_: float(torch.ones(1, device="cuda").sum()) and None)
    explainer = Explainer(model)
    for tokens in batches(5):
        explainer.explain(tokens, "attcat", target=1)
    assert list(explainer.live.replays._known.values()).count(replay.NEVER) >= 1
    assert torch.rand(3, device="cuda").isfinite().all()


def test_a_call_is_cut_into_packs_when_it_returns_unless_its_passes_cannot_be_replayed():
    kept = replay.Replays(torch.nn.Linear(1, 1), torch.bfloat16)
    methods = ("attcat",)
    assert [kept.returns(("call", *methods), methods) for _ in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    kept._known[((64, 128), methods)] = replay.NEVER
    assert not kept.returns(("call", *methods), methods)
    assert [kept.returns(("call", "gae"), ("gae",)) for _ in range(3)] == [False, False, True]
