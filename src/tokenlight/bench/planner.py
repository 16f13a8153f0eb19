"""Make the plan of a run from a suite and a request, and find every problem with it before any work."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench import plan as plans
from tokenlight.bench.completions import CompletedPrompts, find_completed_prompts
from tokenlight.bench.plan import Cell, Plan, RunRequest
from tokenlight.bench.plan_checks import (
    find_data_without_model,
    find_entry_problems,
    find_option_problems,
    find_unmatched_names,
)
from tokenlight.bench.suite import Suite
from tokenlight.bench.suite_entries import (
    ALL_LAYERS,
    DataSetEntry,
    MethodEntry,
    MetricEntry,
    ModelEntry,
)
from tokenlight.errors import BadInput, TokenlightError, describe_error
from tokenlight.evaluation.preflight import check_metrics, parse_labels, try_explaining
from tokenlight.explainer import Explainer
from tokenlight.files.tables import Example
from tokenlight.methods.mask_lrp import MASKS_NEEDING_HEADS
from tokenlight.models import embedded
from tokenlight.models.embedded import digest_file, digest_folder
from tokenlight.progress import progress_bar
from tokenlight.scale.engine import load_explainer
from tokenlight.version import VERSION, get_version

VERSIONED_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")  # these compute the numbers
NO_MODEL = "no local model"


def plan_run(suite: Suite, request: RunRequest) -> tuple[Plan, list[str]]:
    """Make the plan of a run. Each model is loaded once, and each method is tried on it.

    Args:
        suite: The suite.
        request: The options of the run.

    Returns:
        The plan, and one sentence for every problem that prevents the run.
    """
    planner = _Planner(suite, request)
    plan = planner.build_plan()
    settings = _describe_settings(suite, plan)
    return replace(plan, settings=settings), planner.problems


@dataclass(frozen=True)
class _ModelOnData:
    """A model as it runs on a data set.

    Attributes:
        model: The entry of the suite, with the files and labels that fit the checkpoint.
        data: The data set.
        checkpoint: Folder, hub id or embedded model that is loaded; empty if there is none.
        is_stand_in: Whether an embedded model replaces the checkpoint of the suite.
    """

    model: ModelEntry
    data: DataSetEntry
    checkpoint: str
    is_stand_in: bool


class _Planner:
    """Builds the plan and collects its problems; holds one model in memory at a time."""

    def __init__(self, suite: Suite, request: RunRequest) -> None:
        self.suite = suite
        self.request = request
        self.problems = [
            *find_entry_problems(suite),
            *find_data_without_model(suite),
            *find_unmatched_names(suite, request),
        ]
        self.cells: list[Cell] = []
        self.loaded_models: dict[str, Explainer] = {}
        self.method_errors: dict[str, str] = {}  # method, options and model → error, or empty
        # Model/data set → prompts that are measured.
        self.completed: dict[str, CompletedPrompts] = {}
        self.conllu = self._find_file(suite.heads.conllu, "heads") if suite.heads else ""
        self.metrics = tuple(self._resolve_corpus(metric) for metric in suite.metrics)

    def build_plan(self) -> Plan:
        # Data sets are read before any model is loaded, since that is quick and finds most mistakes.
        pairs = self._pair_models_with_data()
        sources, examples = self._read_data_sets(pairs)
        with progress_bar("checking", len(pairs)) as advance:
            for pair in pairs:
                self._add_cells(pair, examples.get(pair.data.name, []))
                advance(1)
        cells = [replace(cell, number=number) for number, cell in enumerate(self.cells)]
        return Plan(
            cells=tuple(cells),
            metrics=self.metrics,
            sources=sources,
            settings={},
            limit=self.request.limit,
            device=self.request.device,
            batch_tokens=self.request.batch_tokens or self.suite.batch_tokens,
            conllu=self.conllu,
            part_size=self.request.part_size or self.suite.part_size,
            completed=self.completed,
        )

    def _pair_models_with_data(self) -> list[_ModelOnData]:
        pairs = []
        for model in self.suite.models:
            for data in self.suite.data:
                if not model.data or data.name in model.data:
                    pairs.append(self._resolve_model(model, data))
        return pairs

    def _resolve_model(self, model: ModelEntry, data: DataSetEntry) -> _ModelOnData:
        """Find the checkpoint and the files of a model for a data set."""
        request = self.request
        requested_model = RunRequest.lookup(request.models, model.name, data.name)
        requested_lm = RunRequest.lookup(request.language_models, model.name, data.name)
        requested_heads = RunRequest.lookup(request.heads, model.name, data.name)
        checkpoint = self._find_checkpoint(model, requested_model)
        is_stand_in = checkpoint == model.stand_in and model.stand_in != model.hub
        if is_stand_in:
            # The language model, heads and labels of the suite belong to the checkpoint.
            model = replace(model, lm="", heads="", labels=())
        if requested_model:
            # The order of the labels in the suite is that of its own checkpoint.
            model = replace(model, labels=())
        heads = requested_heads or model.heads
        if heads:
            heads = str(Path(heads).resolve())
        resolved = replace(model, lm=requested_lm or model.lm, heads=heads)
        return _ModelOnData(resolved, data, checkpoint, is_stand_in)

    def _find_checkpoint(self, model: ModelEntry, requested_model: str) -> str:
        """Return what is loaded: the requested model, that of the suite, its stand-in, or nothing."""
        if requested_model:
            path = Path(requested_model)
            is_gguf_file = path.suffix == ".gguf" and path.is_file()
            if path.is_dir() or is_gguf_file:
                return str(path.resolve())
            return requested_model
        is_available = not self.request.offline or model.hub.startswith(embedded.NAME_PREFIX)
        if model.hub and is_available:
            return model.hub
        # If models are given explicitly, do not substitute embedded ones for the others.
        if self.request.models:
            return ""
        return model.stand_in

    def _read_data_sets(
        self, pairs: Sequence[_ModelOnData]
    ) -> tuple[dict[str, str], dict[str, list[Example]]]:
        """Read the data sets that some model is run on; return their sources and examples by name."""
        sources: dict[str, str] = {}
        examples: dict[str, list[Example]] = {}
        # A data set without a model is not read, so that its file need not be there.
        data_sets = {pair.data.name: pair.data for pair in pairs if pair.checkpoint}
        for name, data in data_sets.items():
            try:
                sources[name] = plans.resolve_data_source(
                    data, self.suite, self.request.data, offline=self.request.offline
                )
                examples[name] = plans.read_chosen_examples(
                    data, sources[name], seed=self.suite.seed, limit=self.request.limit
                )
            except TokenlightError as error:
                message = str(error)
                if name not in message:
                    message = f"Data set {name}: {message}"
                self.problems.append(message)
        return sources, examples

    def _find_file(self, relative_path: str, description: str) -> str:
        """Find a file next to the suite or under ``--data``; if there is none, record a problem."""
        folders = [Path(self.suite.folder)]
        if self.request.data is not None:
            folders.append(self.request.data)
        path = plans.find_data_file(relative_path, folders)
        if path is not None:
            return str(path.resolve())
        searched = " or ".join(map(str, folders))
        self.problems.append(
            f"{description}: {relative_path} is not in {searched}. Give --data DIR with that file."
        )
        return ""

    def _resolve_corpus(self, metric: MetricEntry) -> MetricEntry:
        """Fill in the path of the corpus that a metric reads."""
        corpus = metric.options.get("corpus")
        if not corpus:
            return metric
        path = self._find_file(str(corpus), f"metric {metric.label}, corpus")
        if not path:
            return metric
        return replace(metric, options=metric.options | {"corpus": path})

    def _add_cells(self, pair: _ModelOnData, examples: Sequence[Example]) -> None:
        """Add the cells of a model on a data set, one per method.

        What the model cannot do is a problem, but for a stand-in only the reason why its cells are not run.
        """
        num_layers, model_error = self._inspect_model(pair, examples)
        problems = [] if model_error in ("", NO_MODEL) else [model_error]
        can_try_methods = bool(examples) and not model_error
        num_examples = len(examples)
        completed = self.completed.get(f"{pair.model.name}/{pair.data.name}")
        if completed is not None:
            num_examples = len(completed.indices)
        for entry in self.suite.get_methods(pair.data.name):
            for cell in self._make_cells(entry, pair, num_layers, num_examples):
                reason = model_error
                if can_try_methods:
                    reason = self._find_method_error(cell, entry, num_layers)
                    if reason:
                        problems.append(f"{entry.label}: {reason}")
                self.cells.append(replace(cell, reason=reason.removesuffix(".")))
        if not pair.is_stand_in:
            prefix = f"{pair.model.name} on {pair.data.name} ({pair.checkpoint})"
            self.problems += [f"{prefix}: {problem}" for problem in problems]

    def _make_cells(
        self, entry: MethodEntry, pair: _ModelOnData, num_layers: int | None, num_examples: int
    ) -> Iterator[Cell]:
        """Yield a cell for every variant of a method whose options are valid; the plan numbers them."""
        for variant in entry.expand(num_layers):
            options = dict(variant.options)
            if pair.is_stand_in:
                options |= variant.stand_in
            if any(find_option_problems("methods", variant, options)):
                continue  # recorded by find_entry_problems
            options, needs_heads = _add_file_options(variant.name, options, pair.model)
            yield Cell(
                number=0,
                model=pair.model.name,
                data=pair.data.name,
                method_label=variant.label,
                method_name=variant.name,
                options=options,
                checkpoint=pair.checkpoint,
                examples=num_examples,
                labels=pair.model.labels,
                computes_heads_file=needs_heads and bool(self.conllu),
            )

    def _get_explainer(self, checkpoint: str) -> Explainer:
        if checkpoint not in self.loaded_models:
            self.loaded_models.clear()  # free the memory of the previous model first
            self.loaded_models[checkpoint] = load_explainer(checkpoint, self.request.device)
        return self.loaded_models[checkpoint]

    def _inspect_model(
        self, pair: _ModelOnData, examples: Sequence[Example]
    ) -> tuple[int | None, str]:
        """Return the number of layers, if known, and why the model does not fit the examples or a metric.

        The reason is empty if it does.
        """
        if not pair.checkpoint:
            return None, NO_MODEL
        if not examples:  # recorded when the data sets were read
            return None, ""
        try:
            mapped_examples = plans.map_labels(examples, pair.model.labels, pair.data)
            explainer = self._get_explainer(pair.checkpoint)
            misfits = self._find_misfits(explainer, mapped_examples, pair.data)
            if plans.detect_task(examples[0]) == "next_token" and not misfits:
                self._find_completed(explainer, examples, pair)
        except TokenlightError as error:
            return None, str(error)
        num_layers = getattr(explainer.model.config.get_text_config(), "num_hidden_layers", None)
        if not isinstance(num_layers, int):
            num_layers = None
        return num_layers, " ".join(misfits)

    def _find_misfits(
        self, explainer: Explainer, examples: Sequence[Example], data: DataSetEntry
    ) -> list[str]:
        """Check the head of a model against the task, the labels and the metrics of a data set."""
        head = explainer.runner.head
        answers_questions = head.task == "question-answering"
        task = plans.detect_task(examples[0])
        if answers_questions != (task == "qa"):
            model_kind = "answers questions" if answers_questions else "is a classifier"
            raise BadInput(
                f"The model {model_kind}, but the data set is for {task}. Give a model for that task.",
                code="model-task-mismatch",
            )
        if task == "next_token" and head.task != "text-generation":
            raise BadInput(
                "The model is not a language model, but the data set holds prompts to complete. Give a "
                "causal language model with --model.",
                code="model-completes-nothing",
            )
        misfits = []
        if not answers_questions:
            try:
                parse_labels([example.label for example in examples], head)
            except TokenlightError as error:
                misfits.append(str(error))
        return misfits + self._find_metric_misfits(head, examples, data)

    def _find_completed(
        self, explainer: Explainer, examples: Sequence[Example], pair: _ModelOnData
    ) -> None:
        """Find the prompts that the model completes as expected; the others are left out."""
        completed = find_completed_prompts(explainer, examples)
        if not completed.indices:
            raise BadInput(
                f"The model completes none of {completed.num_prompts:,} prompts, together with its "
                "counterfactual, as expected, so nothing can be measured. Give another language model.",
                code="no-prompt-completed",
            )
        self.completed[f"{pair.model.name}/{pair.data.name}"] = completed

    def _find_metric_misfits(
        self, head: Any, examples: Sequence[Example], data: DataSetEntry
    ) -> list[str]:
        """Find metrics of a data set that this head, or examples without labels or spans, cannot serve."""
        misfits = []
        for entry in self.metrics:
            is_for_data = not entry.data or data.name in entry.data
            if not is_for_data or any(find_option_problems("metrics", entry, entry.options)):
                continue  # wrong options are recorded by find_entry_problems
            try:
                metric = registry.build("metrics", entry.name, entry.options)
                check_metrics([metric], head, examples)
            except TokenlightError as error:
                misfits.append(f"{entry.label}: {error}")
        return misfits

    def _find_method_error(self, cell: Cell, entry: MethodEntry, num_layers: int | None) -> str:
        """Explain a short text with the method; return what goes wrong, or an empty string."""
        layer_options = [name for name, values in entry.each.items() if values == ALL_LAYERS]
        if layer_options and num_layers is None:
            return "The configuration of the model does not say how many layers it has."
        # Seeds and layers do not change whether a method works, so one trial serves for all of them.
        ignored = {"seed", *layer_options}
        relevant_options = [item for item in cell.options.items() if item[0] not in ignored]
        key = f"{cell.checkpoint} {cell.method_name} {sorted(relevant_options, key=str)}"
        if key not in self.method_errors:
            self.method_errors[key] = self._try_method(
                cell.checkpoint, cell.method_name, cell.options
            )
        return self.method_errors[key]

    def _try_method(self, checkpoint: str, method: str, options: Mapping[str, Any]) -> str:
        options = dict(options)
        if "heads" not in options and options.get("mask") in MASKS_NEEDING_HEADS:
            # The run computes the heads later; a mask that needs none tests the same code.
            options["mask"] = "positional"
        protocol = self.suite.protocol
        error, _ = try_explaining(
            self._get_explainer(checkpoint),
            (method, options),
            explain_mask=protocol.explain_mask,
            token_types=protocol.token_types,
        )
        return "" if error is None else describe_error(error)


def _add_file_options(
    method: str, options: Mapping[str, Any], model: ModelEntry
) -> tuple[dict[str, Any], bool]:
    """Add the model's files to the options of a method that reads them.

    Returns:
        The options, and whether the method reads a heads file that was not given.
    """
    filled = dict(options)
    known_options = registry.describe_options("methods", method)
    for option, path in (("lm", model.lm), ("heads", model.heads)):
        if path and option in known_options and option not in options:
            filled[option] = path
    needs_heads = "heads" in known_options and "heads" not in filled
    return filled, needs_heads


def _describe_settings(suite: Suite, plan: Plan) -> dict[str, Any]:
    """Collect everything that the numbers depend on; a run is resumed only if all of it is the same."""
    cells = [cell for cell in plan.cells if cell.is_run]
    all_options = [cell.options for cell in cells]
    all_options += [metric.options for metric in plan.metrics]
    libraries = {name: get_version(name) for name in VERSIONED_LIBRARIES}
    data_digests = {name: digest_file(source) for name, source in plan.sources.items()}
    heads_digests = _digest_by_name(_list_values(all_options, "heads"), digest_file)
    lm_digests = _digest_by_name(_list_values(all_options, "lm"), digest_folder)
    corpus_digests = _digest_by_name(_list_values(all_options, "corpus"), digest_file)
    return {
        "suite": suite.compute_digest(),
        "limit": plan.limit,
        "batch tokens": plan.batch_tokens,
        "examples a part": plan.part_size,
        "device": plan.device.partition(":")[0],  # cuda:1 computes the same numbers as cuda:0
        "versions": {"tokenlight": VERSION, "python": platform.python_version(), **libraries},
        "data": data_digests,
        "parsed text": digest_file(plan.conllu) if plan.conllu else "",
        "heads files": heads_digests,
        "models": _digest_models(cells),
        "language models": lm_digests,
        "corpora": corpus_digests,
    }


def _digest_by_name(paths: Sequence[str], digest: Callable[[str], str]) -> dict[str, str]:
    """Return the digest of what each path names."""
    return {path: digest(path) for path in paths}


def _digest_models(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the checkpoint and the digest of its files for every model on every data set."""
    checkpoints = sorted({cell.checkpoint for cell in cells})
    digests = _digest_by_name(checkpoints, digest_folder)
    models = {}
    for cell in cells:
        models[f"{cell.model}/{cell.data}"] = f"{cell.checkpoint} {digests[cell.checkpoint]}"
    return models


def _list_values(all_options: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return the distinct values of an option, sorted."""
    values = {str(options[key]) for options in all_options if options.get(key)}
    return sorted(values)
