"""What a run will do: cells (model × data set × method), cut into parts of a slice of examples; and which
examples those are.

A plan is made once, checked before any work, and written into the run's folder, where every worker
reads it. It is plain values only.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.bench.entries import DataSet, MetricEntry
from tokenlight.bench.suite import Suite
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput
from tokenlight.files.tables import ENDINGS, Example, read
from tokenlight.metrics._metric import Metric

FORMS = tuple(ending + zipped for ending in ENDINGS for zipped in ("", ".gz"))


@dataclass(frozen=True)
class Request:
    """What a person asked for beside the suite. ``models``, ``lms`` and ``heads`` map a model's
    name, a data set's, or ``model/data set`` to a folder or file; the most specific wins."""

    models: Mapping[str, str] = field(default_factory=dict)
    lms: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    limit: int | None = None
    offline: bool = False
    device: str = "cpu"
    batch_tokens: int | None = None
    slice: int | None = None

    @staticmethod
    def mapped(given: Mapping[str, str], model: str, data: str) -> str:
        """What ``given`` says for a model on a data set, or nothing."""
        keys = (f"{model}/{data}", data, model, "")
        return next((given[key] for key in keys if key in given), "")


@dataclass(frozen=True)
class Cell:
    """One model on one data set explained by one method: a cell of a table for each metric.

    ``reason``: why it is not run, empty where it is. ``makes_heads``: ``options["heads"]`` is a file
    that the run makes first.
    """

    number: int
    model: str
    data: str
    method: str  # its label
    name: str  # in the registry
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = ""
    examples: int = 0
    labels: tuple[str, ...] = ()
    makes_heads: bool = False
    reason: str = ""

    @property
    def runs(self) -> bool:
        return not self.reason

    @property
    def names(self) -> dict[str, str]:
        return {"model": self.model, "data": self.data, "method": self.method}

    @property
    def pair(self) -> str:
        """Model and data set as a folder's name."""
        return f"{slug(self.model)}@{slug(self.data)}"

    @property
    def folder(self) -> Path:
        """Where its parts stand below the run's ``parts``."""
        return Path(self.pair) / slug(self.method)


@dataclass(frozen=True, order=True)
class Part:
    """Examples ``first`` to ``first + count`` of a cell; ``cell`` is its number."""

    cell: int
    first: int
    count: int


@dataclass(frozen=True)
class Plan:
    """All cells, where their data are read, and what they depend on (``settings``)."""

    cells: tuple[Cell, ...]
    metrics: tuple[MetricEntry, ...]
    sources: dict[str, str]  # data set to file or hub name
    settings: dict[str, Any]
    limit: int | None = None
    device: str = "cpu"
    batch_tokens: int = 2048
    conllu: str = ""
    slice: int = 0  # examples a part; 0: as many as the suite says

    def parts(self, suite: Suite) -> Iterator[Part]:
        """The parts in order: models one after another, so that a worker loads each once."""
        size = self.slice or suite.slice
        for cell in self.cells:
            if cell.runs:
                for first in range(0, cell.examples, size):
                    yield Part(cell.number, first, min(size, cell.examples - first))

    def metrics_for(self, data: str) -> dict[str, Metric]:
        own = (one for one in self.metrics if not one.data or data in one.data)
        return {one.label: one.metric for one in own}


def slug(name: str) -> str:
    """A name for a file: what a file system might not take is replaced, and told apart by a hash."""
    plain = re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-.") or "unnamed"
    if plain == name and len(plain) <= 80:
        return plain
    return f"{plain[:60]}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"


def locate(local: str, folders: Sequence[Path]) -> Path | None:
    """The file that ``sst2/dev`` means in the first folder that has one, with or without its ending."""
    places = (folder / f"{local}{form}" for folder in folders for form in ("", *FORMS))
    return next((place for place in places if place.is_file()), None)


def source(data: DataSet, suite: Suite, folder: Path | None, *, offline: bool) -> str:
    """The file, or the hub's name, that a data set is read from; BadInput where there is none."""
    folders = [Path(suite.folder), *([folder] if folder else [])]
    found = locate(data.local, folders)
    if found is None and folder is None and data.otherwise:
        found = locate(data.otherwise, folders[:1])
    if found is not None:
        return str(found.resolve())
    if folder is None and data.hub and not offline:
        return data.hub
    looked = ", nor in ".join(map(str, folders))
    hub = ", and --offline asks no hub" if data.hub and folder is None else ""
    raise BadInput(f"data set {data.name}: {data.local} is not in {looked}{hub}; give --data DIR")


def examples_of(data: DataSet, where: str, *, seed: int, limit: int | None) -> list[Example]:
    """The chosen examples in their order; the same on every worker."""
    found = read(where, text=data.text or None, label=data.label or None, split=data.hub_split)
    if data.classes:
        found = [example for example in found if str(example.label) in data.classes]
        if not found:
            raise BadInput(f"data set {data.name}: no example has a label of {data.classes}")
    if data.task and (task := task_of(found[0])) != data.task:
        said = f"the suite says {data.task}, but its examples are for {task}"
        raise BadInput(f"data set {data.name}: {said}")
    most = min(given for given in (data.size, limit, len(found)) if given is not None)
    if most == len(found) or data.sample == "first":
        return found[:most]
    drawn = np.random.default_rng(seed).choice(len(found), most, replace=False)
    return [found[i] for i in sorted(int(i) for i in drawn)]


def relabelled(examples: Sequence[Example], labels: Sequence[str], data: DataSet) -> list[Example]:
    """``labels``: for each label of the data set the model's own; empty where they are the same."""
    own: dict[Any, Any] = {i: int(o) if o.isdigit() else o for i, o in enumerate(labels)}
    given = {one.label for one in examples if one.label is not None}
    if labels and (others := given - own.keys()):
        said = f"the model names {len(labels)} labels; one has {others.pop()!r}"
        raise BadInput(f"data set {data.name}: {said}")
    return [replace(one, label=own.get(one.label)) if labels else one for one in examples]


def task_of(example: Example) -> str:
    """classification, pair or qa, as the example shows it."""
    if isinstance(example.text, Question):
        return "qa"
    return "classification" if isinstance(example.text, str) else "pair"
