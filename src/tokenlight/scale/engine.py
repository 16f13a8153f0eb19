"""Who does the tasks: worker processes of this machine with one thread each, or a Ray cluster."""

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from typing import Any, Literal

from tokenlight.errors import TokenlightError
from tokenlight.scale import cluster
from tokenlight.scale.worker import TRIES, DiskFull, Outcome, TaskWorker, Work, lost


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
        return local_results(job, tasks, workers=self.crew, device=device)


def outcomes(
    engine: Engine, job: Work, tasks: Sequence[Any], where: tuple[str, object]
) -> Generator[Outcome, None, None]:
    """What becomes of the tasks of a run, ``where``: on a device, into a folder; what stops it is raised.
    An interrupt may come anywhere: closing ends the workers before it goes on its way."""
    device, folder = where
    with closing(engine.results(job, tasks, device)) as results:
        for outcome in results if tasks else ():
            if outcome.full:
                raise DiskFull(folder)
            if outcome.hopeless:
                raise TokenlightError(outcome.trouble)
            yield outcome


def local_results(
    job: Work, tasks: Sequence[Any], *, workers: int, device: str
) -> Generator[Outcome, None, None]:
    """The outcome of each task, as they come in. A worker that dies is replaced and its task tried
    again; closing the iterator ends all workers."""
    waiting = deque(range(len(tasks)))
    tries: dict[int, int] = {}
    crew = [_Process(job, tasks, _spread(device, i)) for i in range(min(workers, len(tasks)))]
    try:
        while waiting or any(worker.task is not None for worker in crew):
            for worker in crew:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            busy = [worker.pipe for worker in crew if worker.task is not None]
            for ready in connection.wait(busy):
                worker = next(one for one in crew if one.pipe is ready)
                task, outcome = worker.task, worker.take()
                assert task is not None
                if outcome is not None:
                    yield outcome
                    continue
                tries[task] = tries.get(task, 0) + 1
                if tries[task] < TRIES:
                    waiting.appendleft(task)
                else:
                    code = worker.exit or 0
                    yield lost(task, f"signal {-code}" if code < 0 else f"exit code {code}")
                crew[crew.index(worker)] = _Process(job, tasks, worker.device)
    finally:
        for worker in crew:
            worker.end()


def _spread(device: str, number: int) -> str:
    """``cuda`` means every GPU in turn."""
    if device != "cuda":
        return device
    import torch

    return f"cuda:{number % max(1, torch.cuda.device_count())}"


def _context() -> Any:
    """Workers are forked from a server that has loaded the libraries once, touched no model and
    began no thread; where there is no such server, each loads them itself."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["tokenlight.explainer"])
    return context


class _Process:
    """A process that does one task at a time."""

    def __init__(self, job: Work, tasks: Sequence[Any], device: str) -> None:
        context = _context()
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.task: int | None = None
        self.exit: int | None = None
        self.process = context.Process(
            target=_serve, args=(theirs, job, tasks, device), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, task: int) -> None:
        """Hand over a task; a worker that is dead already is noticed when it is waited for."""
        self.task = task
        with suppress(OSError):
            self.pipe.send(task)

    def take(self) -> Outcome | None:
        """What became of the task; None where the process died."""
        self.task = None
        try:
            found: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            self.exit = self.process.exitcode
            return None
        return found

    def end(self) -> None:
        """End the process. What it had half done leaves no trace: files are renamed when whole."""
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _serve(pipe: Any, job: Work, tasks: Sequence[Any], device: str) -> None:
    """A worker's life. Ctrl-C reaches the whole terminal; the runner alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_die_with_parent, daemon=True).start()
    worker = TaskWorker(job, tasks, device)
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        with suppress(OSError):
            pipe.send(worker.work(task))


def _die_with_parent() -> None:
    """A runner that was killed cannot end its workers: they watch for it themselves."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
