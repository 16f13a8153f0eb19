"""Siege: ``tokenlight serve`` under crowds of every kind, on this machine alone.

Sixty-four clients ask for explanations, trust, games and comparisons at once, and every explanation is
compared with the library's own. Then the server is besieged while one client goes on asking: by idle
connections, by connections that dribble their requests, by requests that are abandoned, and by texts
as long as it takes, read in windows. It ends by a signal with requests open. Nothing may be wrong, no
answer 500 or more but the 503 of the end, and nothing may be logged.

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

KINDS = {"explain": 8, "compare": 2, "trust": 1, "game": 1}  # how often each is asked
COMPARED = ["attcat", "gae", "rollout", "grad_x_input"]
LONG = "The film is not bad, but the plot was dull and slow. "
IDLE = 1_100
ABANDONED = 64


@dataclass
class Siege:
    """Everything asked and everything answered, by kind of request."""

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)

    async def ask(
        self, client: httpx.AsyncClient, kind: str, path: str, body: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The answer; None where it is none. Who is told to wait waits, and has not failed."""
        started = time.perf_counter()
        try:
            answer = await client.post(path, json=body)
        except httpx.HTTPError as error:
            self.wrong.append(f"{kind}: {type(error).__name__}: {error}")
            return None
        duration = time.perf_counter() - started
        self.statuses[kind][answer.status_code] += 1
        if answer.status_code == 200:
            self.seconds[kind].append(duration)
            content: dict[str, Any] = answer.json()
            return content
        if answer.status_code == 429:
            self.seconds[f"{kind} refused"].append(duration)
            await asyncio.sleep(min(float(answer.headers["retry-after"]), 5.0))
        else:
            self.wrong.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            kind: {
                "answers": dict(sorted(counts.items())),
                "milliseconds": _times(self.seconds[kind]),
                "refused after": _times(self.seconds[f"{kind} refused"]),
            }
            for kind, counts in self.statuses.items()
        }


def _times(seconds: list[float]) -> dict[str, int] | None:
    if not seconds:
        return None
    middle, late, last = (1000 * np.quantile(seconds, (0.5, 0.99, 1.0))).round()
    return {"median": int(middle), "p99": int(late), "most": int(last)}


async def send_mixed_requests(
    address: str, pairs: list[Any], siege: Siege, clients: int, seconds: float, seed: int
) -> None:
    """Each client asks one thing after the other, chosen by its own generator."""
    until = time.perf_counter() + seconds
    pool = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)

    async def run_client(client: httpx.AsyncClient, number: int) -> None:
        chooser = random.Random(seed * 1000 + number)
        while time.perf_counter() < until:
            request, reference = chooser.choice(pairs)
            (kind,) = chooser.choices(list(KINDS), list(KINDS.values()))
            if kind == "compare":
                body = {"model": MODEL, "text": request["text"], "method": COMPARED}
                response = await siege.ask(client, kind, "/api/explain", body)
                if response and [a["method"] for a in response["attributions"]] != COMPARED:
                    siege.wrong.append(f"compare: other methods for {request!r}")
                continue
            response = await siege.ask(client, "explain", "/api/explain", request)
            if response is None:
                continue
            problem = find_fault(request, response, reference)
            if problem:
                siege.wrong.append(problem)
            attribution_id = response["attributions"][0]["id"]
            if kind == "trust":
                await siege.ask(client, kind, "/api/trust", {"id": attribution_id})
            elif kind == "game":
                await siege.ask(client, kind, "/api/perturb", {"ids": [attribution_id]})

    async with httpx.AsyncClient(base_url=address, timeout=180, limits=pool) as client:
        await asyncio.gather(*(run_client(client, number) for number in range(clients)))


async def ask_beside_crowd(
    address: str, name: str, siege: Siege, crowd: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """One client asks for short explanations and the health while ``crowd`` does what it does."""
    task = asyncio.create_task(crowd())
    async with httpx.AsyncClient(base_url=address, timeout=180) as client:
        for _ in range(20):
            body = {"model": MODEL, "text": "A charming journey."}
            await siege.ask(client, name, "/api/explain", body)
            health = await client.get("/healthz")
            siege.statuses[f"{name}, health"][health.status_code] += 1
            await asyncio.sleep(0.1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def hold_idle_connections(port: int) -> None:
    """Connections that say nothing."""
    writers = []
    for _ in range(IDLE):
        with suppress(OSError):
            writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
    try:
        await asyncio.sleep(600)
    finally:
        for writer in writers:
            writer.close()


async def dribble_requests(port: int, cut: list[float]) -> None:
    """Requests that arrive byte by byte, without an end; ``cut``: after how many seconds each was."""

    async def send_slowly() -> None:
        started = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
        with suppress(ConnectionError):
            writer.write(head)
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.5)
        cut.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(send_slowly() for _ in range(100)))


