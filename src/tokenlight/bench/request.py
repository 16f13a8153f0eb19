"""From a suite and a request to a plan, with everything that stands against it, before any work."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench.checks import Checked, Doctor, entry_problems
from tokenlight.bench.digests import digest_of, weights_digest
from tokenlight.bench.entries import LAYERS, DataSet, MethodEntry, MetricEntry, Model
from tokenlight.bench.examples import (
    check_task,
    examples_of,
    locate,
    relabelled,
    source,
)
from tokenlight.bench.plan import Cell, Plan, Request
from tokenlight.bench.suite import Suite
from tokenlight.errors import TokenlightError
from tokenlight.files.tables import Example
from tokenlight.models import embedded
from tokenlight.progress import progress as progress_bar
from tokenlight.version import VERSION

NO_MODEL = "no local model"


def plan(suite: Suite, request: Request) -> tuple[Plan, list[str]]:
    """The plan and every problem with it; loads each model once and tries its methods."""
    problems = list(entry_problems(suite))
    pairs = [
        (model, data)
        for model in suite.models
        for data in suite.data
        if not model.data or data.name in model.data
    ]
    problems += [
        f"data set {data.name}: no model is for it"
        for data in suite.data
        if all(data is not other for _, other in pairs)
    ]
    problems += _unmatched(suite, request)
    checkpoints = [checkpoint(model, data, request) for model, data in pairs]
    wanted = {data.name for (_, data), (place, _) in zip(pairs, checkpoints, strict=True) if place}
    sources, examples, missing = _data(suite, request, wanted)
    problems += missing
    conllu, lost = _conllu(suite, request)
    problems += lost
    metrics, lost = _metrics(suite, request)
    problems += lost
    cells: list[Cell] = []
    doctor = Doctor(suite, request.device)
    with progress_bar("checking", len(pairs)) as advance:
        for (model, data), (place, reason) in zip(pairs, checkpoints, strict=True):
            base = _Pair(suite, request, model, data, place, reason, conllu)
            checked = Checked({}, reason)
            if place and data.name in examples:
                checked, more = base.checked(doctor, examples[data.name], metrics)
                problems += more
            cells += base.cells(len(cells), checked, len(examples.get(data.name, ())))
            advance(1)
    made = Plan(
        cells=tuple(cells),
        metrics=metrics,
        sources=sources,
        settings=_settings(suite, request, cells, sources, conllu) | _named_files(cells, metrics),
        limit=request.limit,
        device=request.device,
        batch_tokens=request.batch_tokens or suite.batch_tokens,
        conllu=conllu,
        slice=request.slice or suite.slice,
    )
    return made, problems


@dataclasses.dataclass(frozen=True)
class _Pair:
    """A model on a data set, and what becomes of each method there."""

    suite: Suite
    request: Request
    model: Model
    data: DataSet
    place: str
    reason: str
    conllu: str

    @property
    def stands_in(self) -> bool:
        """Whether the embedded twin runs in place of the suite's own checkpoint."""
        return self.place == self.model.twin != self.model.hub

    @property
    def labels(self) -> tuple[str, ...]:
        """The checkpoint's own labels, where their order differs from the data set's."""
        given = Request.mapped(self.request.models, self.model.name, self.data.name)
        return () if self.stands_in or given else self.model.labels

    def checked(
        self, doctor: Doctor, examples: list[Example], metrics: tuple[MetricEntry, ...]
    ) -> tuple[Checked, list[str]]:
        """What the model cannot do. A stand-in that nobody asked for costs its cells only."""
        chosen = tuple(one for one in metrics if not one.data or self.data.name in one.data)
        where = f"{self.model.name} on {self.data.name} ({self.place})"
        try:
            examples = relabelled(examples, self.labels, self.data)
        except TokenlightError as unknown:
            return Checked({}, str(unknown)), [f"{where}: {unknown}"]
        entries = [(entry, options) for entry, options, _ in self.entries(LAYERS)]
        checked = doctor.examine(self.place, entries, examples, chosen)
        told = [f"{where}: {checked.refused}"] if checked.refused else []
        told += [f"{where}: {label}: {why}" for label, why in checked.troubles.items()]
        return checked, [] if self.stands_in else told

    def entries(
        self, layers: int | str | None
    ) -> Iterator[tuple[MethodEntry, dict[str, Any], bool]]:
        """Each method here, with its full options, and whether its heads are made by the run."""
        for listed in self.suite.methods:
            if listed.data and self.data.name not in listed.data:
                continue
            if LAYERS in listed.each.values() and layers is None:
                yield listed, dict(listed.options), False
                continue
            # With the number of layers unknown, the embedding stands for them all in the check.
            for entry in listed.expanded(layers if isinstance(layers, int) else None):
                yield entry, *self._options(entry)

    def _options(self, entry: MethodEntry) -> tuple[dict[str, Any], bool]:
        options = entry.options | (entry.twin if self.stands_in else {})
        try:
            known = registry.options_of("methods", entry.name)
        except TokenlightError:
            return options, False  # told by entry_problems
        name, data = self.model.name, self.data.name
        lm = Request.mapped(self.request.lms, name, data) or (
            "" if self.stands_in else self.model.lm
        )
        heads = Request.mapped(self.request.heads, name, data) or (
            "" if self.stands_in else self.model.heads
        )
        if "lm" in known and "lm" not in options and lm:
            options["lm"] = lm
        if "heads" in known and "heads" not in options:
            if heads:
                options["heads"] = str(Path(heads).resolve())
            elif self.conllu:
                return options, True
        return options, False

    def cells(self, first: int, checked: Checked, examples: int) -> list[Cell]:
        found: list[Cell] = []
        reason = self.reason or checked.refused
        for entry, options, makes_heads in self.entries(checked.layers):
            if entry.each and not reason:
                reason = "the model does not tell how many layers it has"
            found.append(
                Cell(
                    number=first + len(found),
                    model=self.model.name,
                    data=self.data.name,
                    method=entry.label,
                    name=entry.name,
                    options=options,
                    checkpoint=self.place,
                    examples=examples,
                    labels=self.labels,
                    makes_heads=makes_heads,
                    reason=reason or checked.troubles.get(entry.label, ""),
                )
            )
        return found


