"""A small benchmark suite on a tiny model, and processes that run it."""

from __future__ import annotations

import csv
import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.commands import fork_context
from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.gates import hold_after

WORDS = ["the", "film", "movie", "is", "was", "not", "very", "good", "bad", "great", "dull", "plot"]
TABLES = ("cells.csv", "scores.csv", "curves.csv", "failures.csv")


def make_sentences(count: int) -> list[str]:
    """Return distinct texts of five to nine known words, the same every time."""
    return [
        " ".join(WORDS[(i * 7 + j * (3 + i % 5)) % len(WORDS)] for j in range(5 + i % 5))
        for i in range(count)
    ]


def write_suite(
    folder: Path, model: Path, count: int, rows: list[dict[str, Any]] | None = None, **changes: Any
) -> Path:
    """Write a suite file and its data; return the path of the suite."""
    folder.mkdir(parents=True, exist_ok=True)
    data_rows = rows or [{"text": t, "label": i % 3} for i, t in enumerate(make_sentences(count))]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data_rows))
    content = {
        "data": ["texts.jsonl"],
        "models": [{"name": "tiny", "hub": str(model)}],
        "methods": ["attcat", "rollout", "random"],
        "metrics": ["aopc", "lodds"],
        "batch_tokens": 64,
        "part_size": 4,
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return path


def run_bench_command(arguments: tuple[Any, ...], max_parts: int | None) -> None:
    """Run ``tokenlight bench`` in this process, which may be killed.

    Its workers are forked: importing the libraries again in each short-lived worker would take most of a
    test's time.
    """
    # The fork server may have been started by an engine, which blocks Ctrl-C while it starts one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stderr = sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - for the process's whole life
    from tokenlight.cli import main
    from tokenlight.scale import local_processes as processes

    processes._process_context = lambda: multiprocessing.get_context("fork")
    if max_parts is not None:
        hold_after(max_parts)
    main(["bench", *map(str, arguments)])


def start_bench_process(*arguments: Any, max_parts: int | None = None) -> Any:
    """Start a process that runs ``tokenlight bench``.

    After ``max_parts`` parts it waits for a signal, so that it cannot finish before one is sent.
    """
    process = fork_context().Process(target=run_bench_command, args=(arguments, max_parts))
    process.start()
    return process


def count_finished_parts(folder: Path) -> int:
    """Count the finished parts of a run."""
    return sum(1 for _ in (folder / "parts").rglob("????????.jsonl"))


def wait_for_parts(
    parts: int, folder: Path, process: Any, seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait until ``parts`` parts exist or the process exits."""
    deadline = time.monotonic() + seconds
    while count_finished_parts(folder) < parts and process.is_alive():
        assert time.monotonic() < deadline, (
            f"only {count_finished_parts(folder)} of {parts} parts came"
        )
        time.sleep(0.002)


def read_csv_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def read_run_bytes(folder: Path) -> dict[str, bytes]:
    """Read the merged tables and the rows of every part, without their timings."""
    contents = {name: (folder / name).read_bytes() for name in TABLES}
    for path in sorted((folder / "parts").rglob("*.jsonl")):
        # The last line is the manifest, which holds timings.
        rows = path.read_bytes().splitlines()[:-1]
        contents[str(path.relative_to(folder))] = b"\n".join(rows)
    return contents
