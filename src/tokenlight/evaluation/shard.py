"""A few texts explained and measured together, with what fails tried alone: one bad text, or one
method that does not fit, costs itself only. Whole data files and benchmarks are made of these."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Continuation
from tokenlight.errors import in_words
from tokenlight.evaluation.labels import read_labels, read_spans
from tokenlight.evaluation.measure import Failure, Known, Record, measure
from tokenlight.evaluation.method_names import Kind, kind_of, method_names, named
from tokenlight.evaluation.results import MetricLike
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.files.tables import Example
from tokenlight.metrics._metric import Metric

T = TypeVar("T")
# Others who share the device come and go: seconds before a text without room is tried again.
PAUSES = (5.0, 20.0)
TRUTH = "label"  # as a target: each text's true label, each question's true answer


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


def explained(
    explainer: Explainer, examples: Sequence[Example], job: Experiment
) -> tuple[dict[int, list[Attribution]], list[Failure]]:
    """Explanations of each text by its number, and what was refused."""
    texts = list(examples)  # with what is known of them, which their explanations keep
    how = {"seed": job.seed, "progress": False, **job.how}
    own = [how.get("target", "predicted")] * len(texts)
    if job.how.get("target") == TRUTH:
        how["target"] = own = [example.truth for example in examples]
    try:
        return dict(enumerate(text_by_text(explainer, texts, list(job.methods), how))), []
    except Exception:  # noqa: BLE001 - whatever it is, it is met again and told below
        pass
    names = named(explainer, job.methods, how["seed"]).names
    made: dict[int, list[Attribution]] = {i: [] for i in range(len(texts))}
    refused: list[Failure] = []
    for name, method in zip(names, job.methods, strict=True):
        for i, text in enumerate(texts):
            try:
                asked = how | {"target": own[i]}
                made[i] += given_room(partial(explainer.explain, [text], [method], **asked))
            except Exception as reason:  # noqa: BLE001 - a poisoned text must not stop the others
                refused.append(Failure(i, name, in_words(reason)))
    return made, refused


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
    examples: Sequence[Example],
    made: Mapping[int, list[Attribution]],
    metrics: Mapping[str, Metric],
    *,
    names: Mapping[Kind, str] | None = None,
    batch_tokens: int | None = None,
) -> tuple[list[Record], list[Failure]]:
    """A record for each explanation. Texts whose every method worked are measured together, the
    others one by one; so is each text of a group that breaks."""
    records: list[Record] = []
    refused: list[Failure] = []
    waiting = list(_alike(made, len(examples)))
    while waiting:
        numbers = waiting.pop(0)
        group = {i: made[i] for i in numbers}
        try:
            work = partial(_together, explainer, examples, group, metrics, names, batch_tokens)
            records += given_room(work) if len(numbers) == 1 else work()
        except Exception as reason:  # noqa: BLE001 - a poisoned text must not stop the others
            if len(numbers) > 1:
                waiting = [[i] for i in numbers] + waiting
            else:
                called = method_names(map(kind_of, made[numbers[0]]), names).values()
                why = in_words(reason)
                refused += [Failure(numbers[0], name, why, "measured") for name in called]
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


def _together(
    explainer: Explainer,
    examples: Sequence[Example],
    group: Mapping[int, list[Attribution]],
    metrics: Mapping[str, Metric],
    names: Mapping[Kind, str] | None,
    batch_tokens: int | None,
) -> list[Record]:
    numbers, head = list(group), explainer.live.head
    labels = [examples[i].label for i in numbers]
    rows = [listed[0].row for listed in group.values()]
    # Marks that no metric reads may be wrong, and cost nothing.
    marked = any(metric.marked for metric in metrics.values())
    known = Known(
        read_labels(labels, head),
        read_spans([examples[i].spans for i in numbers], rows) if marked else None,
        texts=[place for place, i in enumerate(numbers) for _ in group[i]],
        names=names,
    )
    everything = [attribution for listed in group.values() for attribution in listed]
    found = measure(
        explainer, everything, metrics, known, batch_tokens=batch_tokens, progress=False
    )
    return [replace(record, text=numbers[record.text]) for record in found]


def _alike(made: Mapping[int, list[Attribution]], texts: int) -> Iterator[list[int]]:
    """The texts that most methods explain, together; then each of the others."""
    methods = {i: len({kind_of(one) for one in made[i]}) for i in range(texts) if made.get(i)}
    most = max(methods.values(), default=0)
    whole = [i for i, count in methods.items() if count == most]
    if whole:
        yield whole
    yield from ([i] for i in methods if i not in set(whole))
