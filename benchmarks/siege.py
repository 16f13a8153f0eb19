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
from serve_load import MODEL, fault, references, requests

KINDS = {"explain": 8, "compare": 2, "trust": 1, "game": 1}  # how often each is asked
COMPARED = ["attcat", "gae", "rollout", "grad_x_input"]
LONG = "The film is not bad, but the plot was dull and slow. "
IDLE, ABANDONED = 1_100, 64


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
        except httpx.HTTPError as broken:
            self.wrong.append(f"{kind}: {type(broken).__name__}: {broken}")
            return None
        taken = time.perf_counter() - started
        self.statuses[kind][answer.status_code] += 1
        if answer.status_code == 200:
            self.seconds[kind].append(taken)
            found: dict[str, Any] = answer.json()
            return found
        if answer.status_code == 429:
            self.seconds[f"{kind} refused"].append(taken)
            await asyncio.sleep(min(float(answer.headers["retry-after"]), 5.0))
        else:
            self.wrong.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            kind: {
                "answers": dict(sorted(found.items())),
                "milliseconds": _times(self.seconds[kind]),
                "refused after": _times(self.seconds[f"{kind} refused"]),
            }
            for kind, found in self.statuses.items()
        }


def _times(seconds: list[float]) -> dict[str, int] | None:
    if not seconds:
        return None
    middle, late, last = (1000 * np.quantile(seconds, (0.5, 0.99, 1.0))).round()
    return {"median": int(middle), "p99": int(late), "most": int(last)}


async def mixed(
    address: str, pairs: list[Any], siege: Siege, clients: int, seconds: float, seed: int
) -> None:
    """Each client asks one thing after the other, chosen by its own generator."""
    until = time.perf_counter() + seconds
    pool = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        chooser = random.Random(seed * 1000 + number)
        while time.perf_counter() < until:
            asked, wanted = chooser.choice(pairs)
            (kind,) = chooser.choices(list(KINDS), list(KINDS.values()))
            if kind == "compare":
                body = {"model": MODEL, "text": asked["text"], "method": COMPARED}
                found = await siege.ask(client, kind, "/api/explain", body)
                if found and [a["method"] for a in found["attributions"]] != COMPARED:
                    siege.wrong.append(f"compare: other methods for {asked!r}")
                continue
            found = await siege.ask(client, "explain", "/api/explain", asked)
            if found is None:
                continue
            trouble = fault(asked, found, wanted)
            if trouble:
                siege.wrong.append(trouble)
            identity = found["attributions"][0]["id"]
            if kind == "trust":
                await siege.ask(client, kind, "/api/trust", {"id": identity})
            elif kind == "game":
                await siege.ask(client, kind, "/api/perturb", {"ids": [identity]})

    async with httpx.AsyncClient(base_url=address, timeout=180, limits=pool) as client:
        await asyncio.gather(*(one(client, number) for number in range(clients)))


async def beside(
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


async def idle(port: int) -> None:
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


async def dribbling(port: int, cut: list[float]) -> None:
    """Requests that arrive byte by byte, without an end; ``cut``: after how many seconds each was."""

    async def one() -> None:
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

    await asyncio.gather(*(one() for _ in range(100)))


async def abandoned(address: str) -> None:
    """Requests whose askers leave at once."""
    async with httpx.AsyncClient(base_url=address) as client:
        for number in range(ABANDONED):
            body = {"model": MODEL, "text": LONG * 5 + str(number), "method": COMPARED}
            with suppress(httpx.HTTPError):
                await client.post("/api/explain", json=body, timeout=0.02)


async def long_texts(address: str, siege: Siege) -> None:
    """Texts of twenty thousand characters, read in windows, four at a time."""
    async with httpx.AsyncClient(base_url=address, timeout=180) as client:
        while True:
            body = {"model": MODEL, "text": (LONG * 400)[:20_000], "long": "stride"}
            asked = (siege.ask(client, "stride", "/api/explain", body) for _ in range(4))
            await asyncio.gather(*asked)


async def ended(address: str, server: subprocess.Popen[str], siege: Siege) -> None:
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


async def besieged(
    address: str, server: subprocess.Popen[str], pairs: list[Any], given: argparse.Namespace
) -> tuple[Siege, dict[str, Any]]:
    siege, cut, port = Siege(), [], int(address.rpartition(":")[2])
    await mixed(address, pairs, siege, given.clients, given.seconds, given.seed)
    load = [round(value, 1) for value in os.getloadavg()]
    await beside(address, "among idle", siege, lambda: idle(port))
    await beside(address, "among abandoned", siege, lambda: abandoned(address))
    await beside(address, "among long texts", siege, lambda: long_texts(address, siege))
    slow: list[float] = cut
    with suppress(TimeoutError):
        await asyncio.wait_for(dribbling(port, slow), 30)
    await ended(address, server, siege)
    dribbled = {"connections": 100, "cut": len(slow), "seconds": round(max(slow, default=0), 1)}
    return siege, {"load_average": load, "dribbling": dribbled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    from tokenlight import Explainer

    asked = requests(200, seed=given.seed)
    pairs = list(zip(asked, references(Explainer.from_pretrained(MODEL), asked), strict=True))
    command = [sys.executable, "-m", "tokenlight.cli", "serve", "--port", "0", "-m", MODEL]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert server.stdout is not None
        try:
            address = server.stdout.readline().split()[-1]
            siege, facts = asyncio.run(besieged(address, server, pairs, given))
            code = server.wait(60)
        finally:
            server.kill()
        log.seek(0)
        logged = log.read()
    facts |= {"cores": os.cpu_count(), "log_bytes": len(logged), "exit": code}
    print(json.dumps({**siege.to_dict(), "wrong": len(siege.wrong), **facts}, indent=1))
    for trouble in siege.wrong[:5]:
        print(trouble, file=sys.stderr)
    failures = [
        s for kind, found in siege.statuses.items() for s in found if s >= 500 and kind != "the end"
    ]
    cut = facts["dribbling"]["cut"] == facts["dribbling"]["connections"]
    if siege.wrong or failures or code or not cut or "Traceback" in logged or len(logged) > 10_000:
        raise SystemExit(f"the server did not hold\n{logged[-2000:]}")


if __name__ == "__main__":
    main()