def checkpoint(model: Model, data: DataSet, request: Request) -> tuple[str, str]:
    """What is loaded for a model on a data set, or why nothing is."""
    given = Request.mapped(request.models, model.name, data.name)
    if given:
        return str(Path(given).resolve()) if Path(given).is_dir() else given, ""
    if not request.offline and model.hub:
        return model.hub, ""
    if model.hub.startswith(embedded.PREFIX):
        return model.hub, ""
    if model.twin and not request.models:
        return model.twin, ""
    return "", NO_MODEL


def versions() -> dict[str, str]:
    """What computes the numbers."""
    found = {"tokenlight": VERSION, "python": platform.python_version()}
    for library in ("torch", "transformers", "tokenizers", "numpy"):
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "missing"
    return found


def _unmatched(suite: Suite, request: Request) -> Iterator[str]:
    """A name given to --models and its like that stands for nothing is a typo."""
    data = [one.name for one in suite.data]
    names = [one.name for one in suite.models]
    known = {"", *data, *names, *(f"{name}/{one}" for name in names for one in data)}
    given = (("--models", request.models), ("--lm", request.lms), ("--heads", request.heads))
    for option, mapping in given:
        for key in mapping:
            if key not in known:
                listed = ", ".join(dict.fromkeys((*data, *names)))
                yield f"{option} {key}=…: the suite has no such data set or model; it has {listed}"


def _data(
    suite: Suite, request: Request, wanted: set[str]
) -> tuple[dict[str, str], dict[str, list[Example]], list[str]]:
    """Where each data set is read from, its examples, and what is missing."""
    sources: dict[str, str] = {}
    examples: dict[str, list[Example]] = {}
    problems = []
    for data in suite.data:
        if data.name not in wanted:
            continue
        try:
            where = source(data, suite, request.data, offline=request.offline)
            found = examples_of(data, where, seed=suite.seed, limit=request.limit)
            check_task(data, found)
        except TokenlightError as missing:
            told = str(missing).removesuffix(".")
            problems.append(told if data.name in told else f"data set {data.name}: {told}")
            continue
        sources[data.name], examples[data.name] = where, found
    return sources, examples, problems


def _conllu(suite: Suite, request: Request) -> tuple[str, list[str]]:
    """The parsed text that heads files are made from."""
    if suite.heads is None:
        return "", []
    folders = [Path(suite.folder), *([request.data] if request.data else [])]
    place = locate(suite.heads.conllu, folders)
    if place is None:
        where = request.data or "any folder: no --data was given"
        return "", [f"heads: {suite.heads.conllu} is not in {where}"]
    return str(place.resolve()), []


def _metrics(suite: Suite, request: Request) -> tuple[tuple[MetricEntry, ...], list[str]]:
    """The metrics, with the file that one of them names as its corpus found under --data."""
    folders = [Path(suite.folder), *([request.data] if request.data else [])]
    found, problems = [], []
    for metric in suite.metrics:
        corpus = metric.options.get("corpus")
        place = locate(str(corpus), folders) if corpus else None
        if corpus and place is None:
            problems.append(f"metric {metric.label}: the corpus {corpus} is not under --data")
        options = metric.options | ({"corpus": str(place.resolve())} if place else {})
        found.append(dataclasses.replace(metric, options=options))
    return tuple(found), problems


def _settings(
    suite: Suite, request: Request, cells: list[Cell], sources: dict[str, str], conllu: str
) -> dict[str, Any]:
    """What the numbers depend on; a folder goes on only where all of it is the same."""
    weights = {cell.checkpoint for cell in cells if cell.runs}
    given = {str(cell.options["heads"]) for cell in cells if cell.runs and "heads" in cell.options}
    hashed = {place: weights_digest(place) for place in sorted(weights)}
    return {
        "suite": suite.digest(),
        "limit": request.limit,
        "batch tokens": request.batch_tokens or suite.batch_tokens,
        "examples a part": request.slice or suite.slice,
        "device": request.device.partition(":")[0],
        "versions": versions(),
        "data": {name: digest_of(where) for name, where in sources.items()},
        "parsed text": digest_of(conllu) if conllu else "",
        "heads files": {place: digest_of(place) for place in sorted(given)},
        "models": {
            f"{cell.model}/{cell.data}": f"{cell.checkpoint} {hashed[cell.checkpoint]}"
            for cell in cells
            if cell.runs
        },
    }


def _named_files(cells: list[Cell], metrics: tuple[MetricEntry, ...]) -> dict[str, Any]:
    """Hashes of what options name beside heads: language models, and corpora of metrics."""
    named = {str(cell.options["lm"]) for cell in cells if cell.runs and cell.options.get("lm")}
    lms = {place: weights_digest(place) for place in sorted(named)}
    corpora = {str(one.options["corpus"]) for one in metrics if one.options.get("corpus")}
    counted = {place: digest_of(place) for place in sorted(corpora)}
    found = {"language models": lms, "corpora": counted}
    return {name: hashed for name, hashed in found.items() if hashed}
