"""Under siege: idle, dribbling and abandoned connections cost others nothing, and a signal ends in order."""

import asyncio
import json
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.helpers.api_server import (
    TEXT,
    connect_client,
    make_allow_list,
    run_server,
    start_server_process,
)
from tests.helpers.deadlines import DEADLINE_SECONDS
from tokenlight.web.app import create_app
from tokenlight.web.limits import ServerLimits
from tokenlight.web.server import RequestGuard


class Slow:
    """An application that answers /healthz at once, and everything else when it is let go."""

    def __init__(self):
        self.go = threading.Event()
        self.begun = threading.Event()
        self.arrivals = threading.Semaphore(0)  # one per request that is being answered
        self.given_up = threading.Event()

    async def __call__(self, scope, _receive, send):
        if scope["type"] != "http":
            return
        if scope["path"] != "/healthz":
            self.begun.set()
            self.arrivals.release()
            try:
                await asyncio.to_thread(self.go.wait, 20)
            except asyncio.CancelledError:
                self.given_up.set()
                raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@contextmanager
def run_slow_server(**limits):
    app = Slow()
    bounds = ServerLimits(**limits)
    with run_server(RequestGuard(app, "127.0.0.1", bounds, lambda: True), bounds) as address:
        try:
            yield app, address
        finally:
            app.go.set()


def connect(address, data=b""):
    opened = socket.create_connection(
        httpx.URL(address).netloc.decode().split(":"), timeout=DEADLINE_SECONDS
    )
    opened.sendall(data)
    return opened


def read_until_closed(connection):
    """All that comes until it is closed."""
    received = b""
    with connection:
        while piece := connection.recv(65536):
            received += piece
    return received


def read_error(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_idle_connections_make_room_for_new_ones(capfd):
    with run_slow_server(connections=8) as (_, address), ExitStack() as crowd:
        for _ in range(100):
            crowd.enter_context(connect(address))
            assert httpx.get(f"{address}/healthz", timeout=DEADLINE_SECONDS).status_code == 200
    output = capfd.readouterr()
    assert output.out + output.err == ""


def test_a_new_connection_is_refused_when_all_are_busy():
    with run_slow_server(connections=2) as (app, address), ThreadPoolExecutor(2) as pool:
        at_work = [
            pool.submit(httpx.get, f"{address}/work", timeout=DEADLINE_SECONDS) for _ in range(2)
        ]
        # A connection whose request has not been read may be closed for a new one, so wait for both.
        assert all(app.arrivals.acquire(timeout=DEADLINE_SECONDS) for _ in at_work)
        refused = httpx.get(f"{address}/healthz", timeout=DEADLINE_SECONDS)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "busy"
        assert refused.headers["retry-after"] == "1"
        app.go.set()
        assert [future.result().status_code for future in at_work] == [200, 200]
        assert httpx.get(f"{address}/healthz", timeout=DEADLINE_SECONDS).status_code == 200


POST = b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "incomplete_request",
    [b"", b"GET /healthz HTT", POST, POST + b'Content-Length: 90\r\n\r\n{"text": "go'],
    ids=["nothing", "a line", "headers", "a body"],
)
def test_an_incomplete_request_times_out(incomplete_request, capfd):
    with run_slow_server(receive_seconds=0.2) as (app, address):
        status, error = read_error(read_until_closed(connect(address, incomplete_request)))
        assert (status, error["code"]) == (408, "timeout")
        assert not app.begun.is_set()
    assert "Traceback" not in capfd.readouterr().err


