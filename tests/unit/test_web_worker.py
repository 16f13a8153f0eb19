"""A worker gathers what waits, keeps everybody's answer their own, and refuses what is too much."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.served import TEXT, allow_list, asking, refused
from tokenlight.capture.rewired import locked
from tokenlight.capture.turns import pause, pausing
from tokenlight.errors import BadInput
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import Refusal
from tokenlight.web.requests import ExplainAsked
from tokenlight.web.store import Entry, Kept
from tokenlight.web.tasks import Explained, Wanted, explain_batch
from tokenlight.web.worker import Lane, ModelWorker


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
    worker = ModelWorker("test", gate, ServerLimits())
    first = worker.work(Lane.QUICK, 1)
    assert gate.entered.wait(20)
    jobs = [worker.work(Lane.QUICK, n) for n in (2, -3, 4)]
    gate.open.set()
    assert first.future.result(20) == 10
    assert jobs[0].future.result(20) == 20
    with pytest.raises(BadInput, match="no -3"):
        jobs[1].future.result(20)
    assert jobs[2].future.result(20) == 40
    assert gate.batches == [[1], [2, -3, 4]]
    worker.stop(5)


def test_a_full_queue_refuses_and_empties_again(gate):
    worker = ModelWorker("test", gate, ServerLimits(waiting=(2, 2, 2)))
    first = worker.work(Lane.QUICK, 1)
    assert gate.entered.wait(20)
    waiting = [worker.work(Lane.QUICK, 2), worker.work(Lane.QUICK, 3)]
    with pytest.raises(Refusal, match="3 requests for this model came before") as caught:
        worker.work(Lane.QUICK, 4)
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    gate.open.set()
    assert [job.future.result(20) for job in (first, *waiting)] == [10, 20, 30]
    assert worker.work(Lane.QUICK, 5).future.result(20) == 50
    worker.stop(5)


def test_who_would_wait_too_long_is_refused_at_once_and_told_when_to_come_back(gate):
    gate.open.set()
    worker = ModelWorker("test", gate, ServerLimits(wait_seconds=10))
    worker._takes[Lane.SHORT] = 7.0  # as seen so far
    begun, go = threading.Event(), threading.Event()
    first = worker.work(Lane.SHORT, lambda: (begun.set(), go.wait(20)))
    assert begun.wait(20)
    second = worker.work(Lane.SHORT, lambda: "second")  # 7 seconds to wait
    with pytest.raises(Refusal) as caught:
        worker.work(Lane.SHORT, lambda: None)  # 14
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "7"})
    assert worker.work(Lane.QUICK, 1).future is not None  # others are not turned away for it
    go.set()
    assert second.future.result(20) == "second"
    assert first.future.done()
    worker.stop(5)


def test_those_who_left_take_no_place_in_the_queue(gate):
    worker = ModelWorker("test", gate, ServerLimits(waiting=(4, 4, 4)))
    worker.work(Lane.QUICK, 1)
    assert gate.entered.wait(20)
    for _ in range(64):
        worker.work(Lane.QUICK, 2).future.cancel()
    last = worker.work(Lane.QUICK, 3)
    gate.open.set()
    assert last.future.result(20) == 30
    assert gate.batches == [[1], [3]]
    worker.stop(5)


def test_a_batch_holds_no_more_text_than_it_may(gate):
    worker = ModelWorker("test", gate, ServerLimits(batch_characters=100))
    worker.work(Lane.QUICK, 1)
    assert gate.entered.wait(20)
    jobs = [worker.work(Lane.QUICK, n, size) for n, size in ((2, 500), (3, 60), (4, 60), (5, 60))]
    gate.open.set()
    assert [job.future.result(20) for job in jobs] == [20, 30, 40, 50]
    assert gate.batches == [[1], [2], [3, 4], [5]]
    worker.stop(5)


def test_each_pause_lets_shorter_work_through_and_long_work_goes_on():
    order = []
    limits = ServerLimits(share_seconds=0.0)
    worker = ModelWorker("test", lambda asked: [order.append("quick") for _ in asked], limits)

    def short():
        order.append("short")
        worker.work(Lane.QUICK, 0)
        pause()
        order.append("short again")

    def long():
        for _ in range(2):
            order.append("long")
            worker.work(Lane.QUICK, 0)
            worker.work(Lane.SHORT, short)
            worker.work(Lane.SHORT, short)
            pause()
        return "done"

    assert worker.work(Lane.LONG, long).future.result(20) == "done"
    once = ["long", "quick", "short", "quick", "short again"]
    assert order[:10] == once * 2  # one short job a pause, so that the long one has its share
    worker.stop(5)


def test_work_that_was_kept_waiting_goes_on_for_as_long():
    order = []

    def slow(asked):
        time.sleep(1.0)
        return [order.append("quick") for _ in asked]

    worker = ModelWorker("test", slow, ServerLimits(share_seconds=60.0))

    def work():
        for _ in range(2):
            worker.work(Lane.QUICK, 0)
            pause()
        order.append("done")

    worker.work(Lane.LONG, work).future.result(20)
    worker.work(Lane.QUICK, 0).future.result(20)
    assert order == ["quick", "done", "quick", "quick"]
    worker.stop(5)


def test_long_work_begins_though_short_work_never_ends():
    worker = ModelWorker("test", lambda asked: asked, ServerLimits())
    begun = threading.Event()

    def short():
        if not begun.is_set():
            worker.work(Lane.SHORT, short)

    worker.work(Lane.SHORT, short)
    assert worker.work(Lane.LONG, begun.set).future.result(20) is None
    worker.stop(5)


def test_background_work_waits_until_nobody_asks():
    worker = ModelWorker("test", lambda asked: asked, ServerLimits(idle_seconds=0.3))
    asked = time.monotonic()
    worker.work(Lane.QUICK, 1).future.result(20)
    done = worker.work(Lane.BACKGROUND, time.monotonic).future.result(20)
    assert done - asked >= 0.3
    worker.stop(5)


def test_an_abandoned_job_is_dropped_where_it_stands():
    reached, go, done = threading.Event(), threading.Event(), []
    worker = ModelWorker("test", lambda asked: asked, ServerLimits())

    def work():
        for number in range(1000):
            done.append(number)
            reached.set()
            go.wait(20)
            pause()

    job = worker.work(Lane.LONG, work)
    assert reached.wait(20)
    job.future.cancel()
    go.set()
    assert worker.work(Lane.LONG, lambda: "next").future.result(20) == "next"
    assert done == [0]
    worker.stop(5)


@pytest.mark.parametrize("broken", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_the_thread_outlives_every_exception(broken, caplog):
    def breaks(asked):
        if asked == ["break"]:
            raise broken
        return asked

    worker = ModelWorker("test", breaks, ServerLimits())
    for job in (
        worker.work(Lane.QUICK, "break"),
        worker.work(Lane.LONG, lambda: breaks(["break"])),
    ):
        with pytest.raises(Refusal) as caught:
            job.future.result(20)
        assert caught.value.status == 500
    assert worker.work(Lane.QUICK, "on").future.result(20) == "on"
    assert broken.__name__ in caplog.text
    worker.stop(5)


def test_stopping_tells_who_waits_and_who_is_at_work(gate):
    worker = ModelWorker("test", gate, ServerLimits())
    first = worker.work(Lane.QUICK, 1)
    assert gate.entered.wait(20)
    second, third = worker.work(Lane.QUICK, 2), worker.work(Lane.LONG, lambda: None)
    stopper = threading.Thread(target=worker.stop, args=(20,))
    stopper.start()
    for job in (second, third):
        with pytest.raises(Refusal) as caught:
            job.future.result(20)
        assert caught.value.status == 503
    gate.open.set()
    stopper.join(20)
    assert first.future.result(1) == 10  # a batch that was begun is finished
    with pytest.raises(Refusal):
        worker.work(Lane.QUICK, 3)


def test_long_work_ends_at_its_next_pause_when_the_server_closes():
    worker, begun, go, after = (
        ModelWorker("test", list, ServerLimits()),
        threading.Event(),
        threading.Event(),
        [],
    )

    def work():
        begun.set()
        go.wait(20)
        pause()
        after.append("went on")

    job = worker.work(Lane.LONG, work)
    assert begun.wait(20)
    assert not worker.stop(0.01)  # the pass has not ended
    with pytest.raises(Refusal) as caught:
        job.future.result(1)
    assert caught.value.status == 503
    go.set()
    assert worker.stop(20)
    assert after == []


def test_an_answer_given_in_a_pause_is_the_one_given_alone():
    """The long request is a text in windows; between its passes the model answers others."""
    served = allow_list().named("tiny")
    alone = served.explainer.explain(TEXT, "gae", progress=False)
    text = "the film is not bad. " * 30
    whole = served.explainer.explain(text, "gae", long="stride", batch_tokens=64, progress=False)
    found = []

    def between():
        found.append(served.explainer.explain(TEXT, "gae", progress=False))

    with pausing(between):
        again = served.explainer.explain(
            text, "gae", long="stride", batch_tokens=64, progress=False
        )
    assert len(found) > 3
    np.testing.assert_array_equal(again.scores, whole.scores)
    for one in found:
        np.testing.assert_array_equal(one.scores, alone.scores)


def test_no_pause_is_made_while_the_models_weights_are_others():
    """What a metric randomises is not for those who ask meanwhile."""
    served = allow_list().named("tiny")
    calls = []
    with pausing(lambda: calls.append("pause")):
        with locked(served.explainer.live.model):
            served.explainer.explain(TEXT, progress=False)
        assert calls == []
        served.explainer.explain(TEXT, progress=False)
        assert calls


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
    limits = ServerLimits(waiting=(2, 2, 2), gather_seconds=0.05)
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
    limits = ServerLimits(answer_seconds=0.001)
    with asking(limits=limits) as client:
        asked = {"text": TEXT, "method": ["shapley", "integrated_gradients", "lime", "occlusion"]}
        refused(client.post("/api/explain", json=asked), 504, "timeout")
        assert client.get("/healthz").status_code == 200


def test_the_store_keeps_the_newest_and_those_it_was_started_with():
    a = allow_list().named("tiny").explainer.explain(TEXT)
    kept = Kept(ServerLimits(kept_attributions=3))
    pinned = kept.put(a, "tiny", pinned=True)
    entries = [kept.put(a, "tiny") for _ in range(3)]
    kept.get(entries[0].id)  # looked at, so it is not the oldest
    newest = kept.put(a, "tiny")
    assert len(kept) == 4
    for entry in (pinned, entries[0], entries[2], newest):
        assert kept.get(entry.id) is entry
    with pytest.raises(Refusal):
        kept.get(entries[1].id)
    tight = Kept(ServerLimits(kept_bytes=1))
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
        kept = Kept(ServerLimits(kept_bytes=3 * least))
        for _ in range(5):
            kept.put(heavy, None)
        assert len(kept) == 2


def test_what_is_added_to_an_explanation_is_counted_too():
    a = allow_list().named("tiny").explainer.explain(TEXT)
    kept = Kept(ServerLimits(kept_bytes=10**6))
    first, second = kept.put(a, None), kept.put(a, None)
    second.played[None] = {"hide": [float(i) for i in range(10**5)]}
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
    entry.remember(None, {})
    for seed in range(100):
        entry.remember((2, seed), {})
    assert list(entry.played) == [None, *((2, seed) for seed in range(96, 100))]
