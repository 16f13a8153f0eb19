"""From a suite and a request to a plan, with everything that stands against it, before any work."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench import plan as plans
from tokenlight.bench.entries import LAYERS, DataSet, MethodEntry, MetricEntry, Model
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
from tokenlight.scale.engine import load
from tokenlight.version import VERSION, version_of

LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")  # what computes the numbers
Examples = Sequence[Example]


def plan(suite: Suite, request: Request) -> tuple[Plan, list[str]]:
    """The plan and every problem with it; loads each model once and tries its methods."""
    planning = _Planning(suite, request)
    made = planning.plan()
    return replace(made, settings=_settings(suite, made)), planning.problems


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
    if kind == "methods":  # of heads, which the run may make, most masks are checked on the model
        files = ("heads", "lm", "mask")
        options = {key: value for key, value in options.items() if key not in files}
    try:
        registry.build(kind, entry.name, options)
    except TokenlightError as wrong:
        said = "" if repr(entry.label) in str(wrong) else f"{kind[:-1]} {entry.label}: "
        yield said + str(wrong).removesuffix(".")


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


class _Planning:
    """A plan in the making, with what stands against it; holds one model at a time."""

    def __init__(self, suite: Suite, request: Request) -> None:
        self.suite, self.request = suite, request
        self.problems = [*entry_problems(suite), *_unmatched(suite, request)]
        self.cells: list[Cell] = []
        self.loaded: dict[str, Explainer] = {}
        self.tried: dict[str, str] = {}  # method on a model to what goes wrong
        self.conllu = self._found(suite.heads.conllu, "heads") if suite.heads else ""
        self.metrics = tuple(self._with_corpus(one) for one in suite.metrics)

    def plan(self) -> Plan:
        suite, request = self.suite, self.request
        pairs = [
            (*self._resolved(model, data), data)
            for model in suite.models
            for data in suite.data
            if not model.data or data.name in model.data
        ]
        sources: dict[str, str] = {}
        examples: dict[str, list[Example]] = {}
        wanted = {data.name: data for model, _, data in pairs if model.hub}
        for name, data in wanted.items():
            try:
                sources[name] = plans.source(data, suite, request.data, offline=request.offline)
                seed, limit = suite.seed, request.limit
                examples[name] = plans.examples_of(data, sources[name], seed=seed, limit=limit)
            except TokenlightError as missing:
                told = str(missing).removesuffix(".")
                self.problems.append(told if name in told else f"data set {name}: {told}")
        with progress_bar("checking", len(pairs)) as advance:
            for model, stands_in, data in pairs:
                self._add(model, data, examples.get(data.name, []), stands_in=stands_in)
                advance(1)
        return Plan(
            cells=tuple(self.cells),
            metrics=self.metrics,
            sources=sources,
            settings={},
            limit=request.limit,
            device=request.device,
            batch_tokens=request.batch_tokens or suite.batch_tokens,
            conllu=self.conllu,
            slice=request.slice or suite.slice,
        )

    def _found(self, local: str, what: str) -> str:
        """A file beside the suite or under --data, empty where there is none."""
        data = self.request.data
        place = plans.locate(local, [Path(self.suite.folder), *([data] if data else [])])
        if place is None:
            where = data or "any folder: no --data was given"
            self.problems.append(f"{what}: {local} is not in {where}")
        return "" if place is None else str(place.resolve())

    def _with_corpus(self, metric: MetricEntry) -> MetricEntry:
        corpus = metric.options.get("corpus")
        found = self._found(str(corpus), f"metric {metric.label}: the corpus") if corpus else ""
        return replace(metric, options=metric.options | {"corpus": found}) if found else metric

    def _resolved(self, model: Model, data: DataSet) -> tuple[Model, bool]:
        """A model as it runs on a data set (``hub``: what is loaded), and whether its twin stands in."""
        request, own = self.request, model
        given, lm, heads = (
            Request.mapped(one, model.name, data.name)
            for one in (request.models, request.lms, request.heads)
        )
        if given:
            place = str(Path(given).resolve()) if Path(given).is_dir() else given
        elif model.hub and (not request.offline or model.hub.startswith(embedded.PREFIX)):
            place = model.hub
        else:
            place = "" if request.models else model.twin
        stands_in = place == model.twin != model.hub
        if stands_in:  # it has none of what belongs to the checkpoint
            own = replace(model, lm="", heads="", labels=())
        heads = str(Path(heads or own.heads).resolve()) if heads or own.heads else ""
        labels = () if given else own.labels
        return replace(own, hub=place, lm=lm or own.lm, heads=heads, labels=labels), stands_in

    def _add(self, model: Model, data: DataSet, examples: Examples, *, stands_in: bool) -> None:
        """The cells of a model on a data set; what a stand-in cannot do costs its cells only."""
        layers, refused, troubles = None, "" if model.hub else "no local model", list[str]()
        if model.hub and examples:
            try:
                layers, refused = self._examined(model, data, examples)
            except TokenlightError as missing:
                refused = str(missing)
            troubles += [refused] if refused else []
        for listed in (one for one in self.suite.methods if not one.data or data.name in one.data):
            for entry in listed.expanded(layers):
                options = entry.options | (entry.twin if stands_in else {})
                if any(_wrong("methods", entry, options)):
                    continue  # a problem already
                free = registry.options_of("methods", entry.name).keys() - options.keys()
                files = {"lm": model.lm, "heads": model.heads}
                options |= {key: one for key, one in files.items() if one and key in free}
                trouble = refused
                if examples and not refused:
                    trouble = self._trouble(model.hub, listed, layers, options)
                    troubles += [f"{listed.label}: {trouble}"] if trouble else []
                self.cells.append(
                    Cell(
                        number=len(self.cells),
                        model=model.name,
                        data=data.name,
                        method=entry.label,
                        name=entry.name,
                        options=options,
                        checkpoint=model.hub,
                        examples=len(examples),
                        labels=model.labels,
                        makes_heads="heads" in free - options.keys() and bool(self.conllu),
                        reason=trouble,
                    )
                )
        if not stands_in:
            where = f"{model.name} on {data.name} ({model.hub})"
            self.problems += [f"{where}: {trouble}" for trouble in troubles]

    def _explainer(self, place: str) -> Explainer:
        if place not in self.loaded:
            self.loaded.clear()  # a model that was only tried makes room for the next
            self.loaded[place] = load(place, self.request.device)
        return self.loaded[place]

    def _examined(self, model: Model, data: DataSet, examples: Examples) -> tuple[int | None, str]:
        """How many layers a model has, and why it fits neither the examples nor a metric."""
        examples = plans.relabelled(examples, model.labels, data)
        explainer = self._explainer(model.hub)
        head, task, misfits = explainer.live.head, plans.task_of(examples[0]), list[str]()
        if (head.kind == "span") != (task == "qa"):
            kind = "answers questions" if head.kind == "span" else "is a classifier"
            raise BadInput(f"the model {kind}, but the data set is for {task}")
        if head.kind != "span":
            try:
                read_labels([example.label for example in examples], head)
            except TokenlightError as unknown:
                misfits.append(str(unknown))
        for entry in (one for one in self.metrics if not one.data or data.name in one.data):
            if any(_wrong("metrics", entry, entry.options)):
                continue  # a problem already
            try:
                built = registry.build("metrics", entry.name, entry.options)
                check_metrics([built], head, examples)
            except TokenlightError as refused:
                misfits.append(f"{entry.label}: {refused}")
        layers = getattr(explainer.model.config.get_text_config(), "num_hidden_layers", None)
        return layers if isinstance(layers, int) else None, "; ".join(misfits)

    def _trouble(
        self, place: str, listed: MethodEntry, layers: int | None, options: Mapping[str, Any]
    ) -> str:
        """What goes wrong when the method explains a short text, as ``tokenlight doctor`` tries it."""
        of_layers = [name for name, values in listed.each.items() if values == LAYERS]
        if of_layers and layers is None:
            return "the model does not tell how many layers it has"
        # Another seed draws other numbers, and the first layer stands for all: no other question.
        same = ("seed", *of_layers)
        asked = sorted((pair for pair in options.items() if pair[0] not in same), key=str)
        key = f"{place} {listed.name} {asked}"
        if key not in self.tried:
            tried = dict(options)
            if "heads" not in tried and tried.get("mask") in NEEDS_HEADS:
                tried["mask"] = "positional"  # its sibling: its own heads are made only later
            said = self.suite.protocol
            how = {"explain_mask": said.explain_mask, "token_types": said.token_types}
            wrong, _ = attempt(self._explainer(place), (listed.name, tried), **how)
            self.tried[key] = "" if wrong is None else in_words(wrong).removesuffix(".")
        return self.tried[key]


def _settings(suite: Suite, plan: Plan) -> dict[str, Any]:
    """What the numbers depend on; a folder goes on only where all of it is the same."""
    cells = [cell for cell in plan.cells if cell.runs]
    weights = {place: folder_digest(place) for place in sorted({c.checkpoint for c in cells})}
    options = [one.options for one in cells] + [one.options for one in plan.metrics]
    heads, lms, corpora = (
        sorted({str(one[key]) for one in options if one.get(key)})
        for key in ("heads", "lm", "corpus")
    )
    libraries = {name: version_of(name) for name in LIBRARIES}
    models = {f"{c.model}/{c.data}": f"{c.checkpoint} {weights[c.checkpoint]}" for c in cells}
    return {
        "suite": suite.digest(),
        "limit": plan.limit,
        "batch tokens": plan.batch_tokens,
        "examples a part": plan.slice,
        "device": plan.device.partition(":")[0],
        "versions": {"tokenlight": VERSION, "python": platform.python_version(), **libraries},
        "data": {name: digest_of(where) for name, where in plan.sources.items()},
        "parsed text": digest_of(plan.conllu) if plan.conllu else "",
        "heads files": {place: digest_of(place) for place in heads},
        "models": models,
        "language models": {place: folder_digest(place) for place in lms},
        "corpora": {place: digest_of(place) for place in corpora},
    }
