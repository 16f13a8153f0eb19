"""An evaluation of a whole data file that can be interrupted and goes on where it stopped.

Texts go through in shards, each a part that counts only whole. The same settings go on; others refuse.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from tokenlight.data.target import Head
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.evaluation.labels import read_labels
from tokenlight.evaluation.measure import Failure, Record
from tokenlight.evaluation.method_names import Named, named, spelled
from tokenlight.evaluation.preflight import check_metrics, check_target
from tokenlight.evaluation.results import Evaluation, built, frequencies_for
from tokenlight.evaluation.shard import Experiment, explained, measured
from tokenlight.evaluation.weights import files_digest, tokenizer_digest, weight_digest
from tokenlight.explainer import Explainer
from tokenlight.explaining.batch import versions
from tokenlight.files.parts import claim, manifest_of, read_part, write_part
from tokenlight.files.tables import Example
from tokenlight.files.write import Folder
from tokenlight.plots.dataset import entry
from tokenlight.plots.scene import WORDS, scenes
from tokenlight.progress import progress as progress_bar

SHARD = 16  # texts: what an interrupt loses; the same on every device, so that any may go on
FIRST = (1, 3, 12)  # shards that come before: an early interrupt loses less


def evaluate_file(
    explainer: Explainer,
    examples: Sequence[Example],
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
    _check_labels(examples, head)  # now, not in the last shard
    if not any(isinstance(example.text, TokenRow) for example in examples):
        check_target(explainer, job.how.get("target", "predicted"))
    names = named(explainer, job.methods, job.how.get("seed", job.seed))
    settings = _fingerprint(explainer, examples, job)
    bound = _digest(sorted(settings.items()))
    _claim(folder, settings, bound)
    found: dict[str, list[Any]] = {"record": [], "refused": [], "drawn": []}
    with progress_bar("evaluating", len(examples)) as advance:
        for turn, numbers in enumerate(_shards(len(examples))):
            place = folder / "parts" / f"{numbers.start:08d}.jsonl"
            belonging = {"settings": bound, "texts": [numbers.start, numbers.stop]}
            entries = _kept(place, belonging)
            if entries is None:
                if turn % share[1] != share[0]:
                    continue
                shard = examples[numbers.start : numbers.stop]
                made = _shard(explainer, shard, job, metrics, names, numbers.start)
                write_part(place, made, belonging)
                entries = read_part(place, belonging)
            for one in entries:
                for kind, value in one.items():
                    found[kind].append(value)
            advance(len(numbers))
    counted = frequencies_for(explainer.tokenizer, metrics)
    about = _about(settings, job)
    records = tuple(map(Record.from_dict, found["record"]))
    refused = [Failure(**one) for one in found["refused"]]
    drawn = tuple((number, scene) for number, scene in found["drawn"])
    evaluation = Evaluation(records, metrics, job.seed, counted, tuple(refused), about, drawn)
    return evaluation, refused


def _shards(count: int) -> Iterator[range]:
    """The numbers of the texts of each shard."""
    first = 0
    for size in chain(FIRST, repeat(SHARD)):
        if first >= count:
            return
        last = min(first + min(size, SHARD), count)
        yield range(first, last)
        first = last


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
    shard: Sequence[Example],
    job: Experiment,
    metrics: dict[str, Any],
    names: Named,
    first: int,
) -> Iterator[dict[str, Any]]:
    made, refusals = explained(explainer, shard, job)
    records, broken = measured(explainer, shard, made, metrics, names=names.of)
    told = {one.text for one in records} | {one.text for one in (*refusals, *broken)}
    missing = [
        Failure(text, name, "it has nothing to explain.")
        for text in range(len(shard))
        if text not in told
        for name in names.names
    ]
    for refusal in (*refusals, *broken, *missing):
        yield {"refused": {**asdict(refusal), "text": refusal.text + first}}
    for record in records:
        yield {"record": {**record.to_dict(), "text": record.text + first}}
    for text, found in made.items():
        for scene in scenes(found, (WORDS,)) if found and found[0].row.image is None else ():
            yield {"drawn": [text + first, entry(scene, text + first + 1)]}


def _fingerprint(
    explainer: Explainer, examples: Sequence[Example], job: Experiment
) -> dict[str, str]:
    # Methods and metrics as they were given: names, (name, options) pairs, or built ones.
    options = [
        one[1] if isinstance(one, tuple) else getattr(one, "options", {})
        for one in (*job.methods, *job.metrics)
    ]
    head = explainer.live.head
    # The keywords of explain(); a number is not a label that is named like it.
    how = {"target": "predicted", "long": "error", **job.how}
    asked = {
        {"seed": "seed of explanations"}.get(name, name): (
            f"number {value}" if isinstance(value, int) else str(value)
        )
        for name, value in sorted(how.items())
    }
    return {
        "model": explainer.name,
        "weights": weight_digest(explainer),
        "tokenizer": tokenizer_digest(explainer.tokenizer),
        "labels": "" if head.writes else ", ".join(head.labels),  # a vocabulary is the tokenizer's
        "longest text": str(explainer.max_tokens),
        "pooling": str(explainer.live.pooling),
        "files": files_digest(options),
        "methods": _spelled(job.methods),
        "metrics": _spelled(job.metrics),
        **asked,
        "seed": str(job.seed),
        "texts": str(len(examples)),
        "words of the texts": _digest(example.text for example in examples),
        "true labels and marks": _digest((example.label, example.spans) for example in examples),
        "shard": f"{FIRST}, {SHARD}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def _spelled(given: Iterable[Any]) -> str:
    """Methods or metrics as they were asked for, in words; built ones as they show themselves."""
    return ", ".join(
        one if isinstance(one, str) else spelled(*one) if isinstance(one, tuple) else repr(one)
        for one in given
    )


def _digest(values: Iterable[object]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for value in values:
        digest.update(repr(value).encode())
    return digest.hexdigest()


def _about(settings: Mapping[str, str], job: Experiment) -> dict[str, str]:
    """What a reader of the report must know beside the numbers."""
    found = {
        "model": settings["model"],
        "data": Path(job.data).name,
        "columns": job.columns,
        "texts": settings["texts"],
        "target": str(job.how.get("target", "predicted")),
        "long": str(job.how.get("long", "error")),
        "seed": settings["seed"],
        "versions": settings["versions"],
    }
    return {name: value for name, value in found.items() if value}


def _check_labels(examples: Sequence[Example], head: Head) -> None:
    """Refuse a label that the model does not have, and say where it stands."""
    for number, example in enumerate(examples):
        try:
            read_labels([example.label], head)
        except TokenlightError as unknown:
            where = example.place or f"text {number} (counted from 0)"
            raise type(unknown)(f"{where}: {unknown}") from unknown


def _claim(folder: Path, settings: dict[str, str], bound: str) -> None:
    if not (folder / "settings.json").exists():
        for place in (folder / "parts").glob("*.jsonl"):
            if _kept(place, {}) is not None and _kept(place, {"settings": bound}) is None:
                raise BadInput(
                    f"{place} was measured with other settings, or by another version; give another "
                    "folder, or delete this one."
                )
    claim("an evaluation", Folder(str(folder)), "settings.json", settings)
