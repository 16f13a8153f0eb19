"""A worker gathers what waits, keeps everybody's answer their own, and refuses what is too much."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.served import TEXT, allow_list, asking, refused
from tokenlight.errors import BadInput
from tokenlight.web.explain import Explained, Wanted, explain_batch
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import Refusal
from tokenlight.web.requests import ExplainAsked
from tokenlight.web.store import Entry, Kept
from tokenlight.web.worker import Worker


class Gate:
    """A batch function that waits until it is opened, and remembers its batches."""

    def __init__(self):
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, asked):
        self.entered.set()
        assert self.open.wait(20)
        self.batches.append(list(asked))
        return [BadInput(f"no {one}") if one < 0 else one * 10 for one in asked]


@pytest.fixture
def gate():
    return Gate()


def test_what_waits_is_answered_in_one_batch_each_by_itself(gate):
    worker = Worker("test", gate, Limits())
    first = worker.quick(1)
    assert gate.entered.wait(20)
    jobs = [worker.quick(n) for n in (2, -3, 4)]
    gate.open.set()
    assert first.future.result(20) == 10
    assert jobs[0].future.result(20) == 20
    with pytest.raises(BadInput, match="no -3"):
        jobs[1].future.result(20)
    assert jobs[2].future.result(20) == 40
    assert gate.batches == [[1], [2, -3, 4]]
    worker.stop(5)


def test_a_full_queue_refuses_and_empties_again(gate):
    worker = Worker("test", gate, Limits(waiting=2))
    first = worker.quick(1)
    assert gate.entered.wait(20)
    waiting = [worker.quick(2), worker.quick(3)]
    with pytest.raises(Refusal) as caught:
        worker.quick(4)
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    gate.open.set()
    assert [job.future.result(20) for job in (first, *waiting)] == [10, 20, 30]
    assert worker.quick(5).future.result(20) == 50
    worker.stop(5)


def test_lengthy_work_lets_quick_work_through_between_its_steps():
    order = []
    worker = Worker("test", lambda asked: [order.append("quick") for _ in asked], Limits())

    def steps():
        for _ in range(3):
            order.append("step")
            worker.quick(0)
            yield
        return "done"

    assert worker.lengthy(steps).future.result(20) == "done"
    worker.quick(0).future.result(20)
    assert order[:6] == ["step", "quick"] * 3
    worker.stop(5)


def test_background_work_waits_until_nobody_asks():
    worker = Worker("test", lambda asked: asked, Limits(idle_seconds=0.3))
    done = []

    def steps():
        done.append(time.monotonic())
        return
        yield

    asked = time.monotonic()
    worker.quick(1).future.result(20)
    worker.background(steps).future.result(20)
    assert done[0] - asked >= 0.3
    worker.stop(5)


def test_an_abandoned_job_is_dropped_where_it_stands():
    reached, go = threading.Event(), threading.Event()
    steps_done = []
    worker = Worker("test", lambda asked: asked, Limits())

    def steps():
        for number in range(1000):
            steps_done.append(number)
            reached.set()
            go.wait(20)
            yield

    job = worker.lengthy(steps)
    assert reached.wait(20)
    job.abandon()
    go.set()
    with pytest.raises(Refusal):
        job.future.result(20)
    assert steps_done == [0]
    worker.stop(5)


def test_stopping_tells_who_waits(gate):
    worker = Worker("test", gate, Limits())
    first = worker.quick(1)
    assert gate.entered.wait(20)
    second = worker.quick(2)
    stopper = threading.Thread(target=worker.stop, args=(20,))
    stopper.start()
    with pytest.raises(Refusal) as caught:
        second.future.result(20)
    assert caught.value.status == 503
    gate.open.set()
    stopper.join(20)
    assert first.future.result(1) == 10  # what was begun is finished
    with pytest.raises(Refusal):
        worker.quick(3)


def test_a_batch_gives_each_the_answer_it_would_get_alone():
    served = allow_list().named("tiny")
    asked = [
        ExplainAsked(text="good film"),
        ExplainAsked(text="a dull and slow plot, but the acting was great!"),
        ExplainAsked(text=" "),
        ExplainAsked(text="good film", target="nobody"),
        ExplainAsked(text="bad", target="all"),
        ExplainAsked(text="film " * 100),
        ExplainAsked(text="we love it", method=["gae", "attcat"]),
        ExplainAsked(text="never dull", target={"for": "positive", "rather_than": "negative"}),
    ]
    wanted = [Wanted.of(one, served) for one in asked]
    together = explain_batch(served, wanted, 10**6)
    for one, answer in zip(wanted, together, strict=True):
        (alone,) = explain_batch(served, [one], 10**6)
        assert type(answer) is type(alone)
        if not isinstance(answer, Explained):
            assert str(answer) == str(alone)
            continue
        assert len(answer.attributions) == len(alone.attributions)
        for mine, theirs in zip(answer.attributions, alone.attributions, strict=True):
            assert (mine.method, mine.target) == (theirs.method, theirs.target)
            assert mine.row == theirs.row
            np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-9)
    kinds = [type(answer).__name__ for answer in together]
    assert kinds.count("Explained") == 5


def test_over_capacity_is_429_and_nothing_breaks():
    limits = Limits(waiting=2, gather_seconds=0.05)
    with asking(limits=limits) as client, ThreadPoolExecutor(24) as pool:
        ask = lambda _: client.post("/api/explain", json={"text": TEXT, "method": "transatt"})  # noqa: E731
        answers = list(pool.map(ask, range(96)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        full = next(answer for answer in answers if answer.status_code == 429)
        assert full.headers["retry-after"] == "1"
        refused(full, 429, "busy")
        assert ask(0).status_code == 200


def test_what_takes_too_long_is_504():
    limits = Limits(answer_seconds=0.001)
    with asking(limits=limits) as client:
        asked = {"text": TEXT, "method": ["shapley", "integrated_gradients", "lime", "occlusion"]}
        refused(client.post("/api/explain", json=asked), 504, "timeout")
        assert client.get("/healthz").status_code == 200


def test_the_store_keeps_the_newest_and_those_it_was_started_with():
    a = allow_list().named("tiny").explainer.explain(TEXT)
    kept = Kept(Limits(kept_attributions=3))
    pinned = kept.put(a, "tiny", pinned=True)
    entries = [kept.put(a, "tiny") for _ in range(3)]
    kept.get(entries[0].id)  # looked at, so it is not the oldest
    newest = kept.put(a, "tiny")
    assert len(kept) == 4
    for entry in (pinned, entries[0], entries[2], newest):
        assert kept.get(entry.id) is entry
    with pytest.raises(Refusal):
        kept.get(entries[1].id)
    tight = Kept(Limits(kept_bytes=1))
    for _ in range(5):
        last = tight.put(a, "tiny")
    assert len(tight) == 1
    assert tight.get(last.id) is last


def test_the_store_counts_every_byte_an_explanation_holds():
    """Long notes, a vocabulary of logits and a tower of lists weigh as much as the scores do."""
    a = allow_list().named("tiny").explainer.explain(TEXT)
    light = Entry("x", a, None).weighed()
    for heavy, least in (
        (replace(a, notes=("x" * 10**6,)), 10**6),
        (replace(a, logits=np.zeros(10**6)), 8 * 10**6),
        (replace(a, extras={"lists": [[] for _ in range(10**4)]}), 56 * 10**4),
    ):
        assert Entry("x", heavy, None).weighed() >= least > light
        kept = Kept(Limits(kept_bytes=3 * least))
        for _ in range(5):
            kept.put(heavy, None)
        assert len(kept) == 2


def test_what_is_added_to_an_explanation_is_counted_too():
    a = allow_list().named("tiny").explainer.explain(TEXT)
    kept = Kept(Limits(kept_bytes=10**6))
    first, second = kept.put(a, None), kept.put(a, None)
    second.curve = {"hide": [float(i) for i in range(10**5)]}
    kept.weigh([second])
    assert len(kept) == 1
    assert kept.get(second.id) is second
    kept.weigh([first])  # gone already
    for _ in range(3):
        kept.put(a, None)  # and the heavy one goes first
    assert len(kept) == 3


def test_of_one_game_few_kinds_of_random_orders_are_remembered():
    with asking() as client:
        (made,) = client.post("/api/explain", json={"text": TEXT}).json()["attributions"]
        for seed in range(6):
            asked = {"id": made["id"], "random_orders": 2, "seed": seed}
            (game,) = client.post("/api/perturb", json=asked).json()["games"]
            assert game["random"]["orders"] == 2
    entry = Entry("x", None, None)
    for seed in range(100):
        entry.remember((2, seed), {})
    assert list(entry.bands) == [(2, seed) for seed in range(96, 100)]
