"""A data file evaluated shard by shard: it can be interrupted, and goes on where it stopped with the same
settings; others are refused. Of the texts of a shard what fails is tried alone: one bad text, or one method
that does not fit, costs itself only."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Continuation
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, TokenlightError, in_words
from tokenlight.evaluation.extra_explanations import label_of
from tokenlight.evaluation.measure import Failure, Record, measure, short_names
from tokenlight.evaluation.preflight import check_metrics, check_target, read_labels, read_spans
from tokenlight.evaluation.results import Evaluation, MetricLike, built, frequencies_for
from tokenlight.evaluation.weights import digest, files_digest, tokenizer_digest, weight_digest
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining.batch import versions
from tokenlight.explaining.stream import half_by_half
from tokenlight.files.parts import claim, manifest_of, read_part, write_part
from tokenlight.files.tables import Example
from tokenlight.files.write import Folder
from tokenlight.metrics._metric import Metric
from tokenlight.progress import progress as progress_bar
from tokenlight.registry import spelled

T = TypeVar("T")
Examples = Sequence[Example]
# Others who share the device come and go: seconds before a text without room is tried again.
PAUSES = (5.0, 20.0)
TRUTH = "label"  # as a target: each text's true label, each question's true answer
SHARD = 16  # texts: what an interrupt loses; the same on every device, so that any may go on


@dataclass(frozen=True)
class Experiment:
    """What is evaluated, beside the texts: equal jobs over equal texts give equal rows. The target
    ``label`` in ``how`` is each text's true label."""

    methods: Sequence[MethodLike]
    metrics: Sequence[MetricLike]
    how: dict[str, Any] = field(default_factory=dict)  # keywords of explain()
    seed: int = 0
    data: str = ""  # file or data set that the texts come from: told, and not compared
    columns: str = ""  # what was read of it, told likewise


def evaluate_file(
    explainer: Explainer,
    examples: Examples,
    job: Experiment,
    folder: Path,
    *,
    share: tuple[int, int] = (0, 1),
) -> tuple[Evaluation, list[Failure]]:
    """Evaluate ``examples`` shard by shard into ``folder``; finished shards are read, not repeated.

    ``share``: (i, n) makes only every n-th shard from the i-th on, so that n processes may work in
    one folder; what comes back is what is finished by then.
    """
    metrics = built(job.metrics)
    head = explainer.live.head
    check_metrics(metrics.values(), head, examples)
    for number, example in enumerate(examples):  # now, not in the last shard
        try:
            read_labels([example.label], head)
        except TokenlightError as unknown:
            where = example.place or f"text {number} (counted from 0)"
            raise type(unknown)(f"{where}: {unknown}") from unknown
    if not any(isinstance(example.text, TokenRow) for example in examples):
        check_target(explainer, job.how.get("target", "predicted"))
    settings = _fingerprint(explainer, examples, job)
    bound = digest(sorted(settings.items()))
    claim("an evaluation", Folder(str(folder)), "settings.json", settings)
    records, refused = list[Record](), list[Failure]()
    with progress_bar("evaluating", len(examples)) as advance:
        for turn, first in enumerate(range(0, len(examples), SHARD)):
            shard = examples[first : first + SHARD]
            place = folder / "parts" / f"{first:08d}.jsonl"
            belonging = {"settings": bound, "texts": [first, first + len(shard)]}
            entries = _kept(place, belonging)
            if entries is None:
                if turn % share[1] != share[0]:
                    continue
                write_part(place, _shard(explainer, shard, job, metrics, first), belonging)
                entries = read_part(place, belonging)
            records += [Record.from_dict(one["record"]) for one in entries if "record" in one]
            refused += [Failure(**one["refused"]) for one in entries if "refused" in one]
            advance(len(shard))
    counted = frequencies_for(explainer.tokenizer, metrics)
    named, refusals = short_names(records, refused)
    # What a reader of the report must know beside the numbers.
    known = {"data": Path(job.data).name, "columns": job.columns, **settings}
    names = ("model", "data", "columns", "texts", "target", "long", "seed", "versions")
    about = {name: known[name] for name in names if known[name]}
    evaluation = Evaluation(named, metrics, job.seed, counted, refusals, about)
    return evaluation, list(refusals)


def finished(folder: Path) -> int:
    """How many texts stand in finished shards."""
    places = sorted((folder / "parts").glob("*.jsonl"))
    ranges = [manifest_of(one, {})["texts"] for one in places if _kept(one, {}) is not None]
    return sum(stop - start for start, stop in ranges)


def _kept(place: Path, belonging: Mapping[str, Any]) -> list[Any] | None:
    """What a finished shard holds; one that is not as it was written is made again."""
    try:
        return read_part(place, belonging)
    except DamagedFile:
        return None


def _shard(
    explainer: Explainer,
    shard: Examples,
    job: Experiment,
    metrics: dict[str, Any],
    first: int,
) -> Iterator[dict[str, Any]]:
    made, refusals = explained(explainer, shard, job)
    records, broken = measured(explainer, shard, made, metrics)
    for refusal in (*refusals, *broken):
        yield {"refused": {**asdict(refusal), "text": refusal.text + first}}
    for record in records:
        yield {"record": {**record.to_dict(), "text": record.text + first}}


