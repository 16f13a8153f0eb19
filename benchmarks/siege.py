"""Load-test ``tokenlight serve``: mixed requests, idle connections, slow requests, cancelled requests, long
texts, shutdown under load.

Sixty-four clients ask for explanations, trust tests, games and comparisons at once, and every explanation is
compared with the library's own. Then one client continues while others hold idle connections, send requests
byte by byte, cancel requests, or send long texts that are read in windows. At the end the server is stopped
by a signal with requests open. No answer may be wrong, none may be 500 or above except the 503 of the
shutdown, and nothing may be logged.

    python benchmarks/siege.py [--clients 64] [--seconds 60] [--seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from serve_load import MODEL, compute_references, draw_requests, find_fault

REQUEST_WEIGHTS = {"explain": 8, "compare": 2, "trust": 1, "game": 1}
COMPARED_METHODS = ["attcat", "gae", "rollout", "grad_x_input"]
LONG_SENTENCE = "The film is not bad, but the plot was dull and slow. "
NUM_IDLE_CONNECTIONS = 1_100
NUM_CANCELLED_REQUESTS = 64
NUM_SLOW_CONNECTIONS = 100
MAX_TEXT_LENGTH = 20_000
MAX_RETRY_SECONDS = 5.0
ALLOWED_AT_END = (200, 429, 503)


@dataclass
class LoadLog:
    """What was answered, by kind of request.

    Attributes:
        statuses: How often each status was answered.
        seconds: Seconds until each answer; refusals under ``"KIND refused"``.
        problems: What went wrong, in words.
    """

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)

    async def post(
        self, client: httpx.AsyncClient, kind: str, path: str, body: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Send a request and note its answer.

        A refusal with "retry-after" is waited out and is not a problem.

        Args:
            client: The client.
            kind: Kind of request.
            path: Path of the URL.
            body: Content of the request.

        Returns:
            The content of the answer; None if the request was refused or failed.
        """
        start_time = time.perf_counter()
        try:
            response = await client.post(path, json=body)
        except httpx.HTTPError as error:
            self.problems.append(f"{kind}: {type(error).__name__}: {error}")
            return None
        duration = time.perf_counter() - start_time
        self.statuses[kind][response.status_code] += 1
        if response.status_code == 200:
            self.seconds[kind].append(duration)
            content: dict[str, Any] = response.json()
            return content
        if response.status_code == 429:
            self.seconds[f"{kind} refused"].append(duration)
            retry_seconds = float(response.headers["retry-after"])
            await asyncio.sleep(min(retry_seconds, MAX_RETRY_SECONDS))
        else:
            self.problems.append(f"{kind}: {response.status_code} {response.text[:200]}")
        return None

    def to_dict(self) -> dict[str, Any]:
        """Summarize statuses and times, by kind of request."""
        summary = {}
        for kind, counts in self.statuses.items():
            summary[kind] = {
                "answers": dict(sorted(counts.items())),
                "milliseconds": _summarize_times(self.seconds[kind]),
                "refused after": _summarize_times(self.seconds[f"{kind} refused"]),
            }
        return summary

    def count_server_errors(self) -> int:
        """Count the kinds of server errors before the shutdown."""
        num_errors = 0
        for kind, counts in self.statuses.items():
            if kind != "the end":
                num_errors += sum(status >= 500 for status in counts)
        return num_errors


def _summarize_times(seconds: list[float]) -> dict[str, int] | None:
    """Return median, 99th percentile and maximum in milliseconds; None without times."""
    if not seconds:
        return None
    median, p99, maximum = (1000 * np.quantile(seconds, (0.5, 0.99, 1.0))).round()
    return {"median": int(median), "p99": int(p99), "most": int(maximum)}


