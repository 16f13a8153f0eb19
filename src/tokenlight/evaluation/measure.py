"""From Attributions to Records: every metric's changed texts go through the model in one stream."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan, nan
from typing import Any, Literal

from tokenlight.capture.perturbation import Original, StandIns, Variant, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Head
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, TextTooLong, TokenlightError, long_way, way
from tokenlight.evaluation.extra_explanations import extremes, further_explanations
from tokenlight.evaluation.method_names import Kind, kind_of, method_names
from tokenlight.explainer import Explainer
from tokenlight.metrics._agreement import unit_ranks
from tokenlight.metrics._metric import Case, CharacterSpan, Measured, Metric
from tokenlight.progress import progress as progress_bar

# Explanations measured together; the further ones that a metric needs are made for these at once.
PASSES = {"likeness", "difference"}  # extras of explanations that no one pass of a model has
CHUNK = {"cpu": 32, "cuda": 512}


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
    measured: Mapping[str, Measured]
    skipped: Mapping[str, str] = field(default_factory=dict)
    agrees: Mapping[str, float] = field(default_factory=dict)
    cut: int = 0  # tokens that long="truncate" left out

    def to_dict(self) -> dict[str, Any]:
        """JSON values; :meth:`from_dict` is its inverse."""
        values = dataclasses.asdict(self)
        for one in values["measured"].values():  # token_overlap has no number for one text
            one["value"] = None if isnan(one["value"]) else one["value"]
        return values

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


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the texts beside their explanations: ``labels`` and ``spans``, one entry a text.

    ``texts``: for each explanation the number of its text. ``names``: what the methods are called, where
    there are others than those seen here.
    """

    labels: Sequence[int | None] | None = None
    spans: Sequence[tuple[CharacterSpan, ...] | None] | None = None
    texts: Sequence[int] = ()
    names: Mapping[Kind, str] | None = None


