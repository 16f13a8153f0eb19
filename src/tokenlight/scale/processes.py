"""Tasks on this machine: worker processes with one thread each. Needs no library."""

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from typing import Any

from tokenlight.scale.worker import Outcome, TaskWorker, Work

TRIES = 3  # a task whose worker dies so often is given up


def results(
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
                    yield Outcome(task, trouble=_lost(worker.exit))
                crew[crew.index(worker)] = _Process(job, tasks, worker.device)
    finally:
        for worker in crew:
            worker.end()


def _lost(code: int | None) -> str:
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return (
        f"its worker died {TRIES} times ({how}); most often the memory does not suffice: run with "
        "fewer --workers or smaller batches."
    )


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
