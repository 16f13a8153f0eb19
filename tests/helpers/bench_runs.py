"""What the benchmark's tests share: a small suite on a tiny model, and processes that run it."""

from __future__ import annotations

import csv
import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

import yaml

from tests.helpers.gates import hold_after
from tests.helpers.patience import PATIENCE

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
    data_rows = rows or [{"text": t, "label": i % 3} for i, t in enumerate(sentences(count))]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data_rows))
    content = {
        "data": ["texts.jsonl"],
        "models": [{"name": "tiny", "hub": str(model)}],
        "methods": ["attcat", "rollout", "random"],
        "metrics": ["aopc", "lodds"],
        "batch_tokens": 64,
        "slice": 4,
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return path


def command(arguments, most):
    """Run ``tokenlight bench`` in this process; for processes that may be killed.

    Its workers are forked from it, since it has the libraries already: loading them anew for each
    of many short lives would be most of a test's time.
    """
    # The fork server may have been started by an engine, which blocks Ctrl-C while it starts one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stderr = sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - for the process's whole life
    from tokenlight.cli import main
    from tokenlight.scale import local_processes as processes

    processes._process_context = lambda: multiprocessing.get_context("fork")
    if most is not None:
        hold_after(most)
    main(["bench", *map(str, arguments)])


def begun(*arguments, most: int | None = None):
    """A process of its own that runs the command; the libraries are loaded once for all of them.

    ``most``: parts after which it waits for a signal, so that it cannot be done before one is sent.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenlight.bench.part_runner", "tokenlight.bench.run"])
    process = context.Process(target=command, args=(arguments, most))
    process.start()
    return process


def finished_parts(folder: Path) -> int:
    """Parts that count."""
    return sum(1 for _ in (folder / "parts").rglob("????????.jsonl"))


def wait_for(parts: int, folder: Path, process, seconds: float = PATIENCE) -> None:
    """Until so many parts are there, or the process is at its end."""
    ends = time.monotonic() + seconds
    while finished_parts(folder) < parts and process.is_alive():
        assert time.monotonic() < ends, f"only {finished_parts(folder)} of {parts} parts came"
        time.sleep(0.002)


def rows_of(path: Path) -> list[dict[str, str]]:
    """A CSV file's rows."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The merged tables and the rows of every part."""
    contents = {name: (folder / name).read_bytes() for name in TABLES}
    for path in sorted((folder / "parts").rglob("*.jsonl")):
        rows = path.read_bytes().splitlines()[
            :-1
        ]  # the last line is the manifest, which has seconds
        contents[str(path.relative_to(folder))] = b"\n".join(rows)
    return contents
