"""What a run will do: cells (model × data set × method), cut into parts of a slice of examples.

A plan is made once, checked before any work, and written into the run's folder, where every worker
reads it. It is plain values only.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tokenlight.bench.entries import MetricEntry
from tokenlight.bench.suite import Suite


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
        for key in (f"{model}/{data}", data, model, ""):
            if key in given:
                return given[key]
        return ""


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
        """Whether there is anything to do."""
        return not self.reason

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

    def metrics_for(self, data: str) -> tuple[MetricEntry, ...]:
        """The metrics measured on a data set."""
        return tuple(one for one in self.metrics if not one.data or data in one.data)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Rebuild from :meth:`to_dict`."""
        return TypeAdapter(cls).validate_python(values)


def slug(name: str) -> str:
    """A name for a file: what a file system might not take is replaced, and told apart by a hash."""
    plain = re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-.") or "unnamed"
    if plain == name and len(plain) <= 80:
        return plain
    return f"{plain[:60]}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"
