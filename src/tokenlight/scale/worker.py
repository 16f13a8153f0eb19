"""What both engines run: one job, one thread, a task at a time. Benchmarks and explained files use it."""

import errno
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

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
        super().__init__(
            f"the disk of {folder} is full. What is finished is kept: free some room, then give the same "
            "command; it goes on from there."
        )


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
    """What became of a task: ``trouble`` is empty where it is done. A ``full`` disk, or what is
    ``hopeless``, stops the run."""

    task: int  # its number among those that were handed out
    seconds: float = 0.0
    said: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    full: bool = False
    hopeless: bool = False


def lost(task: int, how: str) -> Outcome:
    """Of a task that was given up."""
    told = f"its worker died {TRIES} times ({how}); most often the memory does not suffice"
    return Outcome(task, trouble=f"{told}: run with fewer --workers or smaller batches.")


class TaskWorker:
    """Holds a job, and with it the model. What goes wrong is told, not raised."""

    def __init__(self, job: Work, tasks: Sequence[Any], device: str) -> None:
        torch.set_num_threads(1)  # sums of floats depend on how they are cut: one thread, one way
        self.job, self.tasks, self.device = job, tasks, device
        self.make: Callable[[Any], Mapping[str, Any]] | None = None

    def work(self, number: int) -> Outcome:
        """Do one of the tasks."""
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
