"""Engines: who works through the tasks of a job, and what a worker does with one task.

A job is a value that can be sent to other processes and machines; its tasks are numbered. An engine
distributes them over worker processes of this machine (:mod:`tokenlight.scale.local_processes`) or over a
Ray cluster (:mod:`tokenlight.scale.ray_cluster`), and yields an :class:`Outcome` per task. Benchmarks and
files that are explained into a folder both run on it.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from transformers.utils import logging

from tokenlight.errors import BadInput, TokenlightError, describe_error
from tokenlight.errors.arguments import Count, Range, check_fields
from tokenlight.explainer import Explainer
from tokenlight.explaining.default_method import make_sample_input

MAX_TRIES = 3  # a task is given up when its worker died this often
# Error numbers that a file system reports when it takes no more data.
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunStopped(TokenlightError):
    """A run cannot continue for now. Finished work is kept, and the same command resumes it."""

    code = "run-stopped"


class DiskFull(RunStopped):
    """The disk of the output folder is full."""

    code = "disk-full"


class WorkersLost(RunStopped):
    """Worker processes could not be started."""

    code = "workers-lost"


class FatalJobError(TokenlightError):
    """An error that every task would meet: in the model, its options or the target."""

    code = "job-failed"


def make_disk_full_error(folder: object) -> DiskFull:
    """Build the error for a disk that takes no more data."""
    return DiskFull(
        f"The disk of {folder} is full. Finished work is kept: free some space, then run the same "
        "command again to continue."
    )


@contextmanager
def folder_errors_reported(folder: object) -> Iterator[None]:
    """Turn errors of the file system into errors that name ``folder`` and what to do.

    Raises:
        DiskFull: The disk is full.
        BadInput: The folder cannot be written for another reason.
    """
    try:
        yield
    except TokenlightError:
        raise
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise make_disk_full_error(folder) from error
        raise BadInput(
            f"{folder} cannot be written: {error.strerror or error}. Give another output folder.",
            code="folder-unwritable",
        ) from error


class Job(Protocol):
    """Work to distribute; it must be possible to pickle it."""

    def prepare(self, device: str) -> Callable[[Any], Mapping[str, Any]]:
        """Load what the tasks need.

        Args:
            device: Device of this worker, such as ``"cpu"`` or ``"cuda:1"``.

        Returns:
            A function that does one task, writes its files, and returns plain values about it.
        """


@dataclass(frozen=True)
class Outcome:
    """The result of one task, or its error. A full disk and a fatal error stop the run."""

    task_index: int
    seconds: float = 0.0
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    is_disk_full: bool = False
    is_fatal: bool = False


Tasks = Sequence[Any]
OutcomeStream = Generator[Outcome, None, None]  # closing it ends the workers


def make_lost_outcome(task_index: int, reason: str) -> Outcome:
    """Build the outcome of a task that was given up because its workers died."""
    error = (
        f"The worker of this task died {MAX_TRIES} times ({reason}), most often because memory ran "
        "out. Use fewer workers or smaller batches."
    )
    return Outcome(task_index, error=error)


class TaskWorker:
    """Does the tasks of one job, and holds its model. Errors are returned in the outcome, not raised."""

    def __init__(self, job: Job, tasks: Tasks, device: str) -> None:
        # The order of floating-point sums depends on the number of threads; one thread is reproducible.
        torch.set_num_threads(1)
        self.job = job
        self.tasks = tasks
        self.device = device
        self.run_task: Callable[[Any], Mapping[str, Any]] | None = None

    def execute(self, task_index: int) -> Outcome:
        """Do one task; the first one also loads the model."""
        start = time.perf_counter()
        try:
            if self.run_task is None:
                self.run_task = self.job.prepare(self.device)
            result = self.run_task(self.tasks[task_index])
        except OSError as error:
            is_disk_full = error.errno in DISK_FULL_ERRNOS
            return Outcome(task_index, error=describe_error(error), is_disk_full=is_disk_full)
        except Exception as error:  # noqa: BLE001 - one task that fails must not stop the others
            is_fatal = isinstance(error, FatalJobError)
            return Outcome(task_index, error=describe_error(error), is_fatal=is_fatal)
        return Outcome(task_index, time.perf_counter() - start, result)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        """Do the tasks of a Ray Data batch, a column of task numbers, and return outcomes as JSON."""
        outcomes = [self.execute(int(task_index)) for task_index in batch["id"]]
        return {"outcome": [json.dumps(asdict(outcome)) for outcome in outcomes]}


def load_explainer(name: str, device: str, **hub_options: Any) -> Explainer:
    """Load a model without messages of the libraries, and run it once on a fixed text.

    The first run finds out facts about the model, such as how it pads. They must not depend on the first
    text that a worker happens to get.

    Args:
        name: Name or folder of the model.
        device: Device to load it on.
        **hub_options: Further keywords of ``Explainer.from_pretrained()``.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    explainer = Explainer.from_pretrained(name, device=device, **hub_options)
    text, target = make_sample_input(explainer)
    # One method that only pads, and one that reads attention.
    for method in ("random", "raw_att"):
        with suppress(TokenlightError):
            explainer.explain(text, method, target, long="truncate", progress=False)
    return explainer