async def send_mixed_requests(
    address: str, pairs: list[Any], log: LoadLog, arguments: argparse.Namespace
) -> None:
    """Let many clients send requests of random kinds, one after the other.

    Args:
        address: URL of the server.
        pairs: Requests with the library's own explanations.
        log: Notes the answers.
        arguments: Number of clients, seconds, and the seed.
    """
    end_time = time.perf_counter() + arguments.seconds
    num_clients = arguments.clients
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    kinds = list(REQUEST_WEIGHTS)
    weights = list(REQUEST_WEIGHTS.values())

    async def run_client(client: httpx.AsyncClient, client_index: int) -> None:
        generator = random.Random(arguments.seed * 1000 + client_index)
        while time.perf_counter() < end_time:
            request, reference = generator.choice(pairs)
            (kind,) = generator.choices(kinds, weights)
            if kind == "compare":
                await send_comparison(client, request["text"], log)
            else:
                await send_explanation(client, kind, request, reference, log)

    async with httpx.AsyncClient(base_url=address, timeout=180, limits=limits) as client:
        await asyncio.gather(*(run_client(client, index) for index in range(num_clients)))


async def send_comparison(client: httpx.AsyncClient, text: str, log: LoadLog) -> None:
    """Ask for several methods and check that these were answered."""
    body = {"model": MODEL, "text": text, "method": COMPARED_METHODS}
    response = await log.post(client, "compare", "/api/explain", body)
    if response is None:
        return
    methods = [attribution["method"] for attribution in response["attributions"]]
    if methods != COMPARED_METHODS:
        log.problems.append(f"compare: other methods for {text!r}")


async def send_explanation(
    client: httpx.AsyncClient, kind: str, request: dict[str, Any], reference: Any, log: LoadLog
) -> None:
    """Ask for an explanation, compare it, and test it or play its game if ``kind`` says so."""
    response = await log.post(client, "explain", "/api/explain", request)
    if response is None:
        return
    fault = find_fault(request, response, reference)
    if fault:
        log.problems.append(fault)
    attribution_id = response["attributions"][0]["id"]
    if kind == "trust":
        await log.post(client, kind, "/api/trust", {"id": attribution_id})
    elif kind == "game":
        await log.post(client, kind, "/api/perturb", {"ids": [attribution_id]})