def test_a_second_request_on_a_connection_has_its_own_timeout():
    """One that has arrived is answered however long that takes."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with run_slow_server(receive_seconds=1.0) as (app, address):
        waits = connect(address, request.replace(b"healthz", b"work"))
        assert not app.go.wait(2.0)  # twice as long as a request may take to arrive
        app.go.set()
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += waits.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        waits.sendall(request[:-2])
        assert read_error(read_until_closed(waits))[0] == 408


def test_a_request_is_cancelled_when_its_client_disconnects():
    with run_slow_server() as (app, address):
        asker = connect(address, b"GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert app.begun.wait(DEADLINE_SECONDS)
        asker.close()
        assert app.given_up.wait(DEADLINE_SECONDS)


def test_a_request_does_not_wait_for_abandoned_ones(monkeypatch):
    """Sixty-four leave before they are answered: the model is asked for none of them."""
    texts = []
    first = threading.Event()
    go = threading.Event()
    from tokenlight.web import tasks

    explain = tasks.explain_batch

    def explain_after_signal(served, requests, max_cost):
        if requests[0].explain_input == "wait":
            first.set()
            assert go.wait(DEADLINE_SECONDS)
        texts.extend(request.explain_input for request in requests)
        return explain(served, requests, max_cost)

    app = create_app(make_allow_list(), try_methods=False)
    monkeypatch.setattr(tasks, "explain_batch", explain_after_signal)
    body = json.dumps({"text": TEXT}).encode()
    post = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with (
        run_server(app) as address,
        httpx.Client(base_url=address, timeout=DEADLINE_SECONDS) as client,
    ):
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(client.post, "/api/explain", json={"text": "wait"})
            assert first.wait(DEADLINE_SECONDS)
            for _ in range(64):
                connect(address, post).close()
            while len(address.server.server_state.connections) > 1:
                assert not go.wait(0.01)
            assert (
                httpx.get(f"{address}/healthz", timeout=DEADLINE_SECONDS).status_code == 200
            )  # the loop has gone round
            go.set()
            assert waits.result().status_code == 200
        assert client.post("/api/explain", json={"text": "good film"}).status_code == 200
    assert texts == ["wait", "good film"]


WORK_WITHOUT_END = """
import signal, time
from tokenlight.hooks.locks import call_between_passes
from tokenlight.web import tasks
from tokenlight.web.worker import Priority, ModelWorker
queue_job = ModelWorker.submit
def submit_and_print(self, priority, *arguments):
    job = queue_job(self, priority, *arguments)
    if priority is Priority.LONG:
        print("waiting", flush=True)
    return job
ModelWorker.submit = submit_and_print
def evaluate_forever(*_):
    while True:
        time.sleep(0.01)
        call_between_passes()
tasks.evaluate = evaluate_forever
# As libraries do that start workers of their own, Ray among them.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
"""


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_rejects_waiting_requests_and_exits_with_0(stop_signal, bert_folder):
    server = start_server_process("--port", 0, "--model", bert_folder, before=WORK_WITHOUT_END)
    try:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        with (
            ThreadPoolExecutor(3) as pool,
            httpx.Client(base_url=address, timeout=DEADLINE_SECONDS) as client,
        ):
            ask = lambda _: client.post("/api/evaluate", json={"texts": [TEXT]})  # noqa: E731
            waiting = [pool.submit(ask, number) for number in range(3)]
            dribbling = connect(address, POST + b"Content-Length: 90\r\n\r\n{")
            idle = connect(address)
            assert client.get("/healthz").status_code == 200
            while client.post("/api/explain", json={"text": "good film"}).status_code != 200:
                pass
            assert [server.stdout.readline() for _ in waiting] == ["waiting\n"] * 3
            server.send_signal(stop_signal)
            for answer in (future.result() for future in waiting):
                assert answer.status_code == 503, answer.text
                assert answer.json()["error"]["code"] == "shutting_down"
            assert read_until_closed(idle) == read_until_closed(dribbling) == b""
    finally:
        if server.poll() is None:
            server.send_signal(stop_signal)  # an impatient hand changes nothing
        _, err = server.communicate(timeout=DEADLINE_SECONDS)
    assert server.returncode == 0, err
    assert "Traceback" not in err
    assert err.endswith("stopped\n")


def test_a_long_request_is_finished_though_short_ones_keep_coming():
    with connect_client() as client, ThreadPoolExecutor(9) as pool:
        text = "the film is not bad, but the plot was dull. " * 40
        payload = {
            "text": text,
            "long": "stride",
            "method": ["gae", "integrated_gradients:num_steps=8"],
        }
        long = pool.submit(client.post, "/api/explain", json=payload)
        while not long.done():
            assert client.post("/api/explain", json={"text": TEXT}).status_code == 200
        assert long.result().status_code == 200, long.result().text