@runtime_checkable
class TaskRunner(Protocol):
    """Anything that runs tasks as an :class:`Engine` does."""

    @property
    def num_workers(self) -> int:
        """Number of workers."""

    def run_tasks(self, job: Job, tasks: Tasks, device: str) -> OutcomeStream:
        """Yield the outcome of each task, in the order in which they finish."""


@dataclass(frozen=True)
class Engine:
    """Runs the tasks of a job on several workers.

    Args:
        kind: ``"local"`` for processes of this machine, ``"ray"`` for actors of a Ray cluster.
        workers: Number of workers; by default one per core that this process may use.
        address: Address of a running Ray cluster; by default one is started on this machine.
        gpus_per_worker: Share of a GPU that each Ray actor gets, if the device is ``"cuda"``.

    Example:
        >>> from tokenlight.scale import Engine
        >>> Engine(workers=2).num_workers
        2
    """

    kind: Literal["local", "ray"] = "local"
    workers: Count | None = None
    address: str | None = None
    gpus_per_worker: Annotated[float, Range(0, 1 << 20)] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_workers(self) -> int:
        """Number of workers; by default one per core that this process may use."""
        if self.workers:
            return self.workers
        get_affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS and Windows
        if get_affinity is not None:
            return len(get_affinity(0))
        return os.cpu_count() or 1

    def run_tasks(self, job: Job, tasks: Tasks, device: str) -> OutcomeStream:
        """Yield the outcome of each task, in the order in which they finish.

        Args:
            job: What is done for each task; it is sent to every worker once.
            tasks: The tasks, in the order in which they are handed out.
            device: The device of each worker, such as ``"cpu"`` or ``"cuda"``.
        """
        if self.kind == "ray":
            from tokenlight.scale import ray_cluster

            return ray_cluster.run_ray_tasks(self, job, tasks, device)
        from tokenlight.scale import local_processes

        return local_processes.run_local_tasks(
            job, tasks, num_workers=self.num_workers, device=device
        )


def iter_outcomes(
    engine: TaskRunner, job: Job, tasks: Tasks, *, device: str, folder: object
) -> OutcomeStream:
    """Run the tasks and yield their outcomes; raise those that stop the run.

    Args:
        engine: Who runs the tasks.
        job: The job.
        tasks: Its tasks; an empty list starts no worker.
        device: Device to run on.
        folder: Output folder, to name in an error.

    Raises:
        DiskFull: A worker could not write because the disk is full.
        TokenlightError: An error that every task would meet.
    """
    if not tasks:
        return
    # Ctrl-C may arrive anywhere; closing() ends the workers before the exception travels on.
    with closing(engine.run_tasks(job, tasks, device)) as outcomes:
        for outcome in outcomes:
            if outcome.is_disk_full:
                raise make_disk_full_error(folder)
            if outcome.is_fatal:
                raise TokenlightError(outcome.error, code="job-failed")
            yield outcome
