"""What the tests of many texts share: small files, an engine without processes, and bytes to compare."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet

from tests.bench_runs import sentences
from tokenlight.scale.engine import TaskWorker


class Here:
    """An engine that works in this process; ``between`` is called before each task."""

    crew = 1

    def __init__(self, between=lambda _number: None):
        self.between = between

    def results(self, job, tasks, device):
        worker = TaskWorker(job, tasks, device)
        for number in range(len(tasks)):
            self.between(number)
            yield worker.work(number)


def parquet(place: Path, count: int, first: int = 0, **changes) -> Path:
    """A file of texts with an id, a label and something nobody reads."""
    texts = sentences(first + count)[first:]
    columns = {
        "review": texts,
        "id": [f"r{first + i}" for i in range(count)],
        "stars": pyarrow.array([i % 3 for i in range(count)], "int8"),
        "unread": texts,
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns | changes), place, row_group_size=10)
    return place


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of rows and of refusals."""
    found = [
        place for below in ("rows", "refused") for place in (folder / below).rglob("*.parquet")
    ]
    return {str(place.relative_to(folder)): place.read_bytes() for place in sorted(found)}
