"""Measure Attributions: the perturbed texts of all metrics go through the model in one stream."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tokenlight.data.annotations import CharacterSpan
from tokenlight.data.attribution import Attribution
from tokenlight.data.head import Head
from tokenlight.data.ranks import compute_normalized_ranks
from tokenlight.data.units import CONTINUATION_SEGMENT
from tokenlight.errors import BadInput, TextTooLong, TokenlightError
from tokenlight.evaluation.case_preparation import complete_cases, describe_method
from tokenlight.evaluation.measurement_records import Record
from tokenlight.explainer import Explainer
from tokenlight.metrics.base import Case, Metric
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds, Variant
from tokenlight.progress import progress_bar

# Extras of explanations that combine two forward passes.
MULTI_PASS_EXTRAS = {"similarity", "difference"}
# Explanations measured together, by device. The extra explanations that a metric needs are made for all of
# them in one call.
CHUNK_SIZES = {"cpu": 32, "cuda": 512}
T = TypeVar("T")
PerText = Sequence[T | None] | Mapping[int, T | None] | None  # values by the index of the text


def find_text_indices(attributions: Sequence[Attribution]) -> list[int]:
    """Return the index of the text that each attribution explains.

    The attributions stand text by text. A new text begins where the tokens change, or where a method and
    target occur again.
    """
    indices = []
    current = -1
    previous_text: Any = None
    requests: set[Any] = set()
    for attribution in attributions:
        row = attribution.row
        request = (describe_method(attribution), _make_request_key(attribution))
        text: Any = row.fingerprint
        if row.segment_names[-1:] == (CONTINUATION_SEGMENT,):
            # Each token of a continuation is explained by the row before it, so the rows differ.
            text = (row.texts, row.segment_names)
        if text != previous_text or request in requests:
            current += 1
            previous_text = text
            requests = set()
        requests.add(request)
        indices.append(current)
    return indices


def _make_request_key(attribution: Attribution) -> tuple[object, ...]:
    """Return what was explained: the target and, where each token has its own, the position."""
    row = attribution.row
    return attribution.target.name, row.target_position, row.target_positions, row.fingerprint


def check_requirements(
    metrics: Iterable[Metric], head: Head, *, has_labels: bool, has_spans: bool
) -> None:
    """Raise before any work if a metric cannot give a number.

    Args:
        metrics: The metrics.
        head: The head of the model.
        has_labels: Whether true labels are given.
        has_spans: Whether marked spans are given.

    Raises:
        BadInput: A metric needs labels or spans that are missing.
        BadTarget: A metric does not support this head.
    """
    for metric in metrics:
        metric.check(head)
        if metric.needs_labels and not has_labels:
            if getattr(metric, "target", None) == "label":
                raise BadInput(
                    f"{metric.name} compares with the true labels, but none were given. Give labels=…, or "
                    "its option target=predicted to compare with the model's own prediction.",
                    code="labels-or-reference-required",
                )
            raise BadInput(
                f"{metric.name} compares with the true labels, but none were given. Give labels=….",
                code="labels-required",
            )
        if metric.needs_spans and not has_spans:
            raise BadInput(
                f"{metric.name} compares with spans that a person marked, but none were given. Give spans=…, "
                "for each text a list of (first character, character after the last).",
                code="spans-required",
            )


class _MeasuredCase(NamedTuple):
    """One explanation under test, and the record that its measurements are written into."""

    case: Case
    record: Record


def measure(  # noqa: PLR0913 - what is known of the texts, each by name
    explainer: Explainer,
    attributions: Sequence[Attribution],
    metrics: Mapping[str, Metric],
    text_indices: Sequence[int],
    *,
    labels: PerText[int] = None,
    spans: PerText[tuple[CharacterSpan, ...]] = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Iterator[Record]:
    """Yield a record for each attribution, in order, as soon as its chunk is measured.

    A text that a metric cannot measure costs only that metric: the record has the reason.

    Args:
        explainer: The model that was explained.
        attributions: The explanations.
        metrics: Metrics by key.
        text_indices: For each explanation the index of its text, under which labels and spans are found.
        labels: Indices of the true labels.
        spans: Marked spans.
        batch_tokens: Limit of tokens in one batch.
        progress: Whether to show a progress bar; None decides by the terminal.
    """
    check_requirements(
        metrics.values(),
        explainer.runner.head,
        has_labels=labels is not None,
        has_spans=spans is not None,
    )
    for attribution in attributions:
        check_same_model(explainer, attribution)
    measured_cases = _make_cases(explainer, attributions, text_indices, labels, spans)
    _correlate_methods(measured_cases)
    chunk_size = CHUNK_SIZES.get(explainer.runner.device.type, CHUNK_SIZES["cpu"])
    with progress_bar("measuring", len(measured_cases), progress) as advance:
        for start in range(0, len(measured_cases), chunk_size):
            chunk = measured_cases[start : start + chunk_size]
            _measure_chunk(explainer, chunk, metrics, batch_tokens)
            for measured_case in chunk:
                yield measured_case.record
            advance(len(chunk))


def _make_cases(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    text_indices: Sequence[int],
    labels: PerText[int],
    spans: PerText[tuple[CharacterSpan, ...]],
) -> list[_MeasuredCase]:
    """Combine each explanation with what is known of its text, and open its record."""
    head = explainer.runner.head
    replacement_ids = ReplacementIds.from_model(explainer.runner, explainer.tokenizer)
    cases = []
    for text_index, attribution in zip(text_indices, attributions, strict=True):
        label = None if labels is None else labels[text_index]
        text_spans = None if spans is None else spans[text_index]
        perturber = Perturber(attribution.row, replacement_ids)
        case = Case(
            attribution=attribution, perturber=perturber, head=head, label=label, spans=text_spans
        )
        record = Record(
            text_index=text_index,
            method=describe_method(attribution),
            target=attribution.target.name,
            predicted=attribution.prediction.label,
            label=None if label is None else head.labels[label],
            num_tokens=len(attribution),
            measurements={},
            num_truncated=attribution.row.num_truncated,
        )
        cases.append(_MeasuredCase(case, record))
    return cases


def _correlate_methods(measured_cases: Sequence[_MeasuredCase]) -> None:
    """Write into the records the rank correlation between every two methods on the same request."""
    groups: dict[Any, list[tuple[Record, np.ndarray]]] = {}
    for case, record in measured_cases:
        ranks = compute_normalized_ranks(case.attribution)
        if ranks is not None:
            key = (record.text_index, _make_request_key(case.attribution))
            groups.setdefault(key, []).append((record, ranks))
    for group in groups.values():
        for (first, first_ranks), (second, second_ranks) in combinations(group, 2):
            if first.method != second.method:
                first.rank_correlations[second.method] = float(first_ranks @ second_ranks)


class _Job(NamedTuple):
    """One metric on one explanation, and the perturbed texts that it needs logits of."""

    record: Record
    metric_key: str
    case: Case
    variants: list[Variant]


def _measure_chunk(
    explainer: Explainer,
    measured_cases: Sequence[_MeasuredCase],
    metrics: Mapping[str, Metric],
    batch_tokens: int | None,
) -> None:
    """Write the measurements of all metrics into each record."""
    jobs = _plan_jobs(explainer, measured_cases, metrics, batch_tokens)

    def iter_variants() -> Iterator[Variant]:
        for job in jobs:
            yield from job.variants

    logits = stream_logits(explainer.runner, iter_variants(), batch_tokens=batch_tokens)
    for record, key, case, variants in jobs:
        outputs = list(zip(variants, islice(logits, len(variants)), strict=True))
        try:
            record.measurements[key] = metrics[key].measure(case, outputs)
        except TokenlightError as error:
            record.skip_reasons[key] = str(error)


def _plan_jobs(
    explainer: Explainer,
    measured_cases: Sequence[_MeasuredCase],
    metrics: Mapping[str, Metric],
    batch_tokens: int | None,
) -> list[_Job]:
    """Return a job for each case and metric that can be measured; the records say why others cannot.

    Jobs are ordered by case, not by metric: variants of one text then stand together, where the engine
    recognizes those that several methods share.
    """
    cases = [measured_case.case for measured_case in measured_cases]
    completed_cases = {}
    for key, metric in metrics.items():
        completed_cases[key] = complete_cases(explainer, cases, metric, batch_tokens)
    jobs = []
    for i, (original_case, record) in enumerate(measured_cases):
        for key, metric in metrics.items():
            try:
                _check_measurable(explainer, original_case.attribution, metric)
                case = completed_cases[key][i]
                if isinstance(case, TokenlightError):
                    raise case
                jobs.append(_Job(record, key, case, metric.build_variants(case)))
            except TokenlightError as error:
                record.skip_reasons[key] = str(error)
    return jobs


def _check_measurable(explainer: Explainer, attribution: Attribution, metric: Metric) -> None:
    check_token_scores(attribution)
    if metric.needs_model or metric.extra_explanations != "none":
        check_single_window(explainer, attribution, metric.name)


def check_same_model(explainer: Explainer, attribution: Attribution) -> None:
    """Raise if an explanation was made with a model that has other outputs.

    Scores made elsewhere without label names are compared by the number of labels.
    """
    if not MULTI_PASS_EXTRAS.isdisjoint(attribution.extras):
        return  # the outputs of two passes cannot be compared with the head
    if not _has_same_outputs(explainer.runner.head, attribution):
        maker = f"by {attribution.model!r} " if attribution.model else ""
        raise BadInput(
            f"This explanation was made {maker}for {attribution.target.name!r} of "
            f"{', '.join(attribution.prediction.labels[:6])}, but {explainer.name} has other outputs: "
            f"{explainer.runner.head.usage}. Give the model that made it.",
            code="explanation-of-another-model",
        )


def _has_same_outputs(head: Head, attribution: Attribution) -> bool:
    row = attribution.row
    is_answer = attribution.target.kind == "span"
    has_continuation = bool(row.continuation_ids) and not row.target_positions
    is_generated = bool(attribution.prediction.ids) or has_continuation
    if is_answer != (head.task == "question-answering") or is_generated != head.is_language_model:
        return False
    if is_answer or is_generated or row.target_positions:
        return True
    return _has_same_labels(head, attribution.prediction.labels)


def _has_same_labels(head: Head, labels: Sequence[str]) -> bool:
    """Return whether the labels are the head's; default names are compared by their number."""
    if tuple(head.labels) == tuple(labels):
        return True
    has_default_names = all(name == f"LABEL_{i}" for i, name in enumerate(labels))
    return has_default_names and len(labels) == len(head.labels)


def check_token_scores(attribution: Attribution) -> None:
    """Raise if the scores belong to words: a metric removes and marks tokens."""
    if any(step.startswith("merge_words") for step in attribution.steps):
        raise BadInput(
            "Metrics need token scores, but these are word scores. Give those from before merge_words().",
            code="word-scores",
        )


def check_single_window(explainer: Explainer, attribution: Attribution, description: str) -> None:
    """Raise if the model cannot read the whole text, or both texts, in one pass.

    Args:
        explainer: The model.
        attribution: The explanation to measure.
        description: What needs to run the model again, as the subject of the message.
    """
    if not MULTI_PASS_EXTRAS.isdisjoint(attribution.extras):
        raise BadInput(
            f"{description} runs the model on the text again, but this explanation combines two passes. "
            "Explain and measure each text on its own.",
            code="two-passes",
        )
    max_tokens = explainer.max_tokens
    if max_tokens is not None and len(attribution) > max_tokens:
        raise TextTooLong(
            f"{description} runs the model on the whole text again, but this one was read in windows: it has "
            f"{len(attribution)} tokens, and the model reads {max_tokens} at once. Truncate it "
            "(long=truncate), or compare with marked spans (rationale).",
            code="measured-in-windows",
        )
