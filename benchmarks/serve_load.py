"""Load: many clients ask ``tokenlight serve`` at once, and every answer is checked.

Each client asks for explanations of texts of many lengths, methods and targets, one after the other,
and compares each answer with the one the library gives alone: a mixed-up answer, a status of 500 or
more, or a reset connection is a failure. Who is told 429 waits as told and asks again. Then twice as
many clients as the queue holds ask at once, which must give 429 and nothing worse. The memory of the
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
CLOSE = 1e-4  # of the largest score: float32, in batches of changing make-up


@dataclass
class Tally:
    """What came of it."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """No answer of 500 or more, none wrong, and no other than good or busy."""
        return not self.wrong and set(self.statuses) <= {200, 429}

    def to_dict(self) -> dict[str, Any]:
        taken = np.array(self.seconds or [0.0])
        return {
            "answers": dict(sorted(self.statuses.items())),
            "wrong": len(self.wrong),
            "median_ms": round(1000 * float(np.median(taken))),
            "p95_ms": round(1000 * float(np.quantile(taken, 0.95))),
        }


def requests(count: int, *, longest: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Different texts, so that an answer given to the wrong asker is noticed."""
    chooser = random.Random(seed)
    return [
        {
            "model": MODEL,
            "text": " ".join(chooser.choices(WORDS, k=chooser.randint(2, longest))) + f" {number}.",
            "method": chooser.choice(METHODS),
            "target": chooser.choice(TARGETS),
        }
        for number in range(count)
    ]


def references(explainer: Any, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each request explained alone, by the library."""
    from tokenlight import Contrast

    found = []
    for one in asked:
        target = one["target"]
        if isinstance(target, dict):
            target = Contrast(target["for"], target["rather_than"])
        made = explainer.explain(one["text"], one["method"], target, progress=False)
        found.append(json.loads(json.dumps(made.to_dict())))
    return found


def fault(asked: dict[str, Any], answer: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """What is wrong with an answer, or None."""
    entries = answer["attributions"]
    if len(entries) != 1:
        return f"{len(entries)} answers to one question"
    got = entries[0]["attribution"]
    for name in ("method", "model", "tokens"):
        if got[name] != wanted[name]:
            return f"{name}: {got[name]!r} for {asked!r}"
    if got["row"] != wanted["row"] or got["target"] != wanted["target"]:
        return f"another text or target for {asked!r}"
    scores, right = np.array(got["scores"]), np.array(wanted["scores"])
    gap = float(np.abs(scores - right).max() / (np.abs(right).max() or 1.0))
    return None if gap <= CLOSE else f"scores off by {gap:.2g} for {asked!r}"


async def _ask(
    client: httpx.AsyncClient, number: int, pairs: list[Any], tally: Tally, *, again: bool
) -> None:
    """One question, and a wait where it is told to wait."""
    asked, wanted = random.Random(number).choice(pairs)
    started = time.perf_counter()
    try:
        answer = await client.post("/api/explain", json=asked)
    except httpx.HTTPError as broken:
        tally.wrong.append(f"{type(broken).__name__}: {broken}")
        return
    tally.statuses[answer.status_code] += 1
    if answer.status_code == 200:
        tally.seconds.append(time.perf_counter() - started)
        trouble = fault(asked, answer.json(), wanted)
        if trouble:
            tally.wrong.append(trouble)
    elif answer.status_code == 429:
        await asyncio.sleep(float(answer.headers["retry-after"]) if again else 0.05)
    else:
        tally.wrong.append(answer.text)


async def load(
    address: str, pairs: list[Any], *, clients: int, seconds: float, again: bool = True
) -> Tally:
    """``clients`` ask for ``seconds``; ``again``: who is told to wait waits."""
    tally, until = Tally(), time.perf_counter() + seconds
    connections = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    # One pool with a connection a client: making a client each would cost more than its questions.
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=connections) as pool:

        async def ask_on(number: int) -> None:
            asked = 0
            while not asked or time.perf_counter() < until:
                await _ask(pool, number + clients * asked, pairs, tally, again=again)
                asked += 1

        await asyncio.gather(*(ask_on(number) for number in range(clients)))
    return tally


def resident_megabytes(process: int) -> float | None:
    """Memory of a process, where the system tells."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), None)


def _started() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "tokenlight.cli", "serve", "--port", "0", "-m", MODEL]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    return server, address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    from tokenlight import Explainer

    asked = requests(200)
    pairs = list(zip(asked, references(Explainer.from_pretrained(MODEL), asked), strict=True))
    server, address = _started()
    try:
        # Until its stores are full and its allocator has seen every shape, memory must grow.
        asyncio.run(load(address, pairs, clients=given.clients, seconds=given.seconds / 2))
        before = resident_megabytes(server.pid)
        tally = asyncio.run(load(address, pairs, clients=given.clients, seconds=given.seconds))
        after = resident_megabytes(server.pid)
        crowd = asyncio.run(load(address, pairs, clients=4 * given.clients, seconds=5, again=False))
        alive = httpx.get(f"{address}/healthz").status_code
    finally:
        server.terminate()
        ended = server.wait(30)
    report = {
        "clients": given.clients,
        "seconds": given.seconds,
        **tally.to_dict(),
        "per_second": round(tally.statuses[200] / given.seconds, 1),
        "resident_mb": [before and round(before), after and round(after)],
        "over_capacity": crowd.to_dict(),
        "alive_after": alive == 200,
        "exit": ended,
    }
    print(json.dumps(report, indent=1))
    for trouble in (tally.wrong + crowd.wrong)[:5]:
        print(trouble, file=sys.stderr)
    grown = before is not None and after is not None and after > before * 1.1
    if not (tally.clean and crowd.clean and crowd.statuses[429] and alive == 200) or grown:
        raise SystemExit("the server did not hold")


if __name__ == "__main__":
    main()
