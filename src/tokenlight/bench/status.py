"""Where a run stands: parts done, failed and missing, and how long the rest may take."""

from dataclasses import dataclass
from pathlib import Path

from tokenlight.bench.plan import Cell
from tokenlight.bench.store import RunFolder
from tokenlight.scale.lock import worked_in


@dataclass(frozen=True)
class CellStatus:
    """One cell: its parts, the examples that failed in finished ones, and the seconds they took.

    ``damaged``: parts that are there and do not count; the same bench run command makes them again.
    """

    cell: Cell
    done: int
    damaged: int
    failed: int
    total: int
    failed_examples: int
    seconds: float
    trouble: str


@dataclass(frozen=True)
class Status:
    """All cells, who works on them now (empty: nobody), and the parts of all cells together."""

    run: RunFolder
    cells: tuple[CellStatus, ...]
    worker: str
    done: int
    damaged: int
    failed: int
    total: int

    @property
    def left(self) -> float | None:
        """Seconds of work of one worker that are left, by what the finished parts took: a cell's
        own, else its method's on other data, else any. None where nothing is finished."""
        finished = [one for one in self.cells if one.done]
        if not finished:
            return None

        def each(chosen: list[CellStatus]) -> float:
            return sum(one.seconds for one in chosen) / sum(one.done for one in chosen)

        seconds = 0.0
        for one in self.cells:
            missing = one.total - one.done
            alike = [other for other in finished if other.cell.method == one.cell.method]
            seconds += missing * each([one] if one.done else alike or finished)
        return seconds


def status(folder: str | Path) -> Status:
    """Read a run's folder; also while it is worked in."""
    run = RunFolder.open(folder)
    found = []
    for cell in run.cells:
        own = [part for part in run.parts if part.cell == cell.number] if cell.runs else []
        damage = {part: run.damage(part) for part in own if run.done(part)}
        said = [run.said(part) for part, why in damage.items() if not why]
        broken = [why for why in damage.values() if why]
        troubles = [trouble for part in own if (trouble := run.failure(part))]
        found.append(
            CellStatus(
                cell=cell,
                done=len(said),
                damaged=len(broken),
                failed=len(troubles),
                total=len(own),
                failed_examples=sum(one["failed"] for one in said),
                seconds=sum(one["seconds"] for one in said),
                trouble=next(iter((*broken, *troubles)), ""),
            )
        )
    kinds = ("done", "damaged", "failed", "total")
    sums = [sum(getattr(one, kind) for one in found) for kind in kinds]
    return Status(run, tuple(found), worked_in(run.folder), *sums)


def in_time(seconds: float) -> str:
    """``95 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
