"""Passes that are recorded and launched at once: they give the numbers of the plain pass, or are not used."""

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

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
from tokenlight.explaining import batch, repeat

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
    assert replay.Look(model).same(model)


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
    before = replay.Look(model)
    assert before.same(model)
    change(model)
    assert not before.same(model)


def test_explaining_leaves_a_model_as_it_looked():
    model = tiny_bert()
    rows = Tokens.from_ids(torch.randint(5, 50, (2, 7)))
    explainer = Explainer(model)
    explainer.explain(rows, ["attcat", "attnlrp"])
    before = replay.Look(model)
    explainer.explain(rows, ["attcat", "attnlrp"])
    assert before.same(model)


@dataclass
class Left:
    """What the pass of :func:`doubled` leaves."""

    values: Fetched

    def numbers(self):
        return [self.values.arrived()]

    def again(self):
        return Left(self.values.again())


class Graph:
    """Stands in for a recorded pass: twice what it is given, by the weight it was recorded with, plus the
    targets."""

    def __init__(self, given, sent, into, weight):
        self.given, self.sent, self.into, self.weight = given, sent, into, weight.detach()[0]
        self.launched = 0

    def replay(self):
        self.launched += 1
        self.into.copy_(2 * self.given * self.weight + self.sent)


@pytest.fixture
def recorded(monkeypatch):
    """A model, its replays with one recorded pass that is past its trials, and a run of that pass."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(3.0)
    model.register_buffer("shift", torch.zeros(1))
    kept, made, given = replay.Replays(model, torch.float64), [], torch.zeros(2).double()

    def doubled(given, targets):
        return Left(Fetched(2 * given[0] * model.weight.detach()[0] + torch.tensor(targets)))

    def by(targets):
        made.append(targets)
        return targets

    crossings = Crossings()
    with crossing(crossings):
        sent([0, 0], CPU, by=by)
    crossings.repeating = True
    into = torch.zeros(2).double()
    with crossing(crossings):
        left = Left(Fetched(into))
    graph = Graph(given, crossings.sent[0][0], into, model.weight)
    look = replay.Look(model)
    own = replay.Recorded(graph, [given], crossings, left, look, "texts", trials={False, True})
    kept._known["key"] = own
    plain = []

    def run(values, targets):
        def work(given):
            plain.append(targets)
            return doubled(given, targets)

        given = [torch.tensor(values).double()]
        found = kept.run(replay.Returning(given, targets, "key", "other texts"), work)
        return found.numbers()[0].tolist()

    made.clear()
    return SimpleNamespace(model=model, kept=kept, run=run, graph=graph, plain=plain, made=made)


def test_a_recorded_pass_is_launched_before_the_model_is_looked_at(recorded, monkeypatch):
    launched, same = [], replay.Look.same

    def looked(self, model):
        launched.append(recorded.graph.launched)
        return same(self, model)

    monkeypatch.setattr(replay.Look, "same", looked)
    assert recorded.run([1.0, 2.0], [0, 0]) == [6.0, 12.0]
    assert recorded.run([2.0, 3.0], [5, 0]) == [17.0, 18.0]
    assert launched == [1, 2]
    assert not recorded.plain


def test_numbers_written_in_place_are_read_by_a_replay(recorded):
    recorded.model.weight.data.fill_(1.0)
    assert recorded.run([1.0, 2.0], [0, 0]) == [2.0, 4.0]
    assert not recorded.plain


def test_what_was_launched_for_a_changed_model_is_thrown_away(recorded):
    assert recorded.kept.holds("key")
    recorded.model.weight = torch.nn.Parameter(torch.full((1, 1), 5.0))
    assert recorded.run([1.0, 2.0], [0, 0]) == [10.0, 20.0]  # the graph's would be 6 and 12
    assert recorded.graph.launched == 1
    assert recorded.plain == [[0, 0]]
    assert not recorded.kept.holds("key")


@pytest.mark.parametrize("name", ["weight", "shift"])
def test_a_pass_whose_memory_may_be_gone_is_not_launched(recorded, name):
    moved = getattr(recorded.model, name)
    moved.data = moved.data.clone()
    assert recorded.run([1.0, 2.0], [0, 1]) == [6.0, 13.0]
    assert recorded.graph.launched == 0
    assert recorded.plain == [[0, 1]]
    assert not recorded.kept.holds("key")


def test_a_pass_on_trial_looks_first_and_is_held_against_the_plain_one(recorded):
    known = recorded.kept._known["key"]
    known.trials.clear()
    assert recorded.run([1.0, 2.0], [0, 0]) == [6.0, 12.0]
    assert known.trials == {True}
    assert recorded.plain == [[0, 0]]
    known.trials.clear()
    recorded.model.eval()
    assert recorded.run([1.0, 2.0], [0, 0]) == [6.0, 12.0]
    assert recorded.graph.launched == 1


def test_targets_that_return_are_sent_once(recorded):
    for targets in ([0, 0], [0, 0], [4, 0], [4, 0], [0, 0]):
        assert recorded.run([1.0, 1.0], targets) == [6.0 + targets[0], 6.0]
    assert recorded.made == [[0, 0], [4, 0], [0, 0]]


@pytest.fixture
def standing(monkeypatch):
    """A device that keeps what the recorded pass left: how often each recording was launched."""
    launched: list[object] = []

    class Standing:
        def replay(self):
            launched.append(self)

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Standing)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3, 4))
    monkeypatch.setattr(replay, "_recording", lambda *_: nullcontext())
    monkeypatch.setattr(repeat, "_repeatable", lambda *_: True)
    return launched


@pytest.mark.parametrize("target", ["predicted", 1])
def test_a_call_that_returns_is_answered_by_its_recording(standing, target, monkeypatch):
    explainer, methods = Explainer(tiny_bert()), ["attcat", "random", "gae"]
    rows = Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(1)))
    expected = explainer.explain(rows, methods, target=target)
    for _ in range(3):
        explainer.explain(rows, methods, target=target)
    assert len(standing) == 1  # on trial
    with monkeypatch.context() as never:
        never.setattr(explainer.live, "call", None)  # no plain pass
        never.setattr(batch, "maps_are_large", None)  # nor asked for memory that is there
        found = explainer.explain(rows, methods, target=target)
    assert len(standing) == 2
    for one, other in zip(found, expected, strict=True):
        assert (one.row, one.method, one.target) == (other.row, other.method, other.target)
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.logits, other.logits)


def test_a_recording_that_gives_other_numbers_on_its_trial_is_used_no_more(standing):
    explainer, plain = Explainer(tiny_bert()), Explainer(tiny_bert())
    first, other = (
        Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(i)))
        for i in (1, 2)
    )
    for _ in range(5):
        explainer.explain(first, "attcat", target=1)
    # What stands there is the first texts'.
    for one, own in zip(
        explainer.explain(other, "attcat", target=1),
        plain.explain(other, "attcat", target=1),
        strict=True,
    ):
        np.testing.assert_allclose(one.scores, own.scores, rtol=1e-12)
    assert len(standing) == 3  # two of them on trial
    assert replay.NEVER in explainer.live.replays._known.values()


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
