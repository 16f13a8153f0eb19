"""Who does the tasks: processes of this machine, or a Ray cluster."""

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenlight.scale import cluster, processes
from tokenlight.scale.worker import Outcome, Work


@dataclass(frozen=True)
class Engine:
    """``local`` processes or ``ray`` actors, how many, and what share of a GPU each one has."""

    kind: Literal["local", "ray"] = "local"
    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float = 1.0

    @property
    def crew(self) -> int:
        """Number of workers; by default one per core that this process may use."""
        if self.workers:
            return self.workers
        allowed = getattr(os, "sched_getaffinity", None)  # not on every system
        return len(allowed(0)) if allowed else os.cpu_count() or 1

    def results(
        self, job: Work, tasks: Sequence[Any], device: str
    ) -> Generator[Outcome, None, None]:
        """The outcome of each task, as they come in; closing the iterator ends the workers."""
        if self.kind == "ray":
            gpus = self.gpus_per_worker if device.startswith("cuda") else 0.0
            return cluster.results(
                job, tasks, workers=self.crew, device=device, gpus=gpus, address=self.address
            )
        return processes.results(job, tasks, workers=self.crew, device=device)
