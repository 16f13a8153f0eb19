"""From Attributions to Records: every metric's changed texts go through the model in one stream."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from math import nan
from typing import Any, Literal, TypeVar

import numpy as np

from tokenlight.capture.perturbation import Original, StandIns, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Head
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, TextTooLong, TokenlightError, long_way, way
from tokenlight.evaluation.extra_explanations import completed, label_of
from tokenlight.explainer import Explainer
from tokenlight.metrics._interval import plain
from tokenlight.metrics._metric import Case, CharacterSpan, Measured, Metric
from tokenlight.metrics._ranking import unit_ranks
from tokenlight.progress import progress as progress_bar

PASSES = {"likeness", "difference"}  # extras of explanations that no one pass of a model has
# Explanations measured together; the further ones that a metric needs are made for these at once.
CHUNK = {"cpu": 32, "cuda": 512}
T = TypeVar("T")
Known = Sequence[T | None] | Mapping[int, T | None] | None  # of texts, by their numbers


@dataclass(frozen=True, slots=True)
class Record:
    """One explanation measured: a number for each metric, or the reason why there is none.

    ``agrees``: rank correlation with the methods that come after it on the same text.
    """

    text: int
    method: str
    target: str
    predicted: str
    label: str | None
    tokens: int
    measured: dict[str, Measured]
    skipped: dict[str, str] = field(default_factory=dict)
    agrees: dict[str, float] = field(default_factory=dict)
    cut: int = 0  # tokens that long="truncate" left out

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` is its inverse. Of one text token_overlap has no number."""
        return dict(plain(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Record":
        """Rebuild from :meth:`to_dict`."""
        measured = {}
        for key, one in values["measured"].items():
            value = nan if one["value"] is None else one["value"]
            measured[key] = Measured(**{**one, "value": value, "curve": tuple(one["curve"])})
        return cls(**{**values, "measured": measured})


@dataclass(frozen=True, slots=True)
class Failure:
    """A text, or one method on a text, that could not be explained or measured, and why."""

    text: int
    method: str
    reason: str
    step: Literal["explained", "measured"] = "explained"  # what it could not be


def short_names(
    records: Iterable[Record], refusals: Iterable[Failure] = ()
) -> tuple[tuple[Record, ...], tuple[Failure, ...]]:
    """Methods by their own names, and with options where one is there twice, be it refused.

    Names are given for a whole job at once: given for what happens to be there, a variant whose sibling
    was refused would take the bare name, and its numbers would be counted as the other's.
    """
    records, refusals = tuple(records), tuple(refusals)
    labels = [*(one.method for one in records), *(one.method for one in refusals)]
    bare = {label: re.split(r"\(\w+=| \| ", label)[0] for label in labels}
    times = Counter(bare.values())
    names = {label: name if times[name] == 1 else label for label, name in bare.items()}
    renamed = []
    for one in records:
        agrees = {names[label]: value for label, value in one.agrees.items()}
        renamed.append(dataclasses.replace(one, method=names[one.method], agrees=agrees))
    refused = (dataclasses.replace(one, method=names[one.method]) for one in refusals)
    return tuple(renamed), tuple(refused)


def by_text(attributions: Sequence[Attribution]) -> list[int]:
    """The number of the text each attribution explains. They stand text by text: a new one begins where
    the tokens change, or where a method and target come again."""
    numbers, seen, current = [], set[Any](), -1
    previous: Any = None
    for attribution in attributions:
        row, made = attribution.row, (label_of(attribution), _asked(attribution))
        # What a model writes is explained token by token, each by the row before it.
        written = row.names[-1:] == (WRITTEN,)
        whole: Any = (row.texts, row.names) if written else row.fingerprint
        if whole != previous or made in seen:
            current, seen, previous = current + 1, set(), whole
        seen.add(made)
        numbers.append(current)
    return numbers


def _asked(attribution: Attribution) -> tuple[object, ...]:
    """What was asked of a text: where each token has its own label, or is foretold, also of which."""
    row = attribution.row
    return attribution.target.name, row.at, row.asked, row.fingerprint


def check(metrics: Iterable[Metric], head: Head, *, labelled: bool, marked: bool) -> None:
    """Refuse before any work what could only fail after it; whether labels, and marks, are there."""
    for metric in metrics:
        metric.check(head)
        if metric.labelled and not labelled:
            own = ", or its option reference=predicted to compare with the model's own prediction"
            raise BadInput(
                f"{metric.name} compares with the true labels, and none were given; give "
                f"{way('labels=…', '--label COLUMN')}{own if hasattr(metric, 'reference') else ''}."
            )
        if metric.marked and not marked:
            raise BadInput(
                f"{metric.name} compares with spans that a person marked, and none were given; give "
                + way("spans=…, for each text", "a file with a column 'spans', in each row")
                + " a list of (first character, behind the last character)."
            )


def measure(  # noqa: PLR0913 - what is known of the texts, each by name
    explainer: Explainer,
    attributions: Sequence[Attribution],
    metrics: Mapping[str, Metric],
    texts: Sequence[int],
    *,
    labels: Known[int] = None,
    spans: Known[tuple[CharacterSpan, ...]] = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Iterator[Record]:
    """A record for each attribution, in order, as soon as its part of the stream is through.

    ``texts``: for each explanation the number of its text, at which its label and spans are found.
    A text that a metric cannot measure costs that number only: the record says why.
    """
    head = explainer.live.head
    check(metrics.values(), head, labelled=labels is not None, marked=spans is not None)
    for attribution in attributions:
        refuse_other_model(explainer, attribution)
    stand_ins = StandIns.of(explainer.live, explainer.tokenizer)
    given: list[tuple[Case, Record]] = []
    alike: dict[Any, list[tuple[Record, np.ndarray]]] = {}
    for number, one in zip(texts, attributions, strict=True):
        label = None if labels is None else labels[number]
        marks = None if spans is None else spans[number]
        case = Case(one, Original(one.row, stand_ins), head, label, marks)
        truth = None if label is None else head.labels[label]
        names = one.target.name, one.prediction.label, truth
        record = Record(number, label_of(one), *names, len(one), {}, cut=one.row.cut)
        given.append((case, record))
        if (ranks := unit_ranks(one)) is not None:
            alike.setdefault((number, _asked(one)), []).append((record, ranks))
    for group in alike.values():
        for (mine, own), (other, theirs) in combinations(group, 2):
            if mine.method != other.method:
                mine.agrees[other.method] = float(own @ theirs)
    size = CHUNK.get(explainer.live.device.type, CHUNK["cpu"])
    with progress_bar("measuring", len(given), progress) as advance:
        for start in range(0, len(given), size):
            chosen = given[start : start + size]
            _fill(explainer, chosen, metrics, batch_tokens)
            yield from (record for _, record in chosen)
            advance(len(chosen))


def _fill(
    explainer: Explainer,
    given: Sequence[tuple[Case, Record]],
    metrics: Mapping[str, Metric],
    batch_tokens: int | None,
) -> None:
    """Write into each record what the metrics measure. They are asked about case by case: changed texts of
    one text stand together, where the engine finds those that several methods share."""
    cases = [case for case, _ in given]
    ready = {key: completed(explainer, cases, one, batch_tokens) for key, one in metrics.items()}
    jobs = []
    for i, (_, record) in enumerate(given):
        for key, metric in metrics.items():
            try:
                case = ready[key][i]
                refuse_words(cases[i].attribution)
                if metric.asks or metric.further != "none":
                    needs_one_piece(explainer, cases[i].attribution, metric.name)
                if isinstance(case, TokenlightError):
                    raise case
                jobs.append((record, key, case, metric.variants(case)))
            except TokenlightError as refused:
                record.skipped[key] = str(refused)
    rows = (variant for *_, variants in jobs for variant in variants)
    answers = stream_logits(explainer.live, rows, batch_tokens=batch_tokens)
    for record, key, case, variants in jobs:
        said = list(zip(variants, islice(answers, len(variants)), strict=True))
        try:
            record.measured[key] = metrics[key].measure(case, said)
        except TokenlightError as refused:
            record.skipped[key] = str(refused)


def refuse_other_model(explainer: Explainer, attribution: Attribution) -> None:
    """A model is asked about its own explanations: one with other outputs would answer for another.

    Scores made elsewhere without names of labels are known by their number.
    """
    head, labels = explainer.live.head, attribution.prediction.labels
    if PASSES & {*attribution.extras}:
        return  # its outputs are two passes'
    row = attribution.row
    writes = bool(attribution.prediction.ids or (row.answer and not row.asked))
    kinds = (attribution.target.kind == "span", writes)
    same = kinds == (head.kind == "span", head.writes)
    if same and not any(kinds) and not row.asked:
        unnamed = all(name == f"LABEL_{i}" for i, name in enumerate(labels))
        same = tuple(head.labels) == labels or (unnamed and len(labels) == len(head.labels))
    if not same:
        made = f"by {attribution.model!r} " if attribution.model else ""
        outputs = f"{attribution.target.name!r} of {', '.join(labels[:6])}"
        other = f"{explainer.name} has other outputs: {head.does}. Give the model that made it."
        raise BadInput(f"this explanation was made {made}for {outputs}, and {other}")


def refuse_words(attribution: Attribution) -> None:
    """Scores of words name no tokens that could be taken away or marked."""
    if any(step.startswith("merge_words") for step in attribution.steps):
        raise BadInput("these are scores of words; measure the token scores, before merge_words.")


def needs_one_piece(explainer: Explainer, attribution: Attribution, what: str) -> None:
    """Refuse to ask the model again about a text that it could only read in windows."""
    limit, asks = explainer.max_tokens, f"{what} asks the model about the whole text again"
    if PASSES & {*attribution.extras}:
        apart = "Explain and measure each by itself."
        raise BadInput(f"{asks}, but this explains two passes at once. {apart}")
    if limit is not None and len(attribution) > limit:
        raise TextTooLong(
            f"{asks}, but this one was read in windows: it has {len(attribution)} tokens and the model "
            f"reads {limit} at once. Explain it cut to the first window ({long_way('truncate')}), or "
            "compare with marked spans (rationale)."
        )
