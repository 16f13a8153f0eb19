"""From a suite and a request to a plan, with everything that stands against it, before any work."""

import dataclasses
import platform
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench.checks import Doctor, Fitness, entry_problems
from tokenlight.bench.entries import LAYERS, DataSet, MethodEntry, MetricEntry, Model
from tokenlight.bench.examples import check_task, examples_of, locate, relabelled, source
from tokenlight.bench.plan import Cell, Plan, Request
from tokenlight.bench.suite import Suite
from tokenlight.errors import TokenlightError
from tokenlight.files.tables import Example
from tokenlight.models import embedded
from tokenlight.models.embedded import digest_of, folder_digest
from tokenlight.progress import progress as progress_bar
from tokenlight.version import VERSION, version_of

LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")  # what computes the numbers


def plan(suite: Suite, request: Request) -> tuple[Plan, list[str]]:
    """The plan and every problem with it; loads each model once and tries its methods."""
    problems = [*entry_problems(suite), *_unmatched(suite, request)]
    lost: list[str] = []  # told behind the data sets, which cannot be read before
    conllu = _conllu(suite, request, lost)
    metrics = tuple(_metrics(suite, request, lost))
    pairs = [
        _Pair(suite, request, model, data, conllu)
        for model in suite.models
        for data in suite.data
        if not model.data or data.name in model.data
    ]
    wanted = {pair.data.name for pair in pairs if pair.place}
    sources, examples = _examples(suite, request, wanted, problems)
    problems += lost
    cells: list[Cell] = []
    doctor = Doctor(suite, request.device)
    with progress_bar("checking", len(pairs)) as advance:
        for pair in pairs:
            found = examples.get(pair.data.name, [])
            fitness = Fitness(refused="" if pair.place else "no local model")
            if found and pair.place:
                fitness = pair.examined(doctor, found, metrics, problems)
            cells += pair.cells(len(cells), fitness, len(found))
            advance(1)
    made = Plan(
        cells=tuple(cells),
        metrics=metrics,
        sources=sources,
        settings=_settings(suite, request, sources, conllu)
        | _hashes([cell for cell in cells if cell.runs], metrics),
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
    conllu: str

    @cached_property
    def place(self) -> str:
        """What is loaded, empty where nothing is."""
        given, hub = self._given("models"), self.model.hub
        if given:
            return str(Path(given).resolve()) if Path(given).is_dir() else given
        if hub and (not self.request.offline or hub.startswith(embedded.PREFIX)):
            return hub
        return "" if self.request.models else self.model.twin

    @property
    def stands_in(self) -> bool:
        """Whether the embedded twin runs in place of the suite's own checkpoint."""
        return self.place == self.model.twin != self.model.hub

    @property
    def labels(self) -> tuple[str, ...]:
        """The checkpoint's own labels, where their order differs from the data set's."""
        return () if self.stands_in or self._given("models") else self.model.labels

    def _given(self, kind: str) -> str:
        """What a person gave for this model here: --models, --lm or --heads."""
        return Request.mapped(getattr(self.request, kind), self.model.name, self.data.name)

    def examined(
        self,
        doctor: Doctor,
        examples: list[Example],
        metrics: Sequence[MetricEntry],
        problems: list[str],
    ) -> Fitness:
        """What the model cannot do. A stand-in that nobody asked for costs its cells only."""
        where = f"{self.model.name} on {self.data.name} ({self.place})"
        try:
            examples = relabelled(examples, self.labels, self.data)
        except TokenlightError as unknown:
            problems.append(f"{where}: {unknown}")
            return Fitness(refused=str(unknown))
        chosen = [one for one in metrics if not one.data or self.data.name in one.data]
        entries = [(entry, options) for entry, options, _ in self.entries(LAYERS)]
        fitness = doctor.examine(self.place, entries, examples, chosen)
        if not self.stands_in:
            problems += [f"{where}: {fitness.refused}"] if fitness.refused else []
            problems += [f"{where}: {label}: {why}" for label, why in fitness.troubles.items()]
        return fitness

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
        lm = self._given("lms") or ("" if self.stands_in else self.model.lm)
        heads = self._given("heads") or ("" if self.stands_in else self.model.heads)
        if "lm" in known and "lm" not in options and lm:
            options["lm"] = lm
        open_heads = "heads" in known and "heads" not in options
        if open_heads and heads:
            options["heads"] = str(Path(heads).resolve())
        return options, open_heads and not heads and bool(self.conllu)

    def cells(self, first: int, fitness: Fitness, examples: int) -> list[Cell]:
        found: list[Cell] = []
        reason = fitness.refused
        for entry, options, makes_heads in self.entries(fitness.layers):
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
                    reason=reason or fitness.troubles.get(entry.label, ""),
                )
            )
        return found


