"""A worker gathers what waits, keeps everybody's answer their own, and refuses what is too much."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.api_server import TEXT, assert_error, connect_client, make_allow_list
from tests.helpers.deadlines import DEADLINE_SECONDS
from tokenlight.errors import BadInput
from tokenlight.hooks.instrument import locked_model
from tokenlight.hooks.locks import call_between_passes, callback_between_passes
from tokenlight.web import tasks
from tokenlight.web import worker as worker_module
from tokenlight.web.api_errors import ApiError
from tokenlight.web.attribution_store import AttributionStore, StoredAttribution
from tokenlight.web.limits import ServerLimits
from tokenlight.web.requests import ExplainBody
from tokenlight.web.tasks import ExplainRequest, ExplainResult, explain_batch
from tokenlight.web.worker import ModelWorker, Priority


class Gate:
    """A batch function that waits until it is opened, and remembers its batches."""

    def __init__(self):
        self.open = threading.Event()
        self.entered = threading.Event()
        self.batches = []

    def __call__(self, requests):
        self.entered.set()
        assert self.open.wait(DEADLINE_SECONDS)
        self.batches.append(list(requests))
        return [BadInput(f"no {number}") if number < 0 else number * 10 for number in requests]


@pytest.fixture
def gate():
    return Gate()


def test_waiting_requests_are_answered_in_one_batch(gate):
    worker = ModelWorker("test", gate, ServerLimits())
    first = worker.submit(Priority.QUICK, 1)
    assert gate.entered.wait(DEADLINE_SECONDS)
    jobs = [worker.submit(Priority.QUICK, n) for n in (2, -3, 4)]
    gate.open.set()
    assert first.future.result(DEADLINE_SECONDS) == 10
    assert jobs[0].future.result(DEADLINE_SECONDS) == 20
    with pytest.raises(BadInput, match="no -3"):
        jobs[1].future.result(DEADLINE_SECONDS)
    assert jobs[2].future.result(DEADLINE_SECONDS) == 40
    assert gate.batches == [[1], [2, -3, 4]]
    worker.stop(5)


def test_a_full_queue_refuses_and_empties_again(gate):
    worker = ModelWorker("test", gate, ServerLimits(max_waiting=(2, 2, 2)))
    first = worker.submit(Priority.QUICK, 1)
    assert gate.entered.wait(DEADLINE_SECONDS)
    waiting = [worker.submit(Priority.QUICK, 2), worker.submit(Priority.QUICK, 3)]
    with pytest.raises(ApiError, match="3 before this one") as caught:
        worker.submit(Priority.QUICK, 4)
    assert (caught.value.status, caught.value.code) == (429, "busy")
    assert caught.value.headers == {"Retry-After": "1"}
    gate.open.set()
    assert [job.future.result(DEADLINE_SECONDS) for job in (first, *waiting)] == [10, 20, 30]
    assert worker.submit(Priority.QUICK, 5).future.result(DEADLINE_SECONDS) == 50
    worker.stop(5)


def test_a_long_expected_wait_is_refused_with_retry_after(gate):
    gate.open.set()
    worker = ModelWorker("test", gate, ServerLimits(wait_seconds=10))
    worker._expected_seconds[Priority.SHORT] = 7.0  # as seen so far
    has_started = threading.Event()
    go = threading.Event()
    first = worker.submit(Priority.SHORT, lambda: (has_started.set(), go.wait(DEADLINE_SECONDS)))
    assert has_started.wait(DEADLINE_SECONDS)
    second = worker.submit(Priority.SHORT, lambda: "second")  # 7 seconds to wait
    with pytest.raises(ApiError) as caught:
        worker.submit(Priority.SHORT, lambda: None)  # 14
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "7"})
    assert worker.submit(Priority.QUICK, 1).future is not None  # others are not turned away for it
    go.set()
    assert second.future.result(DEADLINE_SECONDS) == "second"
    assert first.future.done()
    worker.stop(5)


def test_abandoned_requests_do_not_count_in_the_queue(gate):
    worker = ModelWorker("test", gate, ServerLimits(max_waiting=(4, 4, 4)))
    worker.submit(Priority.QUICK, 1)
    assert gate.entered.wait(DEADLINE_SECONDS)
    for _ in range(64):
        worker.submit(Priority.QUICK, 2).future.cancel()
    last = worker.submit(Priority.QUICK, 3)
    gate.open.set()
    assert last.future.result(DEADLINE_SECONDS) == 30
    assert gate.batches == [[1], [3]]
    worker.stop(5)


def test_a_batch_respects_the_limit_of_characters(gate):
    worker = ModelWorker("test", gate, ServerLimits(batch_characters=100))
    worker.submit(Priority.QUICK, 1)
    assert gate.entered.wait(DEADLINE_SECONDS)
    jobs = [
        worker.submit(Priority.QUICK, n, size) for n, size in ((2, 500), (3, 60), (4, 60), (5, 60))
    ]
    gate.open.set()
    assert [job.future.result(DEADLINE_SECONDS) for job in jobs] == [20, 30, 40, 50]
    assert gate.batches == [[1], [2], [3, 4], [5]]
    worker.stop(5)


def test_shorter_jobs_run_at_each_pause_of_a_longer_one():
    order = []
    limits = ServerLimits(work_slice_seconds=0.0)
    worker = ModelWorker("test", lambda requests: [order.append("quick") for _ in requests], limits)

    def short():
        order.append("short")
        worker.submit(Priority.QUICK, 0)
        call_between_passes()
        order.append("short again")

    def long():
        for _ in range(2):
            order.append("long")
            worker.submit(Priority.QUICK, 0)
            worker.submit(Priority.SHORT, short)
            worker.submit(Priority.SHORT, short)
            call_between_passes()
        return "done"

    assert worker.submit(Priority.LONG, long).future.result(DEADLINE_SECONDS) == "done"
    once = ["long", "quick", "short", "quick", "short again"]
    assert order[:10] == once * 2  # one short job a pause, so that the long one has its share
    worker.stop(5)


class Clock:
    """Stands in the place of the worker's ``time``; it goes on only where a test says so."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_time_spent_on_other_jobs_does_not_count_towards_the_timeout(monkeypatch):
    order = []
    clock = Clock()
    monkeypatch.setattr(worker_module, "time", clock)

    def slow(requests):
        clock.sleep(1.0)
        return [order.append("quick") for _ in requests]

    worker = ModelWorker("test", slow, ServerLimits(work_slice_seconds=60.0))

    def work():
        for _ in range(2):
            worker.submit(Priority.QUICK, 0)
            call_between_passes()
        order.append("done")

    worker.submit(Priority.LONG, work).future.result(DEADLINE_SECONDS)
    worker.submit(Priority.QUICK, 0).future.result(DEADLINE_SECONDS)
    assert order == ["quick", "done", "quick", "quick"]
    worker.stop(5)


