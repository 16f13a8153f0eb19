"""Tasks on worker processes of this machine.

Each worker is a process with one thread that does one task at a time. A worker that dies is replaced, and
its task is tried again. Only the parent handles Ctrl-C, and ends the workers.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from typing import Any

import torch

from tokenlight.scale.engine import (
    MAX_TRIES,
    Job,
    Outcome,
    OutcomeStream,
    Tasks,
    TaskWorker,
    WorkersLost,
    make_lost_outcome,
)

TERMINATE_SECONDS = 5.0  # time that a worker has to end before it is killed


def run_local_tasks(job: Job, tasks: Tasks, *, num_workers: int, device: str) -> OutcomeStream:
    """Yield the outcome of each task, in the order in which they finish.

    Args:
        job: The job.
        tasks: Its tasks.
        num_workers: Number of processes to start at most.
        device: Device of the workers; ``"cuda"`` distributes them over all GPUs.
    """
    pool = _ProcessPool(job, tasks)
    try:
        pool.start(_assign_devices(device, min(num_workers, len(tasks))))
        while pool.has_work():
            pool.send_tasks()
            yield from pool.receive_outcomes()
    finally:
        pool.terminate()


def _assign_devices(device: str, num_workers: int) -> list[str]:
    """Return a device per worker; GPUs are assigned in turn."""
    if device != "cuda":
        return [device] * num_workers
    num_gpus = max(1, torch.cuda.device_count())
    return [f"cuda:{index % num_gpus}" for index in range(num_workers)]


class _ProcessPool:
    """The workers of one run, and the tasks that wait for one."""

    def __init__(self, job: Job, tasks: Tasks) -> None:
        self.job = job
        self.tasks = tasks
        self.workers: list[_WorkerProcess] = []
        self.waiting_tasks = deque(range(len(tasks)))
        self.num_deaths: dict[int, int] = {}  # task → workers that died doing it

    def start(self, devices: list[str]) -> None:
        # Appended one by one: if a later one fails to start, the earlier ones are still terminated.
        for device in devices:
            self.workers.append(_WorkerProcess(self.job, self.tasks, device))

    def has_work(self) -> bool:
        """Return whether a task waits or is being done."""
        return bool(self.waiting_tasks) or bool(self._list_busy_workers())

    def send_tasks(self) -> None:
        """Give a waiting task to every idle worker."""
        for worker in self.workers:
            if worker.task_index is None and self.waiting_tasks:
                worker.send_task(self.waiting_tasks.popleft())

    def receive_outcomes(self) -> Iterator[Outcome]:
        """Wait until a worker has finished or died; yield what became of its task."""
        workers_by_pipe = {worker.pipe: worker for worker in self._list_busy_workers()}
        for pipe in connection.wait(list(workers_by_pipe)):
            worker = workers_by_pipe[pipe]
            task_index = worker.task_index
            assert task_index is not None
            outcome = worker.receive_outcome()
            if outcome is None:
                outcome = self._handle_death(worker, task_index)
            if outcome is not None:
                yield outcome

    def terminate(self) -> None:
        for worker in self.workers:
            worker.terminate()

    def _list_busy_workers(self) -> "list[_WorkerProcess]":
        return [worker for worker in self.workers if worker.task_index is not None]

    def _handle_death(self, worker: "_WorkerProcess", task_index: int) -> Outcome | None:
        """Replace a dead worker; queue its task again, or return an outcome that gives it up."""
        self.num_deaths[task_index] = self.num_deaths.get(task_index, 0) + 1
        outcome = None
        if self.num_deaths[task_index] < MAX_TRIES:
            self.waiting_tasks.appendleft(task_index)
        else:
            outcome = make_lost_outcome(task_index, worker.describe_exit())
        replacement = _WorkerProcess(self.job, self.tasks, worker.device)
        self.workers[self.workers.index(worker)] = replacement
        return outcome


def _process_context() -> Any:
    """Return the context to start workers with.

    Where the system has a fork server, workers are forked from it: it has loaded the libraries once.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["tokenlight.explainer"])
    return context


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Delay Ctrl-C within the block.

    A process that is started in the block inherits the signal mask, and never receives Ctrl-C.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _start_process(context: Any, target: Callable[..., None], *arguments: Any) -> Any:
    """Start a process that ignores Ctrl-C from its first moment on; the parent answers it."""
    process = context.Process(target=target, args=arguments, daemon=True)
    if context.get_start_method() != "forkserver":
        with interrupts_blocked():
            process.start()
        return process
    from multiprocessing import forkserver, resource_tracker

    # The tracker goes first: when it has started, it unblocks Ctrl-C again.
    resource_tracker.ensure_running()
    with interrupts_blocked():
        forkserver.ensure_running()
    # This waits until the server has loaded the libraries; the parent may be interrupted meanwhile.
    process.start()
    return process


class _WorkerProcess:
    """A process that does one task at a time."""

    def __init__(self, job: Job, tasks: Tasks, device: str) -> None:
        self.device = device
        self.task_index: int | None = None
        # Sent with the first task, not when the process starts: Ctrl-C could cut it in two there.
        self.unsent_job: tuple[Job, Tasks, str] | None = (job, tasks, device)
        for attempt in range(1, MAX_TRIES + 1):
            context = _process_context()
            self.pipe, worker_end = context.Pipe()
            try:
                self.process = _start_process(context, _run_worker, worker_end)
                break
            except (EOFError, OSError) as error:  # the fork server died, or memory ran out
                self.pipe.close()
                if attempt == MAX_TRIES:
                    raise WorkersLost(
                        f"Worker processes could not be started: {MAX_TRIES} attempts ended in "
                        f"{error!r}. Most often memory or process slots run out, or something kills "
                        "them: close other programs, or use fewer workers. Finished work is kept: "
                        "run the same command to continue.",
                        code="workers-lost",
                    ) from error
                # A fork server that is dying still counts as running, and refuses connections.
                time.sleep(attempt)
            finally:
                worker_end.close()

    def send_task(self, task_index: int) -> None:
        """Send a task. If the worker is dead already, :meth:`receive_outcome` notices."""
        self.task_index = task_index
        with suppress(OSError):
            if self.unsent_job is not None:
                self.pipe.send(self.unsent_job)
                self.unsent_job = None
            self.pipe.send(task_index)

    def receive_outcome(self) -> Outcome | None:
        """Return the outcome of the task, or None if the process died."""
        self.task_index = None
        try:
            outcome: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return None
        return outcome

    def describe_exit(self) -> str:
        """Say how the process ended."""
        exit_code = self.process.exitcode or 0
        if exit_code < 0:
            return f"signal {-exit_code}"
        return f"exit code {exit_code}"

    def terminate(self) -> None:
        """End the process. Files are renamed when they are complete, so no partial one stays."""
        self.process.terminate()
        self.process.join(TERMINATE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _run_worker(pipe: Any) -> None:
    """Do tasks until the parent closes the pipe."""
    # Ctrl-C reaches every process of the terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    worker: TaskWorker | None = None
    while True:
        try:
            if worker is None:
                worker = TaskWorker(*pipe.recv())
            task_index = pipe.recv()
        except (EOFError, OSError):
            return
        with suppress(OSError):
            pipe.send(worker.execute(task_index))


def _exit_with_parent() -> None:
    """End this process when its parent ends: a parent that was killed cannot end its workers."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