def _unmatched(suite: Suite, request: Request) -> Iterator[str]:
    """Data sets that no model is for; names given to --models and its like that stand for nothing."""
    for one in suite.data:
        if not any(not model.data or one.name in model.data for model in suite.models):
            yield f"data set {one.name}: no model is for it"
    data = [one.name for one in suite.data]
    names = [one.name for one in suite.models]
    known = {"", *data, *names, *(f"{name}/{one}" for name in names for one in data)}
    given = (("--models", request.models), ("--lm", request.lms), ("--heads", request.heads))
    for option, mapping in given:
        for key in mapping:
            if key not in known:
                listed = ", ".join(dict.fromkeys((*data, *names)))
                yield f"{option} {key}=…: the suite has no such data set or model; it has {listed}"


def _examples(
    suite: Suite, request: Request, wanted: set[str], problems: list[str]
) -> tuple[dict[str, str], dict[str, list[Example]]]:
    """Where each wanted data set is read from, and its examples."""
    sources: dict[str, str] = {}
    examples: dict[str, list[Example]] = {}
    for data in (one for one in suite.data if one.name in wanted):
        try:
            where = source(data, suite, request.data, offline=request.offline)
            found = examples_of(data, where, seed=suite.seed, limit=request.limit)
            check_task(data, found)
        except TokenlightError as missing:
            told = str(missing).removesuffix(".")
            problems.append(told if data.name in told else f"data set {data.name}: {told}")
            continue
        sources[data.name], examples[data.name] = where, found
    return sources, examples


def _found(suite: Suite, request: Request, local: str) -> str:
    """A file beside the suite or under --data, empty where there is none."""
    place = locate(local, [Path(suite.folder), *([request.data] if request.data else [])])
    return "" if place is None else str(place.resolve())


def _conllu(suite: Suite, request: Request, problems: list[str]) -> str:
    """The parsed text that heads files are made from."""
    if suite.heads is None:
        return ""
    place = _found(suite, request, suite.heads.conllu)
    if not place:
        where = request.data or "any folder: no --data was given"
        problems.append(f"heads: {suite.heads.conllu} is not in {where}")
    return place


def _metrics(suite: Suite, request: Request, problems: list[str]) -> Iterator[MetricEntry]:
    """The metrics, with the file that one of them names as its corpus found under --data."""
    for metric in suite.metrics:
        corpus = metric.options.get("corpus")
        place = _found(suite, request, str(corpus)) if corpus else ""
        if corpus and not place:
            problems.append(f"metric {metric.label}: the corpus {corpus} is not under --data")
        options = metric.options | ({"corpus": place} if place else {})
        yield dataclasses.replace(metric, options=options)


def _settings(
    suite: Suite, request: Request, sources: dict[str, str], conllu: str
) -> dict[str, Any]:
    """What the numbers depend on; a folder goes on only where all of it is the same."""
    return {
        "suite": suite.digest(),
        "limit": request.limit,
        "batch tokens": request.batch_tokens or suite.batch_tokens,
        "examples a part": request.slice or suite.slice,
        "device": request.device.partition(":")[0],
        "versions": {
            "tokenlight": VERSION,
            "python": platform.python_version(),
            **{name: version_of(name) for name in LIBRARIES},
        },
        "data": {name: digest_of(where) for name, where in sources.items()},
        "parsed text": digest_of(conllu) if conllu else "",
    }


def _hashes(cells: Sequence[Cell], metrics: Sequence[MetricEntry]) -> dict[str, Any]:
    """Hashes of the models, and of what options name: heads, language models, corpora."""
    weights = {place: folder_digest(place) for place in sorted({c.checkpoint for c in cells})}
    options = [one.options for one in cells] + [one.options for one in metrics]
    heads, lms, corpora = (
        sorted({str(one[key]) for one in options if one.get(key)})
        for key in ("heads", "lm", "corpus")
    )
    found = {
        "heads files": {place: digest_of(place) for place in heads},
        "models": {
            f"{cell.model}/{cell.data}": f"{cell.checkpoint} {weights[cell.checkpoint]}"
            for cell in cells
        },
    }
    if lms:
        found["language models"] = {place: folder_digest(place) for place in lms}
    if corpora:
        found["corpora"] = {place: digest_of(place) for place in corpora}
    return found
