"""Who does the tasks, worker processes of this machine with one thread each or a Ray cluster, and what a
worker does. Benchmarks and explained files use it."""

import errno
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import connection, get_all_start_methods, get_context, parent_process
from typing import Any, Literal, Protocol

import torch
from transformers.utils import logging

from tokenlight.errors import BadInput, TokenlightError, in_words
from tokenlight.explainer import Explainer
from tokenlight.explaining.default import sample

TRIES = 3  # a task whose worker dies so often is given up
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # how a disk says that it takes no more


class DiskFull(TokenlightError):
    """The disk took no more; what is finished is kept."""

    def __init__(self, folder: object) -> None:
        again = "free some room, then give the same command; it goes on from there"
        super().__init__(f"the disk of {folder} is full. What is finished is kept: {again}.")


@contextmanager
def writing(folder: object) -> Iterator[None]:
    """A folder that cannot be written in is refused in words; so is a disk that is full."""
    try:
        yield
    except TokenlightError:
        raise
    except OSError as broken:
        if broken.errno in FULL:
            raise DiskFull(folder) from broken
        why = broken.strerror or broken
        raise BadInput(f"cannot write in {folder}: {why}. Give a folder with -o.") from broken


class Hopeless(TokenlightError):
    """What is wrong is wrong for every task: the model, its options, the target."""


class Work(Protocol):
    """What is to be done, as a value that can be sent to another machine."""

    def begin(self, device: str) -> Callable[[Any], Mapping[str, Any]]:
        """What does a task, leaves its files behind, and says of it plain values."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task. A ``full`` disk, or what is ``hopeless``, stops the run."""

    task: int  # its number among those that were handed out
    seconds: float = 0.0
    said: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    full: bool = False
    hopeless: bool = False


Tasks = Sequence[Any]
Outcomes = Generator[Outcome, None, None]  # closing it ends the workers


def lost(task: int, how: str) -> Outcome:
    """Of a task that was given up."""
    told = f"its worker died {TRIES} times ({how}); most often the memory does not suffice"
    return Outcome(task, trouble=f"{told}: run with fewer --workers or smaller batches.")


class TaskWorker:
    """Holds a job, and with it the model. What goes wrong is told, not raised."""

    def __init__(self, job: Work, tasks: Tasks, device: str) -> None:
        torch.set_num_threads(1)  # sums of floats depend on how they are cut: one thread, one way
        self.job, self.tasks, self.device = job, tasks, device
        self.make: Callable[[Any], Mapping[str, Any]] | None = None

    def work(self, number: int) -> Outcome:
        begun = time.perf_counter()
        try:
            self.make = self.make or self.job.begin(self.device)
            said = self.make(self.tasks[number])
        except OSError as broken:
            return Outcome(number, trouble=in_words(broken), full=broken.errno in FULL)
        except Exception as broken:  # noqa: BLE001 - one task that fails must not stop the others
            return Outcome(number, trouble=in_words(broken), hopeless=isinstance(broken, Hopeless))
        return Outcome(number, time.perf_counter() - begun, said)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        """The same for Ray Data, whose rows are numbers of tasks."""
        return {"outcome": [json.dumps(asdict(self.work(int(i)))) for i in batch["id"]]}


def load(name: str, device: str, **hub: Any) -> Explainer:
    """A model without the chatter of the libraries, tried once on a fixed text: what is found out
    about it then must not depend on the first text it meets."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    explainer = Explainer.from_pretrained(name, device=device, **hub)
    text, target = sample(explainer)
    for method in ("random", "raw_att"):  # its padding, and its attention
        with suppress(TokenlightError):
            explainer.explain(text, method, target, long="truncate", progress=False)
    return explainer


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

    def results(self, job: Work, tasks: Tasks, device: str) -> Outcomes:
        """The outcome of each task, as they come in."""
        if self.kind == "ray":
            from tokenlight.scale import cluster

            return cluster.results(self, job, tasks, device)
        return local_results(job, tasks, workers=self.crew, device=device)


def outcomes(engine: Engine, job: Work, tasks: Tasks, where: tuple[str, object]) -> Outcomes:
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


def local_results(job: Work, tasks: Tasks, *, workers: int, device: str) -> Outcomes:
    """The outcome of each task, as they come in."""
    waiting = deque(range(len(tasks)))
    tries: dict[int, int] = {}
    gpus = max(1, torch.cuda.device_count()) if device == "cuda" else 0  # every GPU in turn
    places = [f"cuda:{i % gpus}" if gpus else device for i in range(min(workers, len(tasks)))]
    crew = [_Process(job, tasks, place) for place in places]
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
                    code = worker.process.exitcode or 0
                    yield lost(task, f"signal {-code}" if code < 0 else f"exit code {code}")
                crew[crew.index(worker)] = _Process(job, tasks, worker.device)
    finally:
        for worker in crew:
            worker.end()


def _context() -> Any:
    """Workers are forked from a server that has loaded the libraries once, where there is one."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["tokenlight.explainer"])
    return context


class _Process:
    """A process that does one task at a time."""

    def __init__(self, job: Work, tasks: Tasks, device: str) -> None:
        context = _context()
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.task: int | None = None
        given = theirs, job, tasks, device
        self.process = context.Process(target=_serve, args=given, daemon=True)
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


def _serve(pipe: Any, job: Work, tasks: Tasks, device: str) -> None:
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
