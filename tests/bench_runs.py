"""What the benchmark's tests share: a small suite on a tiny model, and processes that run it."""

from __future__ import annotations

import csv
import json
import multiprocessing
import sys
import time
from pathlib import Path

import yaml

WORDS = ["the", "film", "movie", "is", "was", "not", "very", "good", "bad", "great", "dull", "plot"]
TABLES = ("cells.csv", "scores.csv", "curves.csv", "failures.csv")


def sentences(count):
    """Distinct texts of five to nine known words, the same every time."""
    return [
        " ".join(WORDS[(i * 7 + j * (3 + i % 5)) % len(WORDS)] for j in range(5 + i % 5))
        for i in range(count)
    ]


def make(folder: Path, model: Path, count: int, rows=None, **changes) -> Path:
    """A suite file with its data beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    given = rows or [{"text": t, "label": i % 3} for i, t in enumerate(sentences(count))]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    content = {
        "data": ["texts.jsonl"],
        "models": [{"name": "tiny", "hub": str(model)}],
        "methods": ["attcat", "rollout", "random"],
        "metrics": ["aopc", "lodds"],
        "batch_tokens": 64,
        "slice": 4,
    }
    place = folder / "suite.yaml"
    place.write_text(yaml.safe_dump(content | changes))
    return place


def command(*arguments):
    """Run ``tokenlight bench`` in this process; for processes that may be killed.

    Its workers are forked from it, since it has the libraries already: loading them anew for each
    of many short lives would be most of a test's time.
    """
    sys.stderr = sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - for the process's whole life
    from tokenlight.cli import main
    from tokenlight.scale import engine as processes

    processes._context = lambda: multiprocessing.get_context("fork")
    main(["bench", *map(str, arguments)])


def begun(*arguments):
    """A process of its own that runs the command; the libraries are loaded once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenlight.bench.part", "tokenlight.bench.run"])
    process = context.Process(target=command, args=arguments)
    process.start()
    return process


def finished_parts(folder: Path) -> int:
    """Parts that count."""
    return sum(1 for _ in (folder / "parts").rglob("????????.jsonl"))


def wait_for(parts: int, folder: Path, process, seconds: float = 180) -> None:
    """Until so many parts are there, or the process is at its end."""
    ends = time.monotonic() + seconds
    while finished_parts(folder) < parts and process.is_alive():
        assert time.monotonic() < ends, f"only {finished_parts(folder)} of {parts} parts came"
        time.sleep(0.002)


def rows_of(place: Path) -> list[dict[str, str]]:
    """A CSV file's rows."""
    return list(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The merged tables and the rows of every part."""
    found = {name: (folder / name).read_bytes() for name in TABLES}
    for place in sorted((folder / "parts").rglob("*.jsonl")):
        rows = place.read_bytes().splitlines()[
            :-1
        ]  # the last line is the manifest, which has seconds
        found[str(place.relative_to(folder))] = b"\n".join(rows)
    return found
