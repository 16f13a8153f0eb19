"""A few texts explained and measured together, with what fails tried alone: one bad text, or one
method that does not fit, costs itself only. Whole data files and benchmarks are made of these."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tokenlight.attribution import Attribution
from tokenlight.datafiles import Example
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.measuring import Known, Record, Refusal, measure, method_names
from tokenlight.evaluation.truths import read_labels, read_spans
from tokenlight.metrics._metric import Metric

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

__all__ = ["Job", "Refusal", "explained", "given_room", "in_words", "measured"]

T = TypeVar("T")
# Others who share the device come and go: seconds before a text without room is tried again.
PAUSES = (5.0, 20.0)


@dataclass(frozen=True)
class Job:
    """What is evaluated, beside the texts: equal jobs over equal texts give equal rows."""

    methods: Sequence[Any]
    metrics: Sequence[Any]
    how: dict[str, Any] = field(default_factory=dict)  # keywords of explain()
    seed: int = 0
    data: str = ""  # file or data set that the texts come from: told, and not compared


def explained(
    explainer: Explainer, examples: Sequence[Example], job: Job
) -> tuple[dict[int, list[Attribution]], list[Refusal]]:
    """Explanations of each text by its number, and what was refused."""
    texts = [example.text for example in examples]
    how = {"seed": job.seed, "progress": False, **job.how}
    try:
        found = explainer.explain(texts, method=list(job.methods), **how)
    except Exception:  # noqa: BLE001 - whatever it is, it is met again and told below
        found = None
    if found is not None:
        share = len(found) // len(texts)
        return {i: found[i * share : (i + 1) * share] for i in range(len(texts))}, []
    made: dict[int, list[Attribution]] = {i: [] for i in range(len(texts))}
    refused: list[Refusal] = []
    for method in job.methods:
        for i, text in enumerate(texts):
            try:
                made[i] += given_room(partial(explainer.explain, [text], [method], **how))
            except Exception as reason:  # noqa: BLE001 - a poisoned text must not stop the others
                refused.append(Refusal(i, _name(method, job), in_words(reason)))
    return made, refused


def measured(
    explainer: Explainer,
    examples: Sequence[Example],
    made: Mapping[int, list[Attribution]],
    metrics: Mapping[str, Metric],
    *,
    batch_tokens: int | None = None,
) -> tuple[list[Record], list[Refusal]]:
    """A record for each explanation. Texts whose every method worked are measured together, the
    others one by one; so is each text of a group that breaks."""
    records: list[Record] = []
    refused: list[Refusal] = []
    waiting = list(_rectangles(made, len(examples)))
    while waiting:
        numbers, group = waiting.pop(0)
        try:
            work = partial(_together, explainer, examples, (numbers, group), metrics, batch_tokens)
            records += given_room(work) if len(numbers) == 1 else work()
        except Exception as reason:  # noqa: BLE001 - a poisoned text must not stop the others
            if len(numbers) > 1:
                waiting = [([i], made[i]) for i in numbers] + waiting
            else:
                why = in_words(reason)
                names = method_names(group).values()
                refused += [Refusal(numbers[0], name, why, "measured") for name in names]
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


def in_words(reason: BaseException) -> str:
    """An error as it is told in a table."""
    if isinstance(reason, torch.OutOfMemoryError):
        return (
            "the device has no room for this text, even alone and tried again; free the device, use "
            "fewer workers, or another device."
        )
    if isinstance(reason, TokenlightError):
        return str(reason)
    return f"unexpected {type(reason).__name__}: {reason}"


def _together(
    explainer: Explainer,
    examples: Sequence[Example],
    group: tuple[list[int], list[Attribution]],
    metrics: Mapping[str, Metric],
    batch_tokens: int | None,
) -> list[Record]:
    numbers, attributions = group
    labels = [examples[i].label for i in numbers]
    spans = [examples[i].spans for i in numbers]
    known = Known(
        read_labels(labels, explainer.live.head), read_spans(spans, attributions, labels=labels)
    )
    found = measure(
        explainer, attributions, metrics, known, batch_tokens=batch_tokens, progress=False
    )
    return [replace(record, text=numbers[record.text]) for record in found]


def _rectangles(
    made: Mapping[int, list[Attribution]], texts: int
) -> Iterator[tuple[list[int], list[Attribution]]]:
    most = max((len(found) for found in made.values()), default=0)
    whole = [i for i in range(texts) if made.get(i) and len(made[i]) == most]
    if whole:
        yield whole, [a for i in whole for a in made[i]]
    for i in range(texts):
        if made.get(i) and i not in set(whole):
            yield [i], made[i]


def _name(method: Any, job: Job) -> str:
    """The method's own name; with its options where the job has it twice."""
    pairs = [(one, {}) if isinstance(one, str) else one for one in (method, *job.methods)]
    (name, options), *others = pairs
    if [other for other, _ in others].count(name) == 1 or not options:
        return str(name)
    return f"{name}({', '.join(f'{option}={value}' for option, value in options.items())})"
