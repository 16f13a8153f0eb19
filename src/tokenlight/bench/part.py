"""One part: a few examples of one data set, explained by one method and measured by every metric.

Everything here depends on the plan alone, never on the worker: batches are packed within the part by
the suite's token budget, and one thread computes, so that a part has the same bytes wherever and
however often it is made.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from tokenlight import registry
from tokenlight.bench.examples import examples_of, relabelled
from tokenlight.bench.plan import Cell, Part, Task
from tokenlight.bench.store import RunFolder
from tokenlight.data.attribution import Attribution
from tokenlight.evaluation.measure import Failure, Record
from tokenlight.evaluation.shard import Experiment, explained, measured
from tokenlight.evaluation.weights import refuse_changed
from tokenlight.explainer import Explainer
from tokenlight.files.tables import Example
from tokenlight.files.write import json_text
from tokenlight.heads.mask import write_heads
from tokenlight.heads.sentence import read_conllu
from tokenlight.heads.statistics import Reading, head_statistics
from tokenlight.models.embedded import digest_of, folder_digest
from tokenlight.scale.worker import load

# A pass that measures keeps no graph and no maps: on a GPU as many tokens as explain one batch would
# leave it idle.
WIDER = {"cuda": 8}


@dataclass(frozen=True)
class Making:
    """Parts of the run in a folder, as an engine's workers make them."""

    folder: str

    def begin(self, device: str) -> Callable[[Task], Mapping[str, Any]]:
        """What does a task."""
        return partial(_made, self.folder, device)


def _made(folder: str, device: str, task: Task) -> dict[str, Any]:
    run = _run(folder)
    if task.kind == "heads":
        _make_heads(run, run.plan.cells[task.part.cell], device)
        return {"failed": 0}
    rows, said = measure_part(run, task.part, device)
    run.write(task.part, rows, said)
    return {"failed": sum(row["error"] is not None for row in rows)}


@lru_cache(maxsize=1)
def _run(folder: str) -> RunFolder:
    return RunFolder.open(folder)


@lru_cache(maxsize=2)  # parts come model by model
def _model(folder: str, number: int, device: str) -> Explainer:
    run = _run(folder)
    cell = run.plan.cells[number]
    explainer = load(cell.checkpoint, device)
    now = f"{cell.checkpoint} {folder_digest(cell.checkpoint)}"
    refuse_changed(run.plan.settings, "models", f"{cell.model}/{cell.data}", now)
    return explainer


def _loaded(run: RunFolder, cell: Cell, device: str) -> Explainer:
    """The cell's model, as it was planned; cells of one checkpoint share it."""
    alike = (one.number for one in run.cells if one.runs and one.checkpoint == cell.checkpoint)
    return _model(str(run.folder), next(alike, cell.number), device)


@lru_cache(maxsize=8)
def _refuse_other_language_model(folder: str, place: str) -> None:
    refuse_changed(_run(folder).plan.settings, "language models", place, folder_digest(place))


@lru_cache(maxsize=2)
def _examples(folder: str, data: str, labels: tuple[str, ...]) -> list[Example]:
    run = _run(folder)
    chosen = run.suite.data_set(data)
    where = run.plan.sources[data]
    found = examples_of(chosen, where, seed=run.suite.seed, limit=run.plan.limit)
    refuse_changed(run.plan.settings, "data", data, digest_of(where))
    return relabelled(found, labels, chosen)


