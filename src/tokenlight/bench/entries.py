"""What stands in a suite: data sets, models, methods, metrics, and the suite itself. Frozen values.

:mod:`tokenlight.bench.suite` reads them from YAML.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

TASKS = ("classification", "pair", "qa")
DEEPEST = 200  # layers that `each: layers` is filled in for where labels are looked up
LAYERS = "layers"  # in `each`: every layer of the model, the embedding first


@dataclass(frozen=True)
class DataSet:
    """Examples: where they are on the hub and on this machine, and which of them are taken.

    ``local``: FOLDER/SPLIT under ``--data`` (``sst2/dev`` finds sst2/dev.jsonl.gz), or a file beside
    the suite. ``otherwise``: a file beside the suite that is read where no ``--data`` is given.
    ``text``: column, two joined by ``+`` for a pair. ``size``: how many are taken,
    the first ones or (``sample: random``) drawn with the suite's seed; ``classes``: only examples
    with these labels.
    """

    name: str
    title: str = ""
    hub: str = ""
    hub_split: str = "validation"
    local: str = ""
    otherwise: str = ""
    text: str = ""
    label: str = ""
    task: str = ""
    size: int | None = None
    sample: str = "first"
    classes: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Model:
    """A checkpoint for one or more data sets (``data``; empty: all).

    ``twin``: the embedded model that stands in for it offline. ``lm``: the language model the
    decoded methods read. ``heads``: a heads file for mask_lrp. ``labels``: for each label of the
    data set the model's own, where their order differs.
    """

    name: str
    hub: str = ""
    data: tuple[str, ...] = ()
    twin: str = ""
    lm: str = ""
    heads: str = ""
    labels: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class MethodEntry:
    """A method with options, under the name it has in the tables (``label``).

    ``twin``: options that take their place with an embedded stand-in. ``each``: option to values;
    one entry for every combination, ``{option}`` in the label and in ``group`` filled in. ``group``:
    the row of a table that the entries share, one draw each.
    """

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    each: dict[str, Any] = field(default_factory=dict)
    twin: dict[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    group: str = ""

    def expanded(self, layers: int | None = None) -> Iterator[MethodEntry]:
        """One entry for every combination of ``each``; ``layers`` in it needs their number."""
        lists = [
            list(range((layers or 0) + 1)) if values == LAYERS else values
            for values in self.each.values()
        ]
        for combination in itertools.product(*lists):
            chosen = dict(zip(self.each, combination, strict=True))
            label = self.label
            if chosen and "{" not in label:
                label += "".join(f" {name}={{{name}}}" for name in chosen)
            group = self.group
            for name, value in chosen.items():
                label = label.replace("{" + name + "}", str(value))
                group = group.replace("{" + name + "}", str(value))
            options = self.options | chosen
            yield replace(self, label=label, group=group, options=options, each={})


@dataclass(frozen=True)
class MetricEntry:
    """A metric with options, under the name it has in the tables (``label``)."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heads:
    """How heads files are made for the models that bring none: parsed text under ``--data``."""

    conllu: str
    limit: int | None = None
    align: str = "offsets"
    margin: float = 0.1
    share: float = 0.8


@dataclass(frozen=True)
class Claim:
    """A claim of the paper that the report checks: ``better`` beats every one of ``than``."""

    claim: str
    metric: str = ""
    better: str = ""
    than: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """All that a run depends on, models and data files aside.

    ``published``: data set (or ``model/data set``) to method label to metric label to number.
    ``report``: how the report shows it; the runner does not read it. ``keep``: of how many examples
    a data set the whole explanation is kept, for heat maps and coloured texts.
    """

    name: str
    title: str = ""
    paper: str = ""
    kind: str = "table"
    data: tuple[DataSet, ...] = ()
    models: tuple[Model, ...] = ()
    methods: tuple[MethodEntry, ...] = ()
    metrics: tuple[MetricEntry, ...] = ()
    protocol: dict[str, Any] = field(default_factory=dict)
    heads: Heads | None = None
    batch_tokens: int = 2048
    seed: int = 0
    slice: int = 64
    keep: int = 0
    published: dict[str, Any] = field(default_factory=dict)
    expect: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    report: dict[str, Any] = field(default_factory=dict)
    folder: str = ""  # where the suite's file stands; files beside it are found by it

    @cached_property
    def rows(self) -> dict[str, MethodEntry]:
        """Row of a table to its (first) entry: draws of a group share one."""
        found: dict[str, MethodEntry] = {}
        for one in self._expanded:
            found.setdefault(one.group or one.label, one)
        return found

    @cached_property
    def row_of(self) -> dict[str, str]:
        """Method label to the row it stands in."""
        return {one.label: one.group or one.label for one in self._expanded}

    @cached_property
    def _expanded(self) -> list[MethodEntry]:
        return [one for entry in self.methods for one in entry.expanded(DEEPEST)]

    def data_set(self, name: str) -> DataSet:
        """The data set of that name."""
        return next(one for one in self.data if one.name == name)

    def model(self, name: str, data: str) -> Model:
        """The model of that name for a data set."""
        of = (one for one in self.models if one.name == name)
        return next(one for one in of if not one.data or data in one.data)

    def metrics_for(self, data: str) -> tuple[MetricEntry, ...]:
        """The metrics measured on a data set."""
        return tuple(one for one in self.metrics if not one.data or data in one.data)

    def digest(self) -> str:
        """Hash of what changes a number: published numbers, notes and the report's wishes do not."""
        content = asdict(self)
        silent = ("published", "expect", "notes", "report", "folder", "title", "paper", "kind")
        for name in silent:
            del content[name]
        for entry in (*content["data"], *content["models"], *content["methods"]):
            entry.pop("note", None)
            entry.pop("group", None)
        plain = json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(plain.encode()).hexdigest()
