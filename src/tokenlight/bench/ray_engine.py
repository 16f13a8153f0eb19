"""Parts on a Ray cluster: one actor a worker, one CPU or one GPU each; Ray replaces lost ones.

Every machine must see the run's folder, the data and the models under the same paths.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from tokenlight.bench.plan import Task, TaskResult
from tokenlight.errors import BadInput, MissingExtra

TRIES = 3  # a part whose actor dies oftener is given up


class PartWorker:
    """What an actor is: it makes one part at a time, in one thread."""

    def __init__(self, folder: str, device: str) -> None:
        from tokenlight.bench.part import one_thread

        one_thread()
        self.folder, self.device = folder, device

    def work(self, task: Task) -> TaskResult:
        """Do a task."""
        from tokenlight.bench.part import work

        return work(self.folder, task, self.device)


def results(
    folder: str, tasks: Sequence[Task], *, workers: int, device: str, address: str | None = None
) -> Generator[TaskResult, None, None]:
    """The outcome of each task, as they come in; closing the iterator ends the actors."""
    ray = _ray()
    began = _connect(ray, workers, device, address)
    gpu = device.startswith("cuda")
    made = ray.remote(
        num_cpus=1, num_gpus=1 if gpu else 0, max_restarts=-1, max_task_retries=TRIES
    )(PartWorker)
    folder = os.path.abspath(folder)
    crew = [made.remote(folder, device) for _ in range(min(workers, len(tasks)))]
    waiting = deque(tasks)
    busy: dict[Any, tuple[Task, Any]] = {}
    tries: dict[Task, int] = {}
    try:
        for actor in crew:
            _give(busy, actor, waiting)
        while busy:
            ready, _ = ray.wait(list(busy), num_returns=1)
            task, actor = busy.pop(ready[0])
            try:
                outcome = ray.get(ready[0])
            except ray.exceptions.RayError as lost:
                # Ray retries what a dead actor held; one it could not reach for a while is asked anew.
                tries[task] = tries.get(task, 0) + 1
                if tries[task] < TRIES:
                    waiting.append(task)
                    _give(busy, actor, waiting)
                    continue
                outcome = TaskResult(task, trouble=f"Ray lost its worker: {_first_line(lost)}")
            yield outcome
            _give(busy, actor, waiting)
    finally:
        for actor in crew:
            ray.kill(actor)
        if began:
            ray.shutdown()


def _give(busy: dict[Any, tuple[Task, Any]], actor: Any, waiting: deque[Task]) -> None:
    if waiting:
        task = waiting.popleft()
        busy[actor.work.remote(task)] = (task, actor)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _ray() -> Any:
    # No figures about the user are sent anywhere; asked before Ray is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as missing:
        raise MissingExtra.naming("ray", "ray", "--engine ray") from missing
    return ray


def _reachable(address: str) -> None:
    """Ray itself knocks for minutes at a door that nobody opens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and its like
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as refused:
        raise BadInput(
            f"no Ray cluster at {address}: {refused}. Begin one there with: ray start --head"
        ) from refused


def _connect(ray: Any, workers: int, device: str, address: str | None) -> bool:
    """Join a cluster, or begin one on this machine; whether it was begun here."""
    if ray.is_initialized():
        return False
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        how |= {"num_cpus": workers, "include_dashboard": False}
    else:
        _reachable(address)
        how["address"] = address
    try:
        ray.init(**how)
    except (ConnectionError, ValueError, RuntimeError) as refused:
        raise BadInput(f"no Ray cluster at {address!r}: {_first_line(refused)}") from refused
    have = ray.cluster_resources()
    kind = "GPU" if device.startswith("cuda") else "CPU"
    if have.get(kind, 0) < 1:
        ray.shutdown()
        raise BadInput(f"the Ray cluster has no {kind}; it has {have}.")
    return True