def test_long_jobs_start_even_if_short_ones_keep_coming():
    worker = ModelWorker("test", lambda requests: requests, ServerLimits())
    has_started = threading.Event()

    def short():
        if not has_started.is_set():
            worker.submit(Priority.SHORT, short)

    worker.submit(Priority.SHORT, short)
    assert worker.submit(Priority.LONG, has_started.set).future.result(DEADLINE_SECONDS) is None
    worker.stop(5)


def test_background_work_waits_until_the_server_is_idle():
    worker = ModelWorker("test", lambda requests: requests, ServerLimits(idle_seconds=0.3))
    start = time.monotonic()
    worker.submit(Priority.QUICK, 1).future.result(DEADLINE_SECONDS)
    end = worker.submit(Priority.BACKGROUND, time.monotonic).future.result(DEADLINE_SECONDS)
    assert end - start >= 0.3
    worker.stop(5)


def test_an_abandoned_job_ends_at_its_next_pause():
    reached = threading.Event()
    go = threading.Event()
    steps_done = []
    worker = ModelWorker("test", lambda requests: requests, ServerLimits())

    def work():
        for number in range(1000):
            steps_done.append(number)
            reached.set()
            go.wait(DEADLINE_SECONDS)
            call_between_passes()

    job = worker.submit(Priority.LONG, work)
    assert reached.wait(DEADLINE_SECONDS)
    job.future.cancel()
    go.set()
    assert worker.submit(Priority.LONG, lambda: "next").future.result(DEADLINE_SECONDS) == "next"
    assert steps_done == [0]
    worker.stop(5)


