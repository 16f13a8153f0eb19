"""From a suite and a request to a plan, with everything that stands against it, before any work."""

import dataclasses
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench.entries import LAYERS, DataSet, MethodEntry, MetricEntry, Model
from tokenlight.bench.examples import examples_of, locate, relabelled, source, task_of
from tokenlight.bench.plan import Cell, Plan, Request
from tokenlight.bench.suite import Suite
from tokenlight.errors import BadInput, TokenlightError, in_words
from tokenlight.evaluation.preflight import attempt, check_metrics, read_labels
from tokenlight.explainer import Explainer
from tokenlight.files.tables import Example
from tokenlight.methods.mask_lrp import NEEDS_HEADS
from tokenlight.models import embedded
from tokenlight.models.embedded import digest_of, folder_digest
from tokenlight.progress import progress as progress_bar
from tokenlight.scale.worker import load
from tokenlight.version import VERSION, version_of

LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")  # what computes the numbers


def plan(suite: Suite, request: Request) -> tuple[Plan, list[str]]:
    """The plan and every problem with it; loads each model once and tries its methods."""
    problems = [*entry_problems(suite), *_unmatched(suite, request)]
    lost: list[str] = []  # told behind the data sets, which cannot be read before
    folders = [Path(suite.folder), *([request.data] if request.data else [])]

    def found(local: str, missing: str) -> str:
        """A file beside the suite or under --data, empty where there is none."""
        place = locate(local, folders)
        lost.extend([missing] if place is None else [])
        return "" if place is None else str(place.resolve())

    conllu = ""
    if suite.heads is not None:
        where = request.data or "any folder: no --data was given"
        conllu = found(suite.heads.conllu, f"heads: {suite.heads.conllu} is not in {where}")
    metrics = []
    for metric in suite.metrics:
        options = dict(metric.options)
        if corpus := options.get("corpus"):
            missing = f"metric {metric.label}: the corpus {corpus} is not under --data"
            options["corpus"] = found(str(corpus), missing) or corpus
        metrics.append(dataclasses.replace(metric, options=options))
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
    trials = _Trials(suite, request.device)
    with progress_bar("checking", len(pairs)) as advance:
        for pair in pairs:
            known = examples.get(pair.data.name, [])
            fitness = _Fitness("" if pair.place else "no local model")
            if known and pair.place:
                fitness = pair.examined(trials, known, metrics, problems)
            cells += pair.cells(len(cells), fitness, len(known))
            advance(1)
    made = Plan(
        cells=tuple(cells),
        metrics=tuple(metrics),
        sources=sources,
        settings={},
        limit=request.limit,
        device=request.device,
        batch_tokens=request.batch_tokens or suite.batch_tokens,
        conllu=conllu,
        slice=request.slice or suite.slice,
    )
    return dataclasses.replace(made, settings=_settings(suite, made)), problems


def entry_problems(suite: Suite) -> Iterator[str]:
    """Names and options that no method or metric has."""
    for entry in (one for listed in suite.methods for one in listed.expanded(1)):
        known = entry.name in registry.names("methods")
        for options in (entry.options, entry.options | entry.twin) if known else ({},):
            yield from _wrong("methods", entry, options)
    for metric in suite.metrics:
        yield from _wrong("metrics", metric, metric.options)


def _wrong(
    kind: registry.Kind, entry: MethodEntry | MetricEntry, options: Mapping[str, Any]
) -> Iterator[str]:
    if (
        kind == "methods"
    ):  # most masks want heads, which the run may make: checked on the model itself
        files = ("heads", "lm", "mask")
        options = {key: value for key, value in options.items() if key not in files}
    try:
        registry.build(kind, entry.name, options)
    except TokenlightError as wrong:
        said = "" if repr(entry.label) in str(wrong) else f"{kind[:-1]} {entry.label}: "
        yield said + str(wrong).removesuffix(".")


@dataclasses.dataclass(frozen=True)
class _Fitness:
    """What a model cannot do: ``refused`` where it can do nothing here, ``troubles`` by the method's
    label. ``layers``: how many blocks it has."""

    refused: str = ""
    troubles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    layers: int | None = None


class _Trials:
    """Tries methods on models, each on each once; holds one model at a time."""

    def __init__(self, suite: Suite, device: str) -> None:
        said = suite.protocol
        self.how = {"explain_mask": said.explain_mask, "token_types": said.token_types}
        self.device, self.place = device, ""
        self.loaded: Explainer | None = None
        self.found: dict[tuple[str, str], Exception | None] = {}

    def explainer(self, place: str) -> Explainer:
        """The model at a place."""
        if self.loaded is None or self.place != place:
            self.loaded = None  # a model that was only tried makes room for the next
            self.place, self.loaded = place, load(place, self.device)
        return self.loaded

    def trouble(self, place: str, entry: MethodEntry, options: dict[str, Any]) -> str:
        """What goes wrong when the method explains a short text, as ``tokenlight doctor`` tries it."""
        tried = dict(options)
        if "heads" not in tried and tried.get("mask") in NEEDS_HEADS:
            tried["mask"] = "positional"  # its sibling: its own heads are made only later
        # Another seed draws other numbers, which is no other question.
        asked = sorted((pair for pair in options.items() if pair[0] != "seed"), key=str)
        key = (place, f"{entry.name} {asked}")
        if key not in self.found:
            explainer = self.explainer(place)
            self.found[key] = attempt(explainer, (entry.name, tried), **self.how)[0]
        wrong = self.found[key]
        return "" if wrong is None else in_words(wrong).removesuffix(".")


