"""Run one part: explain a few examples of one data set by one method, and measure them by every metric.

The result depends only on the plan, never on the worker: batches are packed within the part, by the token
limit of the plan, and one thread computes. So a part has the same bytes wherever, and however often, it is
made.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from tokenlight import registry
from tokenlight.attention_heads.mask import write_heads_file
from tokenlight.attention_heads.parsing import read_conllu
from tokenlight.attention_heads.statistics import StatisticsOptions, compute_head_statistics
from tokenlight.bench.plan import Cell, Part, map_labels, read_chosen_examples
from tokenlight.bench.run_folder import RunFolder
from tokenlight.data.attribution import Attribution
from tokenlight.evaluation.digests import check_unchanged
from tokenlight.evaluation.measurement_records import Failure, Record
from tokenlight.evaluation.replacement_tokens import find_replacements, replacements_to_dict
from tokenlight.evaluation.run import Experiment, explain_part, measure_part
from tokenlight.explainer import Explainer
from tokenlight.files.tables import Example
from tokenlight.files.write import dump_json
from tokenlight.methods.base import Method
from tokenlight.models.embedded import digest_file, digest_folder
from tokenlight.scale.engine import load_explainer

# Measuring stores neither graphs nor attention maps, so more tokens fit into a batch. With the batches of
# explaining, a GPU would be idle most of the time.
MEASURE_BATCH_FACTOR = {"cuda": 8}


@dataclass
class _PartResult:
    """Explanations and measurements of a part, with the time and the forward passes they took."""

    attributions: Mapping[int, list[Attribution]]  # by index of the example within the part
    records: Sequence[Record]
    failures: Sequence[Failure]
    explain_seconds: float
    measure_seconds: float
    explain_counts: Mapping[str, int]
    measure_counts: Mapping[str, int]


class PartRunner:
    """Runs the parts of a run folder.

    Workers may run on other machines and at other times. They check that models and files are the same as
    when the run was planned.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def prepare(self, device: str) -> Callable[[Part], Mapping[str, Any]]:
        """Open the run on a worker; return the function that runs one part."""
        self.run_folder = RunFolder.open(self.folder)
        self.device = device
        # Parts come model by model, so two models in memory are enough.
        self.get_explainer = lru_cache(2)(self._load_explainer)
        self.get_examples = lru_cache(2)(self._read_examples)
        self.digest_model = lru_cache(8)(digest_folder)
        return self._run_part

    def _check_unchanged(self, kind: str, name: str, current_digest: str) -> None:
        check_unchanged(self.run_folder.plan.settings, kind, name, current_digest)

    def _load_explainer(self, checkpoint: str) -> Explainer:
        explainer = load_explainer(checkpoint, self.device)
        # Settings are stored by model and data set; any cell with this checkpoint tells the digest.
        cells = [cell for cell in self.run_folder.cells if cell.is_run]
        cell = next(cell for cell in cells if cell.checkpoint == checkpoint)
        current = f"{checkpoint} {digest_folder(checkpoint)}"
        self._check_unchanged("models", f"{cell.model}/{cell.data}", current)
        return explainer

    def _read_examples(self, model: str, data: str, labels: tuple[str, ...]) -> list[Example]:
        suite = self.run_folder.suite
        plan = self.run_folder.plan
        data_set = suite.get_data_set(data)
        source = plan.sources[data]
        examples = read_chosen_examples(data_set, source, seed=suite.seed, limit=plan.limit)
        self._check_unchanged("data", data, digest_file(source))
        completed = plan.get_completed(model, data)
        if completed is not None:
            examples = completed.select(examples)
        return map_labels(examples, labels, data_set)

    def _run_part(self, part: Part) -> dict[str, Any]:
        """Explain and measure the examples of a part, and write its rows and manifest."""
        run_folder = self.run_folder
        cell = run_folder.cells[part.cell]
        explainer = self.get_explainer(cell.checkpoint)
        all_examples = self.get_examples(cell.model, cell.data, cell.labels)
        examples = all_examples[part.first : part.first + part.count]
        options = dict(cell.options)
        if cell.computes_heads_file:
            options["heads"] = self._ensure_heads_file(cell)
        result = self._explain_and_measure(explainer, cell, options, examples)
        # The files that options name have been read by now, so they are checked after the work.
        self._check_option_files(cell)
        rows = list(_build_rows(part, result, num_stored=run_folder.suite.num_stored))
        num_failed = sum(row["error"] is not None for row in rows)
        metadata = _describe_costs(explainer, cell, options, result) | {"failed": num_failed}
        run_folder.write_part(part, rows, metadata)
        return {}

    def _explain_and_measure(
        self,
        explainer: Explainer,
        cell: Cell,
        options: Mapping[str, Any],
        examples: Sequence[Example],
    ) -> _PartResult:
        suite = self.run_folder.suite
        plan = self.run_folder.plan
        # The token limit comes from the plan, not from the memory of the worker, so that batches are alike.
        explain_options = {**asdict(suite.protocol), "batch_tokens": plan.batch_tokens}
        experiment = Experiment(
            methods=[(cell.method_name, dict(options))],
            metrics=[],
            explain_options=explain_options,
            seed=suite.seed,
        )
        measure_factor = MEASURE_BATCH_FACTOR.get(explainer.runner.device.type, 1)

        start = time.perf_counter()
        with counted_forwards(explainer) as explain_counts:
            attributions, explain_failures = explain_part(explainer, examples, experiment)
        middle = time.perf_counter()
        with counted_forwards(explainer) as measure_counts:
            records, measure_failures = measure_part(
                explainer,
                examples,
                attributions,
                plan.get_metrics(cell.data),
                batch_tokens=plan.batch_tokens * measure_factor,
            )
        end = time.perf_counter()
        return _PartResult(
            attributions=attributions,
            records=records,
            failures=(*explain_failures, *measure_failures),
            explain_seconds=middle - start,
            measure_seconds=end - middle,
            explain_counts=explain_counts,
            measure_counts=measure_counts,
        )

    def _check_option_files(self, cell: Cell) -> None:
        heads = cell.options.get("heads")
        if heads:
            self._check_unchanged("heads files", str(heads), digest_file(str(heads)))
        lm = cell.options.get("lm")
        if lm:
            self._check_unchanged("language models", str(lm), self.digest_model(str(lm)))

    def _ensure_heads_file(self, cell: Cell) -> str:
        """Return the heads file of a model; the first worker that needs it computes it.

        Two workers may do so at the same time, since they write the same bytes.
        """
        path = self.run_folder.heads_path(cell)
        heads_entry = self.run_folder.suite.heads
        if path.exists() or heads_entry is None:
            return str(path)
        conllu = self.run_folder.plan.conllu
        explainer = self.get_explainer(cell.checkpoint)
        sentences = list(read_conllu(conllu))[: heads_entry.limit]
        self._check_unchanged("parsed text", conllu, digest_file(conllu))
        alignment: Any = heads_entry.align
        statistics_options = StatisticsOptions.from_alignment(
            alignment, explainer.runner, explainer.tokenizer
        )
        statistics = compute_head_statistics(
            explainer.runner, explainer.tokenizer, sentences, statistics_options
        )
        content = statistics.to_dict(heads_entry.margin, heads_entry.share)
        content |= {"model": cell.checkpoint, "sources": [conllu.rpartition("/")[2]]}
        write_heads_file(path, content)
        return str(path)