async def abandon_requests(address: str) -> None:
    """Requests whose askers leave at once."""
    async with httpx.AsyncClient(base_url=address) as client:
        for number in range(ABANDONED):
            body = {"model": MODEL, "text": LONG * 5 + str(number), "method": COMPARED}
            with suppress(httpx.HTTPError):
                await client.post("/api/explain", json=body, timeout=0.02)


async def send_long_texts(address: str, siege: Siege) -> None:
    """Texts of twenty thousand characters, read in windows, four at a time."""
    async with httpx.AsyncClient(base_url=address, timeout=180) as client:
        while True:
            body = {"model": MODEL, "text": (LONG * 400)[:20_000], "long": "stride"}
            calls = (siege.ask(client, "stride", "/api/explain", body) for _ in range(4))
            await asyncio.gather(*calls)


async def end_with_open_requests(address: str, server: subprocess.Popen[str], siege: Siege) -> None:
    """A signal comes while requests are open."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        body = {"model": MODEL, "text": (LONG * 400)[:20_000], "long": "stride"}
        open_requests = [
            asyncio.create_task(client.post("/api/explain", json=body)) for _ in range(8)
        ]
        await asyncio.sleep(1)
        server.send_signal(signal.SIGTERM)
        for answer in await asyncio.gather(*open_requests, return_exceptions=True):
            if isinstance(answer, BaseException):
                siege.wrong.append(f"the end: {answer!r}")
                continue
            siege.statuses["the end"][answer.status_code] += 1
            if (
                answer.status_code not in (200, 429, 503)
                or "application/json" not in (answer.headers["content-type"])
            ):
                siege.wrong.append(f"the end: {answer.status_code} {answer.text[:200]}")


async def run_siege(
    address: str, server: subprocess.Popen[str], pairs: list[Any], arguments: argparse.Namespace
) -> tuple[Siege, dict[str, Any]]:
    siege = Siege()
    cut = []
    port = int(address.rpartition(":")[2])
    await send_mixed_requests(
        address, pairs, siege, arguments.clients, arguments.seconds, arguments.seed
    )
    load = [round(value, 1) for value in os.getloadavg()]
    await ask_beside_crowd(address, "among idle", siege, lambda: hold_idle_connections(port))
    await ask_beside_crowd(address, "among abandoned", siege, lambda: abandon_requests(address))
    await ask_beside_crowd(
        address, "among long texts", siege, lambda: send_long_texts(address, siege)
    )
    slow: list[float] = cut
    with suppress(TimeoutError):
        await asyncio.wait_for(dribble_requests(port, slow), 30)
    await end_with_open_requests(address, server, siege)
    dribbled = {"connections": 100, "cut": len(slow), "seconds": round(max(slow, default=0), 1)}
    return siege, {"load_average": load, "dribbling": dribbled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from tokenlight import Explainer

    sent_requests = draw_requests(200, seed=arguments.seed)
    pairs = list(
        zip(
            sent_requests,
            compute_references(Explainer.from_pretrained(MODEL), sent_requests),
            strict=True,
        )
    )
    command = [sys.executable, "-m", "tokenlight.cli", "serve", "--port", "0", "-m", MODEL]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert server.stdout is not None
        try:
            address = server.stdout.readline().split()[-1]
            siege, facts = asyncio.run(run_siege(address, server, pairs, arguments))
            code = server.wait(60)
        finally:
            server.kill()
        log.seek(0)
        logged = log.read()
    facts |= {"cores": os.cpu_count(), "log_bytes": len(logged), "exit": code}
    print(json.dumps({**siege.to_dict(), "wrong": len(siege.wrong), **facts}, indent=1))
    for problem in siege.wrong[:5]:
        print(problem, file=sys.stderr)
    failures = [
        s
        for kind, counts in siege.statuses.items()
        for s in counts
        if s >= 500 and kind != "the end"
    ]
    cut = facts["dribbling"]["cut"] == facts["dribbling"]["connections"]
    if siege.wrong or failures or code or not cut or "Traceback" in logged or len(logged) > 10_000:
        raise SystemExit(f"the server did not hold\n{logged[-2000:]}")


if __name__ == "__main__":
    main()