def _fingerprint(explainer: Explainer, examples: Examples, job: Experiment) -> dict[str, str]:
    head = explainer.live.head
    how = {"target": "predicted", "long": "error", **job.how}
    seed = how.pop("seed", job.seed)
    # Methods and metrics as they were given: names, (name, options) pairs, or built ones.
    methods, metrics = (
        [one if isinstance(one, tuple) else (str(one), getattr(one, "options", {})) for one in own]
        for own in (job.methods, job.metrics)
    )
    return {
        "model": explainer.name,
        "weights": weight_digest(explainer),
        "tokenizer": tokenizer_digest(explainer.tokenizer),
        "labels": "" if head.writes else ", ".join(head.labels),  # a vocabulary is the tokenizer's
        "longest text": str(explainer.max_tokens),
        "pooling": str(explainer.live.pooling),
        "files": files_digest(options for _, options in (*methods, *metrics)),
        "methods": ", ".join(spelled(*one) for one in methods),
        "metrics": ", ".join(spelled(*one) for one in metrics),
        # The keywords of explain(); a number is not a label that is named like it.
        **{k: f"number {v}" if isinstance(v, int) else str(v) for k, v in sorted(how.items())},
        "seed": str(job.seed),
        "seed of explanations": str(seed),
        "texts": str(len(examples)),
        "words of the texts": digest(example.text for example in examples),
        "true labels and marks": digest((example.label, example.spans) for example in examples),
        "shard": str(SHARD),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def explained(
    explainer: Explainer, examples: Examples, job: Experiment
) -> tuple[dict[int, list[Attribution]], list[Failure]]:
    """Explanations of each text by its number, and what was refused."""
    how = {"seed": job.seed, "progress": False, **job.how}

    def work(methods: Sequence[MethodLike], some: Examples) -> list[list[Attribution]]:
        own = [example.truth for example in some]
        asked = how | {"target": own} if how.get("target") == TRUTH else how
        # Texts with what is known of them, which their explanations keep.
        return text_by_text(explainer, some, list(methods), asked)

    together = partial(work, job.methods)
    # No exception is kept: what it holds on to is let go before its text is tried again.
    made = {
        i: [] if isinstance(one, Exception) else one
        for i, one in enumerate(half_by_half(together, list(examples), Exception))
    }
    refused: list[Failure] = []
    for i in [i for i, one in made.items() if not one]:
        for method in job.methods:
            try:
                (own,) = given_room(partial(work, [method], [examples[i]]))
                if not own:
                    raise BadInput("it has nothing to explain.")
                made[i] += own
            except Exception as reason:  # noqa: BLE001 - a poisoned text must not stop the others
                name = asked_label(explainer, method, how["seed"])
                refused.append(Failure(i, name, in_words(reason)))
    return made, refused


def asked_label(explainer: Explainer, method: MethodLike, seed: int) -> str:
    """What explanations of a method will be called: itself with its options."""
    try:
        (built,) = explainer._methods([method], seed)
    except TokenlightError:  # it will be refused on every text, under what it was asked for as
        return spelled(*method) if isinstance(method, tuple) else str(method)
    return spelled(built.name, built.options)


def text_by_text(
    explainer: Explainer, texts: Sequence[Any], methods: list[MethodLike], how: Mapping[str, Any]
) -> list[list[Attribution]]:
    """The explanations of each text."""
    target = how.get("target", "predicted")
    every_word = explainer.live.head.reads == "token" and target in ("all", "entities")
    if every_word or isinstance(target, Continuation):
        # One text has more words to explain than another: together, nobody could tell whose is whose.
        return [explainer.explain([text], methods, **how) for text in texts]
    found = explainer.explain(list(texts), methods, **how)
    share = len(found) // len(texts)
    return [found[i * share : (i + 1) * share] for i in range(len(texts))]


def measured(
    explainer: Explainer,
    examples: Examples,
    made: Mapping[int, list[Attribution]],
    metrics: Mapping[str, Metric],
    *,
    batch_tokens: int | None = None,
) -> tuple[list[Record], list[Failure]]:
    """A record for each explanation; where measuring breaks, the texts are tried in halves."""

    def together(numbers: Sequence[int]) -> list[list[Record]]:
        rows = [made[i][0].row for i in numbers]
        # Marks that no metric reads may be wrong, and cost nothing.
        marked = any(metric.marked for metric in metrics.values())
        spans = read_spans([examples[i].spans for i in numbers], rows) if marked else None
        labels = read_labels([examples[i].label for i in numbers], explainer.live.head)
        found = measure(
            explainer,
            [attribution for i in numbers for attribution in made[i]],
            metrics,
            [i for i in numbers for _ in made[i]],
            labels=dict(zip(numbers, labels, strict=True)),
            spans=None if spans is None else dict(zip(numbers, spans, strict=True)),
            batch_tokens=batch_tokens,
            progress=False,
        )
        return [list(own) for _, own in groupby(found, key=lambda record: record.text)]

    def work(numbers: Sequence[int]) -> list[list[Record]]:
        alone = len(numbers) == 1
        return given_room(partial(together, numbers)) if alone else together(numbers)

    numbers = [i for i in range(len(examples)) if made.get(i)]
    records, refused = list[Record](), list[Failure]()
    for i, own in zip(numbers, half_by_half(work, numbers, Exception), strict=True):
        if isinstance(own, Exception):
            names = dict.fromkeys(map(label_of, made[i]))
            refused += [Failure(i, name, in_words(own), "measured") for name in names]
        else:
            records += own
    return records, refused


def given_room(work: Callable[[], T]) -> T:
    """What ``work`` gives; where the device has no room for it now, tried again a little later."""
    for pause in PAUSES:
        try:
            return work()
        except torch.OutOfMemoryError:
            pass
        # Outside the except block, so that the failed pass's tensors are already let go.
        torch.cuda.empty_cache()
        time.sleep(pause)
    return work()