def by_text(attributions: Sequence[Attribution], texts: int | None) -> list[int]:
    """The number of the text each attribution explains; they stand text by text.

    ``texts``: how many there are, where labels or spans say so. Else a new text begins where the
    tokens change, or where a method and target come again.
    """
    if texts is not None:
        share, rest = divmod(len(attributions), texts) if texts else (0, 1)
        if rest or not share:
            raise BadInput(
                f"{texts} labels or spans were given for {len(attributions)} explanations; give one "
                "a text, with the explanations in the order explain() gives them: text by text."
            )
        numbers = [i // share for i in range(len(attributions))]
        for i, attribution in enumerate(attributions):
            if _whole(attribution) != _whole(attributions[numbers[i] * share]):
                raise BadInput(
                    f"explanation {i} is of another text than explanation {numbers[i] * share}, yet "
                    f"{share} explanations a text were expected from {texts} labels or spans."
                )
        return numbers
    numbers, seen, current = [], set[Any](), -1
    previous: Any = None
    for attribution in attributions:
        whole, made = _whole(attribution), (kind_of(attribution), _asked(attribution))
        if whole != previous or made in seen:
            current, seen, previous = current + 1, set(), whole
        seen.add(made)
        numbers.append(current)
    return numbers


def _whole(attribution: Attribution) -> Any:
    """Equal for explanations of one text; what a model writes is explained token by token, each by
    the row before it."""
    row = attribution.row
    written = row.names[-1:] == (WRITTEN,)
    return (row.texts, row.names) if written else row.fingerprint


def _asked(attribution: Attribution) -> tuple[object, ...]:
    """What was asked of a text: where each token has its own label, or is foretold, also of which."""
    row = attribution.row
    return attribution.target.name, row.at, row.asked, row.fingerprint


def check(metrics: Iterable[Metric], head: Head, known: Known) -> None:
    """Refuse before any work what could only fail after it."""
    for metric in metrics:
        metric.check(head)
        if metric.labelled and known.labels is None:
            python = f"('{metric.name}', {{'reference': 'predicted'}})"
            how = way(python, f"--metric {metric.name}:reference=predicted")
            own = f", or {how} to compare with the model's own prediction"
            raise BadInput(
                f"{metric.name} compares with the true labels, and none were given; give "
                f"{way('labels=…', '--label COLUMN')}{own if hasattr(metric, 'reference') else ''}."
            )
        if metric.marked and known.spans is None:
            raise BadInput(
                f"{metric.name} compares with spans that a person marked, and none were given; give "
                + way("spans=…, for each text", "a file with a column 'spans', in each row")
                + " a list of (first character, behind the last character)."
            )


def measure(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    metrics: Mapping[str, Metric],
    known: Known,
    *,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Iterator[Record]:
    """A record for each attribution, in order, as soon as its part of the stream is through.

    A text that a metric cannot measure costs that number only: the record says why.
    """
    check(metrics.values(), explainer.live.head, known)
    for attribution in attributions:
        refuse_other_model(explainer, attribution)
    if any(attribution.row.image is not None for attribution in attributions):
        for metric in metrics.values():
            if getattr(metric, "perturb", None) == "delete":
                raise BadInput(
                    f"{metric.name} deletes tokens, but a patch cannot be deleted: the picture would "
                    f"lose its grid. Give ('{metric.name}', {{'perturb': 'mask'}}), which hides "
                    "patches, or deletion and insertion."
                )
    numbers, names = known.texts, method_names(map(kind_of, attributions), known.names)
    stand_ins = StandIns.of(explainer.live, explainer.tokenizer)
    cases = [
        Case(
            attribution,
            Original(attribution.row, stand_ins),
            explainer.live.head,
            None if known.labels is None else known.labels[number],
            None if known.spans is None else known.spans[number],
        )
        for number, attribution in zip(numbers, attributions, strict=True)
    ]
    agreements = _agreements(numbers, attributions, names)
    size = CHUNK.get(explainer.live.device.type, CHUNK["cpu"])
    with progress_bar("measuring", len(cases), progress) as advance:
        for start in range(0, len(cases), size):
            chosen = range(start, min(start + size, len(cases)))
            found = _measured(explainer, [cases[i] for i in chosen], metrics, batch_tokens)
            for i, (measured, skipped) in zip(chosen, found, strict=True):
                case = cases[i]
                yield Record(
                    text=numbers[i],
                    method=names[kind_of(case.attribution)],
                    target=case.attribution.target.name,
                    predicted=case.attribution.prediction.label,
                    label=None if case.label is None else case.head.labels[case.label],
                    tokens=len(case.attribution),
                    measured=measured,
                    skipped=skipped,
                    agrees=agreements[i],
                    cut=case.attribution.row.cut,
                )
            advance(len(chosen))


def _agreements(
    numbers: Sequence[int],
    attributions: Sequence[Attribution],
    names: Mapping[Kind, str],
) -> list[dict[str, float]]:
    """For each attribution its rank correlation with the methods behind it on the same text."""
    ranks = [unit_ranks(a) for a in attributions]
    asked = [_asked(a) for a in attributions]
    found: list[dict[str, float]] = [{} for _ in attributions]
    for i, one in enumerate(attributions):
        for j in range(i + 1, len(attributions)):
            if numbers[j] != numbers[i]:
                break
            other, mine, theirs = attributions[j], ranks[i], ranks[j]
            if mine is None or theirs is None or asked[j] != asked[i]:
                continue
            if kind_of(other) != kind_of(one):
                found[i][names[kind_of(other)]] = float(mine @ theirs)
    return found


def _measured(
    explainer: Explainer,
    cases: Sequence[Case],
    metrics: Mapping[str, Metric],
    batch_tokens: int | None,
) -> list[tuple[dict[str, Measured], dict[str, str]]]:
    found: list[tuple[dict[str, Measured], dict[str, str]]] = [({}, {}) for _ in cases]
    jobs = list(_jobs(explainer, cases, metrics, found, batch_tokens))
    rows = (variant for _, _, _, variants in jobs for variant in variants)
    answers = stream_logits(explainer.live, rows, batch_tokens=batch_tokens)
    for i, key, case, variants in jobs:
        logits = list(islice(answers, len(variants)))
        pairs = list(zip(variants, logits, strict=True))
        try:
            found[i][0][key] = metrics[key].measure(case, pairs)
        except TokenlightError as refused:
            found[i][1][key] = str(refused)
    return found


def _jobs(
    explainer: Explainer,
    cases: Sequence[Case],
    metrics: Mapping[str, Metric],
    found: list[tuple[dict[str, Measured], dict[str, str]]],
    batch_tokens: int | None,
) -> Iterator[tuple[int, str, Case, list[Variant]]]:
    """What to ask for each case and metric, case by case: changed texts of one text stand together,
    where the engine finds those that several methods share."""
    beside: dict[str, tuple[str, Sequence[Any]]] = {}  # by the field of a case that it fills
    for key, metric in metrics.items():
        if metric.further != "none":
            beside[key] = "others", further_explanations(explainer, cases, metric)
        elif metric.searches:
            beside[key] = "bounds", extremes(explainer, cases, metric, batch_tokens)
    for i, case in enumerate(cases):
        for key, metric in metrics.items():
            given = case
            try:
                _readable(explainer, case, metric)
                if key in beside:
                    name, found_for = beside[key]
                    if isinstance(found_for[i], TokenlightError):
                        raise found_for[i]
                    given = dataclasses.replace(case, **{name: tuple(found_for[i])})  # type: ignore[arg-type]
                variants = metric.variants(given)
            except TokenlightError as refused:
                found[i][1][key] = str(refused)
                continue
            yield i, key, given, variants


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
        raise BadInput(
            f"this explanation was made {made}for {attribution.target.name!r} of "
            f"{', '.join(labels[:6])}, and {explainer.name} has other outputs: {head.does}. Give the "
            "model that made it."
        )


def _readable(explainer: Explainer, case: Case, metric: Metric) -> None:
    attribution = case.attribution
    if any(step.startswith("merge_words") for step in attribution.steps):
        raise BadInput(
            "these are scores of words, whose token ids are not kept; measure the token scores, "
            "before merge_words."
        )
    if metric.asks or metric.further != "none":
        needs_one_piece(explainer, attribution, metric.name)


def needs_one_piece(explainer: Explainer, attribution: Attribution, what: str) -> None:
    """Refuse to ask the model again about a text that it could only read in windows."""
    limit = explainer.max_tokens
    if PASSES & {*attribution.extras}:
        raise BadInput(
            f"{what} asks the model about the whole text again, but this explains two passes at once. "
            "Explain and measure each by itself."
        )
    if limit is not None and len(attribution) > limit:
        raise TextTooLong(
            f"{what} asks the model about the whole text again, but this one was read in windows: "
            f"it has {len(attribution)} tokens and the model reads {limit} at once. Explain it cut "
            f"to the first window ({long_way('truncate')}) to test that part, or compare with marked "
            "spans (rationale, precision_at_k), which reads the scores alone."
        )
