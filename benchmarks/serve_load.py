"""Load-test ``tokenlight serve`` with many clients at once, and check every answer.

Each client asks for explanations of texts of many lengths, methods and targets, one after the other,
and compares each answer with the one the library gives alone: a mixed-up answer, a status of 500 or
more, or a reset connection is a failure. A client that is answered 429 waits as told and asks again. Then
twice as many clients as the queue holds ask at once, which must give 429 and nothing worse. The memory of the
server is printed before and after.

    python benchmarks/serve_load.py [--clients 64] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

MODEL = "tokenlight/sentiment"
WORDS = (
    "the", "film", "is", "not", "bad", "but", "plot", "was", "dull", "a", "great", "slow", "very",
    "good", "acting", "and", "it", "love",
)  # fmt: skip
METHODS = ("attcat", "gae", "rollout", "grad_x_input", "cat")
TARGETS = ("predicted", "positive", {"for": "negative", "rather_than": "positive"})
TOLERANCE = 1e-4  # of the largest score: float32, in batches of changing make-up


@dataclass
class Tally:
    """What was answered.

    Attributes:
        statuses: How often each status was answered.
        problems: What went wrong, in words.
        seconds: Seconds until each answer.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether no answer is wrong and every status is 200 or 429."""
        return not self.problems and set(self.statuses) <= {200, 429}

    def to_dict(self) -> dict[str, Any]:
        """Summarize answers and times."""
        durations = np.array(self.seconds or [0.0])
        return {
            "answers": dict(sorted(self.statuses.items())),
            "wrong": len(self.problems),
            "median_ms": round(1000 * float(np.median(durations))),
            "p95_ms": round(1000 * float(np.quantile(durations, 0.95))),
        }


def draw_requests(count: int, *, max_words: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Draw requests with different texts, so that an answer sent to the wrong client is noticed."""
    generator = random.Random(seed)
    requests = []
    for number in range(count):
        words = generator.choices(WORDS, k=generator.randint(2, max_words))
        requests.append(
            {
                "model": MODEL,
                "text": f"{' '.join(words)} {number}.",
                "method": generator.choice(METHODS),
                "target": generator.choice(TARGETS),
            }
        )
    return requests


def compute_references(explainer: Any, sent_requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Explain each request alone, by the library."""
    from tokenlight import Contrast

    attributions = []
    for request in sent_requests:
        target = request["target"]
        if isinstance(target, dict):
            target = Contrast(target["for"], target["rather_than"])
        attribution = explainer.explain(request["text"], request["method"], target, progress=False)
        attributions.append(json.loads(json.dumps(attribution.to_dict())))
    return attributions


def find_fault(
    request: dict[str, Any], answer: dict[str, Any], reference: dict[str, Any]
) -> str | None:
    """Compare an answer with the library's.

    Args:
        request: The request.
        answer: The answer of the server.
        reference: The explanation of the library.

    Returns:
        What is wrong, or None.
    """
    entries = answer["attributions"]
    if len(entries) != 1:
        return f"{len(entries)} answers to one question"
    attribution = entries[0]["attribution"]
    for name in ("method", "model", "tokens"):
        if attribution[name] != reference[name]:
            return f"{name}: {attribution[name]!r} for {request!r}"
    if attribution["row"] != reference["row"] or attribution["target"] != reference["target"]:
        return f"another text or target for {request!r}"
    scores = np.array(attribution["scores"])
    expected_scores = np.array(reference["scores"])
    gap = float(np.abs(scores - expected_scores).max() / (np.abs(expected_scores).max() or 1.0))
    return None if gap <= TOLERANCE else f"scores off by {gap:.2g} for {request!r}"


async def _send(
    client: httpx.AsyncClient, number: int, pairs: list[Any], tally: Tally, *, waits: bool
) -> None:
    """Send one request and note its answer; after 429 wait as told if ``waits``."""
    request, reference = random.Random(number).choice(pairs)
    started = time.perf_counter()
    try:
        answer = await client.post("/api/explain", json=request)
    except httpx.HTTPError as error:
        tally.problems.append(f"{type(error).__name__}: {error}")
        return
    tally.statuses[answer.status_code] += 1
    if answer.status_code == 200:
        tally.seconds.append(time.perf_counter() - started)
        problem = find_fault(request, answer.json(), reference)
        if problem:
            tally.problems.append(problem)
    elif answer.status_code == 429:
        await asyncio.sleep(float(answer.headers["retry-after"]) if waits else 0.05)
    else:
        tally.problems.append(answer.text)


async def run_load(
    address: str, pairs: list[Any], *, clients: int, seconds: float, waits: bool = True
) -> Tally:
    """Let clients send requests, one after the other.

    Args:
        address: URL of the server.
        pairs: Requests with the library's own explanations.
        clients: Number of clients.
        seconds: How long they send.
        waits: Whether a client that is answered 429 waits as told.

    Returns:
        The answers.
    """
    tally = Tally()
    end_time = time.perf_counter() + seconds
    connections = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    # One pool with a connection per client: making a client each would cost more than its requests.
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=connections) as pool:

        async def run_client(index: int) -> None:
            num_sent = 0
            while not num_sent or time.perf_counter() < end_time:
                await _send(pool, index + clients * num_sent, pairs, tally, waits=waits)
                num_sent += 1

        await asyncio.gather(*(run_client(index) for index in range(clients)))
    return tally


def read_resident_megabytes(process: int) -> float | None:
    """Return the resident memory of a process; None where the system does not tell it."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), None)


def _start_server() -> tuple[subprocess.Popen[str], str]:
    """Start a server; return its process and its URL."""
    command = [sys.executable, "-m", "tokenlight.cli", "serve", "--port", "0", "-m", MODEL]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    return server, address


def main() -> None:
    """Start a server, load it, and fail if it did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    from tokenlight import Explainer

    sent_requests = draw_requests(200)
    pairs = list(
        zip(
            sent_requests,
            compute_references(Explainer.from_pretrained(MODEL), sent_requests),
            strict=True,
        )
    )
    server, address = _start_server()
    try:
        # Until its stores are full and its allocator has seen every shape, memory must grow.
        asyncio.run(
            run_load(address, pairs, clients=arguments.clients, seconds=arguments.seconds / 2)
        )
        before = read_resident_megabytes(server.pid)
        tally = asyncio.run(
            run_load(address, pairs, clients=arguments.clients, seconds=arguments.seconds)
        )
        after = read_resident_megabytes(server.pid)
        crowd = asyncio.run(
            run_load(address, pairs, clients=4 * arguments.clients, seconds=5, waits=False)
        )
        alive = httpx.get(f"{address}/healthz").status_code
    finally:
        server.terminate()
        exit_code = server.wait(30)
    report = {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        **tally.to_dict(),
        "per_second": round(tally.statuses[200] / arguments.seconds, 1),
        "resident_mb": [before and round(before), after and round(after)],
        "over_capacity": crowd.to_dict(),
        "alive_after": alive == 200,
        "exit": exit_code,
    }
    print(json.dumps(report, indent=1))
    for problem in (tally.problems + crowd.problems)[:5]:
        print(problem, file=sys.stderr)
    has_grown = before is not None and after is not None and after > before * 1.1
    if (
        not (tally.is_clean and crowd.is_clean and crowd.statuses[429] and alive == 200)
        or has_grown
    ):
        raise SystemExit("the server did not hold")


if __name__ == "__main__":
    main()