def _misfits(
    explainer: Explainer, examples: Sequence[Example], metrics: Sequence[MetricEntry]
) -> Iterator[str]:
    """Why a head does not fit the examples or a metric."""
    head = explainer.live.head
    span, task = head.kind == "span", task_of(examples[0])
    if span != (task == "qa"):
        kind = "answers questions" if span else "is a classifier"
        yield f"the model {kind}, but the data set is for {task}"
        return
    if not span:
        try:
            read_labels([example.label for example in examples], head)
        except TokenlightError as unknown:
            yield str(unknown)
    for entry in metrics:
        if any(_wrong("metrics", entry, entry.options)):
            continue  # told by entry_problems
        try:
            built = registry.build("metrics", entry.name, entry.options)
            check_metrics([built], head, examples)
        except TokenlightError as refused:
            yield f"{entry.label}: {refused}"


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
        trials: _Trials,
        examples: list[Example],
        metrics: Sequence[MetricEntry],
        problems: list[str],
    ) -> _Fitness:
        """What the model cannot do. A stand-in that nobody asked for costs its cells only."""
        where = f"{self.model.name} on {self.data.name} ({self.place})"
        try:
            examples = relabelled(examples, self.labels, self.data)
        except TokenlightError as unknown:
            problems.append(f"{where}: {unknown}")
            return _Fitness(str(unknown))
        chosen = [one for one in metrics if not one.data or self.data.name in one.data]
        try:
            explainer = trials.explainer(self.place)
            refused = "; ".join(_misfits(explainer, examples, chosen))
            layers = getattr(explainer.model.config.get_text_config(), "num_hidden_layers", None)
        except TokenlightError as missing:
            refused, layers = str(missing), None
        troubles = {
            entry.label: why
            for entry, options, _ in (() if refused else self.entries(LAYERS))
            if not any(_wrong("methods", entry, options))  # told by entry_problems
            and (why := trials.trouble(self.place, entry, options))
        }
        if not self.stands_in:
            problems += [f"{where}: {refused}"] if refused else []
            problems += [f"{where}: {label}: {why}" for label, why in troubles.items()]
        return _Fitness(refused, troubles, layers if isinstance(layers, int) else None)

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
            known = registry.options_of("methods", entry.name).keys() - options.keys()
        except TokenlightError:
            return options, False  # told by entry_problems
        lm = self._given("lms") or ("" if self.stands_in else self.model.lm)
        heads = self._given("heads") or ("" if self.stands_in else self.model.heads)
        if "lm" in known and lm:
            options["lm"] = lm
        if "heads" in known and heads:
            options["heads"] = str(Path(heads).resolve())
        return options, "heads" in known and not heads and bool(self.conllu)

    def cells(self, first: int, fitness: _Fitness, examples: int) -> Iterator[Cell]:
        reason = fitness.refused
        for number, (entry, options, makes_heads) in enumerate(self.entries(fitness.layers), first):
            if entry.each and not reason:
                reason = "the model does not tell how many layers it has"
            yield Cell(
                number=number,
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


def _unmatched(suite: Suite, request: Request) -> Iterator[str]:
    """Data sets that no model is for; names given to --models and its like that stand for nothing."""
    data, names = ([one.name for one in listed] for listed in (suite.data, suite.models))
    for one in data:
        if not any(not model.data or one in model.data for model in suite.models):
            yield f"data set {one}: no model is for it"
    known = {"", *data, *names, *(f"{name}/{one}" for name in names for one in data)}
    given = {"--models": request.models, "--lm": request.lms, "--heads": request.heads}
    for option, key in ((option, key) for option, keys in given.items() for key in keys):
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
            if data.task and (task := task_of(found[0])) != data.task:
                raise BadInput(
                    f"data set {data.name}: the suite says {data.task}, but its examples are for {task}; "
                    "name the columns with text: …"
                )
        except TokenlightError as missing:
            told = str(missing).removesuffix(".")
            problems.append(told if data.name in told else f"data set {data.name}: {told}")
            continue
        sources[data.name], examples[data.name] = where, found
    return sources, examples


def _settings(suite: Suite, plan: Plan) -> dict[str, Any]:
    """What the numbers depend on; a folder goes on only where all of it is the same."""
    cells = [cell for cell in plan.cells if cell.runs]
    weights = {place: folder_digest(place) for place in sorted({c.checkpoint for c in cells})}
    options = [one.options for one in cells] + [one.options for one in plan.metrics]
    named = {
        key: sorted({str(one[key]) for one in options if one.get(key)})
        for key in ("heads", "lm", "corpus")
    }
    return {
        "suite": suite.digest(),
        "limit": plan.limit,
        "batch tokens": plan.batch_tokens,
        "examples a part": plan.slice,
        "device": plan.device.partition(":")[0],
        "versions": {
            "tokenlight": VERSION,
            "python": platform.python_version(),
            **{name: version_of(name) for name in LIBRARIES},
        },
        "data": {name: digest_of(where) for name, where in plan.sources.items()},
        "parsed text": digest_of(plan.conllu) if plan.conllu else "",
        "heads files": {place: digest_of(place) for place in named["heads"]},
        "models": {
            f"{cell.model}/{cell.data}": f"{cell.checkpoint} {weights[cell.checkpoint]}"
            for cell in cells
        },
        "language models": {place: folder_digest(place) for place in named["lm"]},
        "corpora": {place: digest_of(place) for place in named["corpus"]},
    }