@pytest.mark.parametrize("broken", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_the_thread_outlives_every_exception(broken, caplog):
    def breaks(requests):
        if requests == ["break"]:
            raise broken
        return requests

    worker = ModelWorker("test", breaks, ServerLimits())
    for job in (
        worker.submit(Priority.QUICK, "break"),
        worker.submit(Priority.LONG, lambda: breaks(["break"])),
    ):
        with pytest.raises(ApiError) as caught:
            job.future.result(DEADLINE_SECONDS)
        assert caught.value.status == 500
    assert worker.submit(Priority.QUICK, "on").future.result(DEADLINE_SECONDS) == "on"
    assert broken.__name__ in caplog.text
    worker.stop(5)


def test_stopping_rejects_waiting_and_running_jobs(gate):
    worker = ModelWorker("test", gate, ServerLimits())
    first = worker.submit(Priority.QUICK, 1)
    assert gate.entered.wait(DEADLINE_SECONDS)
    second = worker.submit(Priority.QUICK, 2)
    third = worker.submit(Priority.LONG, lambda: None)
    stopper = threading.Thread(target=worker.stop, args=(20,))
    stopper.start()
    for job in (second, third):
        with pytest.raises(ApiError) as caught:
            job.future.result(DEADLINE_SECONDS)
        assert caught.value.status == 503
    gate.open.set()
    stopper.join(DEADLINE_SECONDS)
    assert first.future.result(1) == 10  # a batch that was begun is finished
    with pytest.raises(ApiError):
        worker.submit(Priority.QUICK, 3)


def test_long_work_ends_at_its_next_pause_when_the_server_closes():
    worker = ModelWorker("test", list, ServerLimits())
    has_started = threading.Event()
    go = threading.Event()
    after = []

    def work():
        has_started.set()
        go.wait(DEADLINE_SECONDS)
        call_between_passes()
        after.append("went on")

    job = worker.submit(Priority.LONG, work)
    assert has_started.wait(DEADLINE_SECONDS)
    assert not worker.stop(0.01)  # the pass has not ended
    with pytest.raises(ApiError) as caught:
        job.future.result(1)
    assert caught.value.status == 503
    go.set()
    assert worker.stop(20)
    assert after == []


def test_a_job_run_during_a_pause_gives_the_same_result():
    """The long request is a text in windows; between its passes the model answers others."""
    served = make_allow_list().get_model("tiny")
    alone = served.explainer.explain(TEXT, "gae", progress=False)
    text = "the film is not bad. " * 30
    expected = served.explainer.explain(text, "gae", long="stride", batch_tokens=64, progress=False)
    answers = []

    def between():
        answers.append(served.explainer.explain(TEXT, "gae", progress=False))

    with callback_between_passes(between):
        interrupted = served.explainer.explain(
            text, "gae", long="stride", batch_tokens=64, progress=False
        )
    assert len(answers) > 3
    np.testing.assert_array_equal(interrupted.scores, expected.scores)
    for answer in answers:
        np.testing.assert_array_equal(answer.scores, alone.scores)


def test_no_pause_while_the_model_is_locked():
    """What a metric randomizes is not for those who ask meanwhile."""
    served = make_allow_list().get_model("tiny")
    calls = []
    with callback_between_passes(lambda: calls.append("pause")):
        with locked_model(served.explainer.runner.model):
            served.explainer.explain(TEXT, progress=False)
        assert calls == []
        served.explainer.explain(TEXT, progress=False)
        assert calls


def test_a_request_gets_the_same_answer_in_a_batch_as_by_itself():
    served = make_allow_list().get_model("tiny")
    requests = [
        ExplainBody(text="good film"),
        ExplainBody(text="a dull and slow plot, but the acting was great!"),
        ExplainBody(text=" "),
        ExplainBody(text="good film", target="nobody"),
        ExplainBody(text="bad", target="all"),
        ExplainBody(text="film " * 100),
        ExplainBody(text="we love it", method=["gae", "attcat"]),
        ExplainBody(text="never dull", target={"for": "positive", "rather_than": "negative"}),
    ]
    explain_requests = [ExplainRequest.from_body(body, served) for body in requests]
    together = explain_batch(served, explain_requests, 10**6)
    for request, answer in zip(explain_requests, together, strict=True):
        (alone,) = explain_batch(served, [request], 10**6)
        assert type(answer) is type(alone)
        if not isinstance(answer, ExplainResult):
            assert str(answer) == str(alone)
            continue
        assert len(answer.attributions) == len(alone.attributions)
        for mine, expected in zip(answer.attributions, alone.attributions, strict=True):
            assert (mine.method, mine.target) == (expected.method, expected.target)
            assert mine.row == expected.row
            np.testing.assert_allclose(mine.scores, expected.scores, atol=1e-9)
    kinds = [type(answer).__name__ for answer in together]
    assert kinds.count("ExplainResult") == 5


def test_requests_over_capacity_get_429(monkeypatch):
    limits = ServerLimits(max_waiting=(2, 2, 2))
    explain = tasks.explain_batch
    serving = threading.Event()
    go = threading.Event()

    def held(*arguments, **keywords):
        assert not serving.is_set() or go.wait(DEADLINE_SECONDS)  # until somebody was refused
        return explain(*arguments, **keywords)

    monkeypatch.setattr(tasks, "explain_batch", held)

    with connect_client(limits=limits) as client, ThreadPoolExecutor(24) as pool:
        serving.set()  # each model was tried once before

        def ask(_):
            answer = client.post("/api/explain", json={"text": TEXT, "method": "transatt"})
            if answer.status_code == 429:
                go.set()
            return answer

        answers = list(pool.map(ask, range(96)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        full = next(answer for answer in answers if answer.status_code == 429)
        assert full.headers["retry-after"] == "1"
        assert_error(full, 429, "busy")
        assert ask(0).status_code == 200


def test_a_request_that_takes_too_long_is_504():
    limits = ServerLimits(answer_seconds=0.001)
    with connect_client(limits=limits) as client:
        payload = {
            "text": TEXT,
            "method": ["shapley", "integrated_gradients", "lime", "occlusion"],
        }
        assert_error(client.post("/api/explain", json=payload), 504, "timeout")
        assert client.get("/healthz").status_code == 200


def test_the_store_keeps_the_newest_and_those_it_was_started_with():
    attribution = make_allow_list().get_model("tiny").explainer.explain(TEXT)
    store = AttributionStore(ServerLimits(stored_attributions=3))
    pinned = store.add(attribution, "tiny", pinned=True)
    entries = [store.add(attribution, "tiny") for _ in range(3)]
    store.get(entries[0].id)  # looked at, so it is not the oldest
    newest = store.add(attribution, "tiny")
    assert len(store) == 4
    for entry in (pinned, entries[0], entries[2], newest):
        assert store.get(entry.id) is entry
    with pytest.raises(ApiError):
        store.get(entries[1].id)
    tight = AttributionStore(ServerLimits(stored_bytes=1))
    for _ in range(5):
        last = tight.add(attribution, "tiny")
    assert len(tight) == 1
    assert tight.get(last.id) is last


def test_the_store_counts_every_byte_an_explanation_holds():
    """Long notes, a vocabulary of logits and a tower of lists weigh as much as the scores do."""
    attribution = make_allow_list().get_model("tiny").explainer.explain(TEXT)
    light = StoredAttribution("x", attribution, None).measure_bytes()
    for heavy, least in (
        (replace(attribution, notes=("x" * 10**6,)), 10**6),
        (replace(attribution, logits=np.zeros(10**6)), 8 * 10**6),
        (replace(attribution, extras={"lists": [[] for _ in range(10**4)]}), 56 * 10**4),
    ):
        assert StoredAttribution("x", heavy, None).measure_bytes() >= least > light
        store = AttributionStore(ServerLimits(stored_bytes=3 * least))
        for _ in range(5):
            store.add(heavy, None)
        assert len(store) == 2


def test_the_store_counts_games_that_are_added_later():
    attribution = make_allow_list().get_model("tiny").explainer.explain(TEXT)
    store = AttributionStore(ServerLimits(stored_bytes=10**6))
    first = store.add(attribution, None)
    second = store.add(attribution, None)
    second.game_curve = {"hide": [float(i) for i in range(10**5)]}
    store.update_sizes([second])
    assert len(store) == 1
    assert store.get(second.id) is second
    store.update_sizes([first])  # gone already
    for _ in range(3):
        store.add(attribution, None)  # and the heavy one goes first
    assert len(store) == 3


def test_only_the_last_random_orders_of_a_game_are_kept():
    with connect_client() as client:
        (entry,) = client.post("/api/explain", json={"text": TEXT}).json()["attributions"]
        for seed in range(6):
            payload = {"id": entry["id"], "random_orders": 2, "seed": seed}
            (game,) = client.post("/api/perturb", json=payload).json()["games"]
            assert game["random"]["orders"] == 2
    entry = StoredAttribution("x", None, None)
    for seed in range(100):
        entry.add_game_band((2, seed), {})
    assert list(entry.game_bands) == [(2, seed) for seed in range(96, 100)]
