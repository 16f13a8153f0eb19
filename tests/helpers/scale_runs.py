"""Helpers for tests of tokenlight.scale: small input files, an engine in this process, output to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.helpers.bench_runs import make_sentences
from tokenlight.scale.engine import TaskWorker


class InProcessEngine:
    """An engine that runs the tasks in this process and calls ``before_task`` before each of them."""

    num_workers = 1

    def __init__(self, before_task: Callable[[int], None] = lambda _task_index: None) -> None:
        self.before_task = before_task

    def run_tasks(self, job: Any, tasks: Any, device: str) -> Iterator[Any]:
        """Yield the result of each task in order."""
        worker = TaskWorker(job, tasks, device)
        for task_index in range(len(tasks)):
            self.before_task(task_index)
            yield worker.execute(task_index)


def write_parquet(path: Path, count: int, first: int = 0, **changes: Any) -> Path:
    """Write a Parquet file of texts with an id, a label and a column that no job reads."""
    texts = make_sentences(first + count)[first:]
    columns = {
        "review": texts,
        "id": [f"r{first + i}" for i in range(count)],
        "stars": pyarrow.array([i % 3 for i in range(count)], "int8"),
        "unread": texts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns | changes), path, row_group_size=10)
    return path


def read_output_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of rows and of refused texts."""
    paths = [*(folder / "rows").rglob("*.parquet"), *(folder / "refused").rglob("*.parquet")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}