def _describe_costs(
    explainer: Explainer, cell: Cell, options: Mapping[str, Any], result: _PartResult
) -> dict[str, Any]:
    """Describe the device, the time and the passes of a part, for its manifest."""
    device = explainer.runner.device
    device_name = str(device)
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    # Backward passes are those that the method declares, since torch offers no hook that sees all of them.
    method: Method = registry.build("methods", cell.method_name, options)
    num_backwards = 0
    for attributions in result.attributions.values():
        for attribution in attributions:
            num_backwards += method.count_passes(len(attribution)).backwards
    replacement_ids = find_replacements(explainer)
    total_seconds = result.explain_seconds + result.measure_seconds
    return {
        "device": device_name,
        "threads": torch.get_num_threads(),
        "seconds": round(total_seconds, 6),
        "explain_seconds": round(result.explain_seconds, 6),
        "measure_seconds": round(result.measure_seconds, 6),
        "explain_forwards": result.explain_counts["texts"],
        "explain_backwards": num_backwards,
        "measure_forwards": result.measure_counts["texts"],
        "forward_tokens": result.explain_counts["tokens"] + result.measure_counts["tokens"],
        "stand_ins": replacement_ids and replacements_to_dict(replacement_ids),
    }


@contextmanager
def counted_forwards(explainer: Explainer) -> Iterator[dict[str, int]]:
    """Count the texts and tokens of every forward pass of the model inside the block."""
    counts = {"texts": 0, "tokens": 0}

    def count(_module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        values = [*arguments, *keywords.values()]
        # The first tensor is input_ids or inputs_embeds: ``batch token``, or ``batch token width``.
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if tensors and tensors[0].dim() > 1:
            batch_size, length = tensors[0].shape[:2]
            counts["texts"] += int(batch_size)
            counts["tokens"] += int(batch_size * length)

    handle = explainer.runner.model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


def _build_rows(part: Part, result: _PartResult, *, num_stored: int) -> Iterator[dict[str, Any]]:
    """Yield one row per example, in order; an example that failed has its error and nothing else.

    Args:
        part: The part.
        result: Its explanations, measurements and failures.
        num_stored: Number of examples of the data set of which the explanation itself is stored.
    """
    measured = {record.text_index: record.to_dict() for record in result.records}
    errors = {failure.text_index: failure.reason for failure in result.failures}
    for index in range(part.count):
        example_index = part.first + index
        row: dict[str, Any] = {
            "attribution": None,
            "predicted": None,
            "label": None,
            "example": example_index,
        }
        error = errors.get(index)
        if error is None and index not in measured:
            error = "No explanation was made."
        attributions = result.attributions.get(index)
        if attributions:
            attribution = attributions[0]
            if example_index < num_stored:
                row["attribution"] = dump_json(attribution.to_dict())
            if index in measured and index not in errors:
                row |= measured[index]
                row |= {"text": example_index, "method": attribution.method}
                _name_weighted_tokens(row["measured"], attribution)
        row["error"] = error
        yield row


def _name_weighted_tokens(measured: Mapping[str, Any], attribution: Attribution) -> None:
    """Add the tokens of weights that are stored by id, since ids mean nothing without the tokenizer."""
    for measurement in measured.values():
        if "weights" in measurement["detail"]:
            tokens_by_id = {}
            for token_id, token in zip(attribution.row.ids, attribution.tokens, strict=True):
                tokens_by_id[str(token_id)] = str(token)
            measurement["detail"] = {**measurement["detail"], "pieces": tokens_by_id}
