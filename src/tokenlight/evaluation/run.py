"""An evaluation of a whole data file that can be interrupted and goes on where it stopped.

Texts go through in shards. Each finished shard is one file of JSON lines, written beside and renamed,
so that an interrupt at any moment leaves whole shards only. The same settings go on; others refuse.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from tokenlight.data.target import Head
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, TokenlightError, shown
from tokenlight.evaluation.labels import read_labels
from tokenlight.evaluation.measure import Failure, Record
from tokenlight.evaluation.method_names import Named, named, spelled
from tokenlight.evaluation.preflight import check_metrics, check_target
from tokenlight.evaluation.results import Evaluation, built, frequencies_for
from tokenlight.evaluation.shard import Experiment, explained, measured
from tokenlight.evaluation.weights import files_digest, tokenizer_digest, weight_digest
from tokenlight.explainer import Explainer
from tokenlight.explaining.batch import versions
from tokenlight.files.documents import json_in, json_of
from tokenlight.files.tables import Example
from tokenlight.files.write import write_text
from tokenlight.plots.dataset import entry
from tokenlight.plots.scene import WORDS, scenes
from tokenlight.progress import progress as progress_bar

TRUTHS = "true labels and marks"
DIGESTS = ("weights", "tokenizer", "files", TRUTHS)
SHARD = 16  # texts: what an interrupt loses; the same on every device, so that any may go on
FIRST = (1, 3, 12)  # shards that come before: an early interrupt loses less


class _Part(NamedTuple):
    """What a finished shard holds; ``drawn``: the texts as a report draws them, by their number."""

    records: list[Record]
    refusals: list[Failure]
    drawn: list[tuple[int, dict[str, Any]]]


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
    whole = _Part([], [], [])
    with progress_bar("evaluating", len(examples)) as advance:
        for turn, numbers in enumerate(_shards(len(examples))):
            place = folder / "parts" / f"{numbers.start:08d}.jsonl"
            found = _read(place, bound, numbers)
            if found is None and turn % share[1] != share[0]:
                continue
            if found is None:
                shard = examples[numbers.start : numbers.stop]
                entries = _shard(explainer, shard, job, metrics, names, numbers.start)
                lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in entries)
                end = {"settings": bound, "lines": _digest([lines])}
                write_text(place, f"{lines}{json.dumps(end)}\n")
                found = _read(place, bound, numbers)
                assert found is not None
            whole.records.extend(found.records)
            whole.refusals.extend(found.refusals)
            whole.drawn.extend(found.drawn)
            advance(len(numbers))
    counted = frequencies_for(explainer.tokenizer, metrics)
    about = _about(settings, job, len(examples))
    records, refused, drawn = tuple(whole.records), tuple(whole.refusals), tuple(whole.drawn)
    evaluation = Evaluation(records, metrics, job.seed, counted, refused, about, drawn)
    return evaluation, whole.refusals


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
    texts: set[int] = set()
    for place in sorted((folder / "parts").glob("*.jsonl")):
        if found := _read(place):
            texts |= {one.text for one in found.records} | {one.text for one in found.refusals}
    return len(texts)


def _shard(
    explainer: Explainer,
    shard: Sequence[Example],
    job: Experiment,
    metrics: dict[str, Any],
    names: Named,
    first: int,
) -> Iterator[dict[str, Any]]:
    made, refusals = explained(explainer, shard, job, names)
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


def _read(
    place: Path, bound: str | None = None, texts: Sequence[int] | None = None
) -> _Part | None:
    """What a finished shard holds; None where there is none, or what is there is not as it was
    written: it is made again. One of other settings is refused."""
    try:
        # splitlines() would also cut at characters such as U+2028, which JSON strings may hold.
        *lines, last = place.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        end = json_of(last)
        if end["lines"] != _digest(["".join(f"{line}\n" for line in lines)]):
            return None
        entries = [json_of(line) for line in lines]
        records = [Record.from_dict(one["record"]) for one in entries if "record" in one]
        refusals = [Failure(**one["refused"]) for one in entries if "refused" in one]
        drawn = [(one["drawn"][0], one["drawn"][1]) for one in entries if "drawn" in one]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if bound is not None and end.get("settings") != bound:
        raise BadInput(
            f"{place} was measured with other settings, or by another version; give another folder, or "
            "delete this one."
        )
    there = {one.text for one in records} | {one.text for one in refusals}
    whole = texts is None or there == set(texts)
    return _Part(records, refusals, drawn) if whole else None


def _fingerprint(
    explainer: Explainer, examples: Sequence[Example], job: Experiment
) -> dict[str, str]:
    texts = _digest(example.text for example in examples)
    truths = _digest((example.label, example.spans) for example in examples)
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
        "texts": f"{len(examples)}, {texts}",
        TRUTHS: truths,
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


def _about(settings: Mapping[str, str], job: Experiment, texts: int) -> dict[str, str]:
    """What a reader of the report must know beside the numbers."""
    found = {
        "model": settings["model"],
        "data": Path(job.data).name,
        "columns": job.columns,
        "texts": str(texts),
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
    place = folder / "settings.json"
    if not place.exists():
        for part in (folder / "parts").glob("*.jsonl"):
            _read(part, bound)  # refuses those of other settings
        write_text(place, json.dumps(settings, ensure_ascii=False, indent=1))
        return
    try:
        before = dict(json_in(place).items())
    except (ValueError, AttributeError) as broken:
        raise DamagedFile(f"{place} is damaged; delete the folder to begin anew.") from broken
    changed = [name for name in settings if before.get(name) != settings[name]]
    if "texts" in changed and TRUTHS in changed:
        changed.remove(TRUTHS)  # other texts have other labels
    if changed:
        raise BadInput(
            f"{folder} holds an evaluation with other settings ({', '.join(changed)} differ"
            f"{_values(changed[0], before, settings)}); give another folder, or delete this one."
        )


def _values(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What a setting was and is; of a digest nobody would learn anything."""
    was, what = before.get(name), now[name]
    if name == "texts":
        counts = [str(value).partition(",")[0] for value in (was, what)]
        return f": {counts[0]}, now {counts[1]}" if counts[0] != counts[1] else " in their words"
    return "" if name in DIGESTS else f": {shown(was, 120)}, now {shown(what, 120)}"
