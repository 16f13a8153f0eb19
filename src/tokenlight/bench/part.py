"""One part: a few examples of one data set, explained by one method and measured by every metric.

Everything here depends on the plan alone, never on the worker: batches are packed within the part by
the suite's token budget, and one thread computes, so that a part has the same bytes wherever and
however often it is made.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from tokenlight import registry
from tokenlight.bench.plan import Cell, Part, examples_of, relabelled
from tokenlight.bench.store import RunFolder
from tokenlight.data.attribution import Attribution
from tokenlight.evaluation.measure import Failure, Record
from tokenlight.evaluation.run import Experiment, explained, measured
from tokenlight.evaluation.weights import refuse_changed
from tokenlight.explainer import Explainer
from tokenlight.files.tables import Example
from tokenlight.files.write import json_text
from tokenlight.heads.mask import write_heads
from tokenlight.heads.sentence import read_conllu
from tokenlight.heads.statistics import Reading, head_statistics
from tokenlight.models.embedded import digest_of, folder_digest
from tokenlight.scale.engine import load

# A pass that measures keeps no graph and no maps: on a GPU as many tokens as explain one batch would
# leave it idle.
WIDER = {"cuda": 8}


class Making:
    """Parts of the run in a folder; what a worker reads must be what it was when the run was planned."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def begin(self, device: str) -> Callable[[Part], Mapping[str, Any]]:
        self.run, self.device = RunFolder.open(self.folder), device
        # Parts come model by model.
        self.explainer, self.examples = lru_cache(2)(self._loaded), lru_cache(2)(self._read)
        self.model_digest = lru_cache(8)(folder_digest)
        return self._made

    def _check(self, kind: str, name: str, now: str) -> None:
        refuse_changed(self.run.plan.settings, kind, name, now)

    def _loaded(self, checkpoint: str) -> Explainer:
        explainer = load(checkpoint, self.device)
        cell = next(one for one in self.run.cells if one.runs and one.checkpoint == checkpoint)
        now = f"{checkpoint} {folder_digest(checkpoint)}"
        self._check("models", f"{cell.model}/{cell.data}", now)
        return explainer

    def _read(self, data: str, labels: tuple[str, ...]) -> list[Example]:
        run = self.run
        chosen, where = run.suite.data_set(data), run.plan.sources[data]
        found = examples_of(chosen, where, seed=run.suite.seed, limit=run.plan.limit)
        self._check("data", data, digest_of(where))
        return relabelled(found, labels, chosen)

    def _made(self, part: Part) -> dict[str, Any]:
        """Write the rows of a part, with a manifest that says how it was made."""
        run, cell = self.run, self.run.cells[part.cell]
        explainer = self.explainer(cell.checkpoint)
        examples = self.examples(cell.data, cell.labels)[part.first : part.first + part.count]
        metrics = run.plan.metrics_for(cell.data)
        options = cell.options | ({"heads": self._heads(cell)} if cell.makes_heads else {})
        budget, device = run.plan.batch_tokens, explainer.live.device
        how = {**asdict(run.suite.protocol), "batch_tokens": budget}
        job = Experiment([(cell.name, options)], [], how, run.suite.seed)
        begun = time.perf_counter()
        with counted(explainer) as explaining:
            made, refused = explained(explainer, examples, job)
        between = time.perf_counter()
        with counted(explainer) as measuring:
            wide = budget * WIDER.get(device.type, 1)
            records, broken = measured(explainer, examples, made, metrics, batch_tokens=wide)
        ended = time.perf_counter()
        # What the options name has been read by now.
        if heads := cell.options.get("heads"):
            self._check("heads files", str(heads), digest_of(str(heads)))
        if lm := cell.options.get("lm"):
            self._check("language models", str(lm), self.model_digest(str(lm)))
        rows = list(_rows(run, part, (made, records, (*refused, *broken))))
        # As the method declares them: torch has no door through which every backward passes.
        cost = registry.build("methods", cell.name, options).cost
        explanations = [attribution for listed in made.values() for attribution in listed]
        gpu = device.type == "cuda"
        said = {
            "device": torch.cuda.get_device_name(device) if gpu else str(device),
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
        run.write(part, rows, said)
        return {}

    def _heads(self, cell: Cell) -> str:
        """The heads file of a cell's model, made where it is missing: by any worker, with the same bytes."""
        place, wish, conllu = self.run.heads_file(cell), self.run.suite.heads, self.run.plan.conllu
        if place.exists() or wish is None:
            return str(place)
        explainer = self.explainer(cell.checkpoint)
        sentences = list(read_conllu(conllu))[: wish.limit]
        self._check("parsed text", conllu, digest_of(conllu))
        live, tokenizer = explainer.live, explainer.tokenizer
        align: Any = wish.align
        found = head_statistics(live, tokenizer, sentences, Reading.named(align, live, tokenizer))
        about = {"model": cell.checkpoint, "sources": [conllu.rpartition("/")[2]]}
        write_heads(place, found.to_dict(wish.margin, wish.share) | about)
        return str(place)


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
) -> Iterator[dict[str, Any]]:
    """One row an example, in order; an example that failed has its error and nothing else."""
    made, records, refusals = found
    measured = {record.text: record.to_dict() for record in records}
    errors = {refusal.text: refusal.reason for refusal in refusals}
    for i, number in enumerate(range(part.first, part.first + part.count)):
        row: dict[str, Any] = dict.fromkeys(("attribution", "predicted", "label"))
        row["example"] = number
        attribution = next(iter(made.get(i) or ()), None)
        if attribution is not None and number < run.suite.keep:
            row["attribution"] = json_text(attribution.to_dict())
        if i in measured and attribution is not None and i not in errors:
            row |= measured[i] | {"text": number, "method": attribution.method}
            for one in row["measured"].values():
                if "weights" in one["detail"]:  # ids mean nothing without the tokenizer
                    pieces = zip(attribution.row.ids, attribution.tokens, strict=True)
                    named = {str(one_id): str(token) for one_id, token in pieces}
                    one["detail"] = {**one["detail"], "pieces": named}
        yield row | {"error": errors.get(i, None if i in measured else "no explanation was made")}
