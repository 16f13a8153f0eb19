"""Runs that stop at a gate, so that a test can kill or interrupt them there, however busy the machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenlight.scale import Engine
from tokenlight.scale import local_processes as processes


def hold_after(tasks: int) -> None:
    """From now on the runner in this process gives out this many tasks, and then waits for a signal.

    It is the runner that waits: its workers end with it, as they do without a gate.
    """
    send_task = processes._WorkerProcess.send_task
    num_sent = 0

    def send_until_gate(worker: Any, task: int) -> None:
        """Send a task, or wait forever after the last one that may pass."""
        nonlocal num_sent
        if num_sent == tasks:
            threading.Event().wait()
        num_sent += 1
        send_task(worker, task)

    processes._WorkerProcess.send_task = send_until_gate


@dataclass(frozen=True)
class GatedEngine(Engine):
    """An engine each worker of which does ``tasks`` tasks, and then waits until the file ``gate`` exists."""

    gate: str = ""
    tasks: int = 2

    def run_tasks(self, job: Any, tasks: Any, device: str) -> Any:
        """Run the tasks of a job whose workers wait at the gate."""
        return super().run_tasks(GatedJob(job, self.gate, self.tasks), tasks, device)


@dataclass(frozen=True)
class GatedJob:
    """A job that waits at the gate of :class:`GatedEngine`."""

    job: Any
    gate: str
    tasks: int

    def prepare(self, device: str) -> Callable[[Any], Any]:
        """Return the job's function, which waits at the gate."""
        run_task = self.job.prepare(device)
        num_done = 0

        def run_gated(task: Any) -> Any:
            """Run one task, after waiting for the gate if enough are done."""
            nonlocal num_done
            while num_done >= self.tasks and not Path(self.gate).exists():
                time.sleep(0.01)
            num_done += 1
            return run_task(task)

        return run_gated