def measure_part(
    run: RunFolder, part: Part, device: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a part, and what its manifest says of how it was made."""
    cell = run.plan.cells[part.cell]
    explainer = _loaded(run, cell, device)
    everything = _examples(str(run.folder), cell.data, cell.labels)
    examples = everything[part.first : part.first + part.count]
    entries = run.plan.metrics_for(cell.data)
    metrics = {one.label: registry.build("metrics", one.name, one.options) for one in entries}
    made_heads = {"heads": str(run.heads_file(cell))} if cell.makes_heads else {}
    options = cell.options | made_heads
    budget = run.plan.batch_tokens
    how = {**asdict(run.suite.protocol), "batch_tokens": budget}
    job = Experiment([(cell.name, options)], [], how, run.suite.seed)
    begun = time.perf_counter()
    with counted(explainer) as explaining:
        made, refused = explained(explainer, examples, job)
    between = time.perf_counter()
    with counted(explainer) as measuring:
        wide = budget * WIDER.get(explainer.live.device.type, 1)
        records, broken = measured(explainer, examples, made, metrics, batch_tokens=wide)
    ended = time.perf_counter()
    _refuse_other_files(run, cell)
    rows = _rows(run, part, (made, records, (*refused, *broken)))
    # As the method declares them: torch has no door through which every backward passes.
    cost = registry.build("methods", cell.name, options).cost
    explanations = [attribution for listed in made.values() for attribution in listed]
    device_used = explainer.live.device
    gpu = device_used.type == "cuda"
    said = {
        "device": torch.cuda.get_device_name(device_used) if gpu else str(device_used),
        "threads": torch.get_num_threads(),
        "seconds": round(ended - begun, 6),
        "explain_seconds": round(between - begun, 6),
        "measure_seconds": round(ended - between, 6),
        "explain_forwards": explaining["texts"],
        "explain_backwards": sum(cost(len(one)).backwards for one in explanations),
        "measure_forwards": measuring["texts"],
        "forward_tokens": explaining["tokens"] + measuring["tokens"],
        "failed": sum(row["error"] is not None for row in rows),
    }
    return rows, said


def _refuse_other_files(run: RunFolder, cell: Cell) -> None:
    """What a method's options name must be what it was, and it has been read by now."""
    heads, lm = cell.options.get("heads"), cell.options.get("lm")
    if heads:
        refuse_changed(run.plan.settings, "heads files", str(heads), digest_of(str(heads)))
    if lm:
        _refuse_other_language_model(str(run.folder), str(lm))


@contextmanager
def counted(explainer: Explainer) -> Iterator[dict[str, int]]:
    """Count the texts and tokens that go forward through the model within."""
    counts = {"texts": 0, "tokens": 0}

    def count(_module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [*positional, *named.values()]
        tensor = next((one for one in given if isinstance(one, torch.Tensor)), None)
        if tensor is not None and tensor.dim() > 1:
            counts["texts"] += int(tensor.shape[0])
            counts["tokens"] += int(tensor.shape[0] * tensor.shape[1])

    handle = explainer.live.model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


def _rows(
    run: RunFolder,
    part: Part,
    found: tuple[Mapping[int, list[Attribution]], Sequence[Record], Sequence[Failure]],
) -> list[dict[str, Any]]:
    """One row an example, in order; an example that failed has its error and nothing else."""
    made, records, refusals = found
    by_text = {record.text: record for record in records}
    errors = {refusal.text: refusal.reason for refusal in refusals}
    rows = []
    for i in range(part.count):
        row: dict[str, Any] = {"example": part.first + i, "error": errors.get(i)}
        record, attributions = by_text.get(i), made.get(i) or []
        if attributions and part.first + i < run.suite.keep:
            row["attribution"] = json_text(attributions[0].to_dict())
        if record is not None and i not in errors:
            row |= _measured_row(record, attributions[0])
        elif row["error"] is None:
            row["error"] = "no explanation was made"
        rows.append(row)
    return rows


def _measured_row(record: Record, attribution: Attribution) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tokens": record.tokens,
        "target": record.target,
        "predicted": record.predicted,
        "label": record.label,
    }
    for label, one in record.measured.items():
        detail = dict(one.detail)
        if "weights" in detail:  # ids mean nothing without the tokenizer: say their tokens too
            pieces = zip(attribution.row.ids, attribution.tokens, strict=True)
            detail["pieces"] = {str(i): str(token) for i, token in pieces}
        row[label] = float(one.value)
        row[f"{label}.curve"] = list(one.curve) or None
        for name, values in (("parts", dict(one.parts)), ("detail", detail)):
            text = json.dumps(values, ensure_ascii=False, sort_keys=True)
            row[f"{label}.{name}"] = text if values else None
    return row | {f"{label}.skipped": reason for label, reason in record.skipped.items()}


def _make_heads(run: RunFolder, cell: Cell, device: str) -> None:
    place, wish = run.heads_file(cell), run.suite.heads
    if place.exists() or wish is None:
        return
    explainer = _loaded(run, cell, device)
    sentences = list(read_conllu(run.plan.conllu))[: wish.limit]
    refuse_changed(run.plan.settings, "parsed text", run.plan.conllu, digest_of(run.plan.conllu))
    align: Any = wish.align
    live, tokenizer = explainer.live, explainer.tokenizer
    found = head_statistics(live, tokenizer, sentences, Reading.named(align, live, tokenizer))
    content = found.to_dict(wish.margin, wish.share) | {
        "model": cell.checkpoint,
        "sources": [run.plan.conllu.rpartition("/")[2]],
    }
    write_heads(place, content)
