"""An evaluation of a whole data file that can be interrupted and goes on where it stopped.

Texts go through in shards. Each finished shard is one file of JSON lines, written beside and renamed,
so that an interrupt at any moment leaves whole shards only. The same settings go on; others refuse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenlight.batch import versions
from tokenlight.datafiles import Example, numbered_rows, write_text
from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.evaluation.evaluated import Evaluation, built, frequencies_for
from tokenlight.evaluation.measuring import Known, Record, check
from tokenlight.evaluation.shard import Job, Refusal, explained, measured
from tokenlight.evaluation.truths import read_labels
from tokenlight.evaluation.weights import weight_digest
from tokenlight.progress import progress as progress_bar
from tokenlight.target import Head

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

__all__ = ["Job", "Refusal", "evaluate_file", "finished"]

SHARD = 16  # texts: what an interrupt loses; the same on every device, so that any may go on


def evaluate_file(
    explainer: Explainer,
    examples: Sequence[Example],
    job: Job,
    folder: Path,
    *,
    share: tuple[int, int] = (0, 1),
    progress: bool | None = None,
) -> tuple[Evaluation, list[Refusal]]:
    """Evaluate ``examples`` shard by shard into ``folder``; finished shards are read, not repeated.

    ``share``: (i, n) makes only every n-th shard from the i-th on, so that n processes may work in
    one folder; what comes back is what is finished by then.
    """
    metrics = built(job.metrics)
    head = explainer.live.head
    labelled = any(example.label is not None for example in examples)
    marked = any(example.spans is not None for example in examples)
    check(metrics.values(), head, Known(() if labelled else None, () if marked else None))
    _check_labels(examples, head, job.data)  # now, not in the last shard
    settings = _fingerprint(explainer, examples, job)
    _claim(folder, settings)
    records: list[Record] = []
    refusals: list[Refusal] = []
    with progress_bar("evaluating", len(examples), progress) as advance:
        for first in range(0, len(examples), SHARD):
            shard = examples[first : first + SHARD]
            place = folder / "parts" / f"{first:08d}.jsonl"
            if not place.exists() and first // SHARD % share[1] != share[0]:
                continue
            if not place.exists():
                lines = [
                    json.dumps(line, ensure_ascii=False)
                    for line in _shard(explainer, shard, job, metrics, first)
                ]
                write_text(place, "".join(line + "\n" for line in lines))
            done, refused = _read(place)
            records += done
            refusals += refused
            advance(len(shard))
    counted = frequencies_for(explainer, metrics)
    about = _about(settings, job, len(examples))
    found = Evaluation(tuple(records), metrics, job.seed, counted, tuple(refusals), about)
    return found, refusals


def finished(folder: Path) -> int:
    """How many texts stand in finished shards."""
    texts: set[int] = set()
    for place in sorted((folder / "parts").glob("*.jsonl")):
        records, refusals = _read(place)
        texts |= {record.text for record in records} | {refusal.text for refusal in refusals}
    return len(texts)


def _shard(
    explainer: Explainer,
    shard: Sequence[Example],
    job: Job,
    metrics: dict[str, Any],
    first: int,
) -> Iterator[dict[str, Any]]:
    made, refusals = explained(explainer, shard, job)
    records, broken = measured(explainer, shard, made, metrics)
    for refusal in (*refusals, *broken):
        yield {"refused": {**asdict(refusal), "text": refusal.text + first}}
    for record in records:
        yield {"record": {**record.to_dict(), "text": record.text + first}}


def _read(place: Path) -> tuple[list[Record], list[Refusal]]:
    records, refusals = [], []
    try:
        # splitlines() would also cut at characters such as U+2028, which JSON strings may hold.
        for line in filter(None, place.read_text(encoding="utf-8").split("\n")):
            entry = json.loads(line)
            if "record" in entry:
                records.append(Record.from_dict(entry["record"]))
            else:
                refusals.append(Refusal(**entry["refused"]))
    except (ValueError, KeyError, TypeError) as broken:
        raise DamagedFile(
            f"{place} is damaged ({broken!r}); delete it and run the command again."
        ) from broken
    return records, refusals


def _fingerprint(explainer: Explainer, examples: Sequence[Example], job: Job) -> dict[str, str]:
    digest = hashlib.blake2b(digest_size=12)
    for example in examples:
        digest.update(repr(example).encode())
    return {
        "model": explainer.name,
        "weights": weight_digest(explainer),
        "methods": repr(list(job.methods)),
        "metrics": repr(list(job.metrics)),
        "how": repr(sorted(job.how.items())),
        "seed": str(job.seed),
        "texts": f"{len(examples)}, {digest.hexdigest()}",
        "shard": str(SHARD),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def _about(settings: Mapping[str, str], job: Job, texts: int) -> dict[str, str]:
    """What a reader of the report must know beside the numbers."""
    found = {
        "model": settings["model"],
        "data": Path(job.data).name,
        "texts": str(texts),
        "target": str(job.how.get("target", "predicted")),
        "long": str(job.how.get("long", "error")),
        "seed": settings["seed"],
        "versions": settings["versions"],
    }
    return {name: value for name, value in found.items() if value}


def _check_labels(examples: Sequence[Example], head: Head, data: str) -> None:
    """Refuse a label that the model does not have, and say in which row of the file it stands."""
    for number, example in enumerate(examples):
        try:
            read_labels([example.label], head)
        except TokenlightError as unknown:
            raise type(unknown)(f"{_row_of(data, number)}: {unknown}") from unknown


def _row_of(data: str, number: int) -> str:
    """Where a text stands, as the errors of data files say it: of a .jsonl its line is named, and
    empty lines count."""
    place = Path(data)
    if not data:
        return f"text {number} (counted from 0)"
    if place.name.lower().removesuffix(".gz").endswith(".jsonl"):
        line, _ = next(islice(numbered_rows(place), number, None))
        return f"line {line} of {place.name}"
    return f"row {number + 1} of {place.name}"


def _claim(folder: Path, settings: dict[str, str]) -> None:
    place = folder / "settings.json"
    if not place.exists():
        write_text(place, json.dumps(settings, ensure_ascii=False, indent=1))
        return
    try:
        before = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as broken:
        raise DamagedFile(f"{place} is damaged; delete the folder to begin anew.") from broken
    changed = [name for name in settings if before.get(name) != settings[name]]
    if changed:
        raise BadInput(
            f"{folder} holds an evaluation with other settings ({', '.join(changed)} differ: "
            f"{before.get(changed[0])!r}, now {settings[changed[0]]!r}); give another folder, or "
            "delete this one."
        )
