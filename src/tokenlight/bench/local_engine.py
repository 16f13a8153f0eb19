"""Parts on this machine: worker processes with one thread each. Needs no library."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from typing import Any

from tokenlight.bench.plan import Task, TaskResult

TRIES = 3  # a part whose worker dies so often is given up
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def results(
    folder: str, tasks: Sequence[Task], *, workers: int, device: str
) -> Generator[TaskResult, None, None]:
    """The outcome of each task, as they come in. A worker that dies is replaced and its task tried
    again; closing the iterator ends all workers."""
    waiting = deque(tasks)
    tries: dict[Task, int] = {}
    crew = [_Worker(folder, _spread(device, i)) for i in range(min(workers, len(tasks)))]
    try:
        while waiting or any(worker.task for worker in crew):
            for worker in crew:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            busy = [worker.pipe for worker in crew if worker.task]
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
                    yield TaskResult(task, trouble=_lost(worker.exit))
                crew[crew.index(worker)] = _Worker(folder, worker.device)
    finally:
        for worker in crew:
            worker.end()


def _lost(code: int | None) -> str:
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return (
        f"its worker died {TRIES} times ({how}); most often the memory does not suffice: run with "
        "fewer --workers, or a smaller batch_tokens or slice in the suite"
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
    context.set_forkserver_preload(["tokenlight.bench.part"])
    return context


class _Worker:
    """A process that does one task at a time."""

    def __init__(self, folder: str, device: str) -> None:
        context = _context()
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.task: Task | None = None
        self.exit: int | None = None
        self.process = context.Process(target=_serve, args=(theirs, folder, device), daemon=True)
        with _environment(QUIET):
            self.process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        """Hand over a task; a worker that is dead already is noticed when it is waited for."""
        self.task = task
        with suppress(OSError):
            self.pipe.send(task)

    def take(self) -> TaskResult | None:
        """What became of the task; None where the process died."""
        self.task = None
        try:
            found: TaskResult = self.pipe.recv()
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


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set while a process is born: its libraries read these when they are loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Any, folder: str, device: str) -> None:
    """A worker's life. Ctrl-C reaches the whole terminal; the runner alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    from tokenlight.bench.part import one_thread, work

    one_thread()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        with suppress(OSError):
            pipe.send(work(folder, task, device))


def _die_with_parent() -> None:
    """A runner that was killed cannot end its workers: they watch for it themselves."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