async def send_short_requests(
    address: str, kind: str, log: LoadLog, load: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Let one client ask for short explanations and the health while ``load`` runs."""
    task = asyncio.create_task(load())
    body = {"model": MODEL, "text": "A charming journey."}
    async with httpx.AsyncClient(base_url=address, timeout=180) as client:
        for _ in range(20):
            await log.post(client, kind, "/api/explain", body)
            health = await client.get("/healthz")
            log.statuses[f"{kind}, health"][health.status_code] += 1
            await asyncio.sleep(0.1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def hold_idle_connections(port: int) -> None:
    """Hold connections that send nothing."""
    writers = []
    for _ in range(NUM_IDLE_CONNECTIONS):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
    try:
        await asyncio.sleep(600)
    finally:
        for writer in writers:
            writer.close()


async def send_slow_requests(port: int, cut_after_seconds: list[float]) -> None:
    """Send requests byte by byte that never end.

    Args:
        port: Port of the server.
        cut_after_seconds: Receives, for each connection, the seconds until the server closed it.
    """

    async def send_slowly() -> None:
        start_time = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
        with suppress(ConnectionError):
            writer.write(head)
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.5)
        cut_after_seconds.append(time.perf_counter() - start_time)
        writer.close()

    await asyncio.gather(*(send_slowly() for _ in range(NUM_SLOW_CONNECTIONS)))


async def cancel_requests(address: str) -> None:
    """Send requests and close their connections at once."""
    async with httpx.AsyncClient(base_url=address) as client:
        for index in range(NUM_CANCELLED_REQUESTS):
            text = LONG_SENTENCE * 5 + str(index)
            body = {"model": MODEL, "text": text, "method": COMPARED_METHODS}
            with suppress(httpx.HTTPError):
                await client.post("/api/explain", json=body, timeout=0.02)


def build_long_request() -> dict[str, Any]:
    """Build a request of a text of twenty thousand characters that is read in windows."""
    text = (LONG_SENTENCE * 400)[:MAX_TEXT_LENGTH]
    return {"model": MODEL, "text": text, "long": "stride"}


async def send_long_texts(address: str, log: LoadLog) -> None:
    """Send long texts without end, four at a time."""
    body = build_long_request()
    async with httpx.AsyncClient(base_url=address, timeout=180) as client:
        while True:
            calls = [log.post(client, "stride", "/api/explain", body) for _ in range(4)]
            await asyncio.gather(*calls)


async def stop_with_open_requests(
    address: str, server: subprocess.Popen[str], log: LoadLog
) -> None:
    """Send the server a signal while requests are open, and check their answers."""
    body = build_long_request()
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        open_requests = []
        for _ in range(8):
            open_requests.append(asyncio.create_task(client.post("/api/explain", json=body)))
        await asyncio.sleep(1)
        server.send_signal(signal.SIGTERM)
        for response in await asyncio.gather(*open_requests, return_exceptions=True):
            if isinstance(response, BaseException):
                log.problems.append(f"the end: {response!r}")
                continue
            log.statuses["the end"][response.status_code] += 1
            is_allowed = response.status_code in ALLOWED_AT_END
            is_json = "application/json" in response.headers["content-type"]
            if not is_allowed or not is_json:
                log.problems.append(f"the end: {response.status_code} {response.text[:200]}")


async def run_load_test(
    address: str, server: subprocess.Popen[str], pairs: list[Any], arguments: argparse.Namespace
) -> tuple[LoadLog, dict[str, Any]]:
    """Run all loads one after the other.

    Returns:
        The answers, and facts about the machine and the slow connections.
    """
    log = LoadLog()
    port = int(address.rpartition(":")[2])
    await send_mixed_requests(address, pairs, log, arguments)
    load_average = [round(value, 1) for value in os.getloadavg()]
    await send_short_requests(address, "among idle", log, lambda: hold_idle_connections(port))
    await send_short_requests(address, "among abandoned", log, lambda: cancel_requests(address))
    await send_short_requests(
        address, "among long texts", log, lambda: send_long_texts(address, log)
    )
    cut_after_seconds: list[float] = []
    with suppress(TimeoutError):
        await asyncio.wait_for(send_slow_requests(port, cut_after_seconds), 30)
    await stop_with_open_requests(address, server, log)
    slow_connections = {
        "connections": NUM_SLOW_CONNECTIONS,
        "cut": len(cut_after_seconds),
        "seconds": round(max(cut_after_seconds, default=0), 1),
    }
    return log, {"load_average": load_average, "dribbling": slow_connections}


def main() -> None:
    """Start a server, load it, and fail if it did not hold."""
    from tokenlight import Explainer

    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    requests = draw_requests(200, seed=arguments.seed)
    references = compute_references(Explainer.from_pretrained(MODEL), requests)
    pairs = list(zip(requests, references, strict=True))
    command = [sys.executable, "-m", "tokenlight.cli", "serve", "--port", "0", "-m", MODEL]
    with tempfile.TemporaryFile("w+") as server_log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=server_log, text=True)
        assert server.stdout is not None
        try:
            address = server.stdout.readline().split()[-1]
            log, facts = asyncio.run(run_load_test(address, server, pairs, arguments))
            exit_code = server.wait(60)
        finally:
            server.kill()
        server_log.seek(0)
        logged = server_log.read()
    facts |= {"cores": os.cpu_count(), "log_bytes": len(logged), "exit": exit_code}
    print(json.dumps({**log.to_dict(), "wrong": len(log.problems), **facts}, indent=1))
    for problem in log.problems[:5]:
        print(problem, file=sys.stderr)
    has_traceback = "Traceback" in logged or len(logged) > 10_000
    are_all_cut = facts["dribbling"]["cut"] == NUM_SLOW_CONNECTIONS
    has_failed = bool(log.problems or log.count_server_errors() or exit_code)
    if has_failed or not are_all_cut or has_traceback:
        raise SystemExit(f"the server did not hold\n{logged[-2000:]}")


if __name__ == "__main__":
    main()
