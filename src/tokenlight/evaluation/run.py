"""Evaluate a data file part by part, so that an interrupted run continues where it stopped.

A folder belongs to one model, one file and one set of settings: others are refused. If a part fails, its
texts are tried one by one, so that one bad text, or one method that does not support it, costs only itself.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, TokenlightError, describe_error
from tokenlight.evaluation.case_preparation import describe_method
from tokenlight.evaluation.digests import (
    digest_files,
    digest_tokenizer,
    digest_values,
    digest_weights,
)
from tokenlight.evaluation.evaluate import MetricLike, build_metrics, load_document_frequencies
from tokenlight.evaluation.measure import measure
from tokenlight.evaluation.measurement_records import Failure, Record, shorten_method_names
from tokenlight.evaluation.preflight import check_metrics, parse_labels, parse_spans, try_target
from tokenlight.evaluation.replacement_tokens import find_replacements
from tokenlight.evaluation.results import Evaluation
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining.attribution_fields import get_library_versions
from tokenlight.explaining.calls import resolve_methods
from tokenlight.explaining.streams import isolate_failures
from tokenlight.files.parsing import read_json
from tokenlight.files.parts import FolderCheck, claim_folder, read_manifest, read_part, write_part
from tokenlight.files.stores import Folder
from tokenlight.files.tables import Example
from tokenlight.methods.base import Method, check_declarations
from tokenlight.metrics.base import Metric
from tokenlight.model.memory import is_out_of_memory
from tokenlight.progress import progress_bar
from tokenlight.registry import format_spec

T = TypeVar("T")
Examples = Sequence[Example]
# Seconds to wait before a text that ran out of memory is tried again: other users of the device may finish.
RETRY_DELAYS_SECONDS = (5.0, 20.0)
LABEL_TARGET = "label"  # target: the true label of each text, or the true answer of each question
# Texts in a part, which is what an interrupt loses. It is the same on every device, so that a run may
# continue on another one.
PART_SIZE = 16
# Settings that the report shows next to the results.
REPORTED_SETTINGS = ("model", "data", "columns", "texts", "target", "long", "seed", "versions")


@dataclass(frozen=True)
class Experiment:
    """Settings of an evaluation, apart from model and texts. Equal settings on equal texts give equal rows.

    Attributes:
        methods: Methods to explain with.
        metrics: Metrics to measure with.
        explain_options: Keywords of ``explain()``. The target ``label`` stands for the true label of each
            text.
        seed: Seed of the methods and of the intervals.
        data_source: File or data set of the texts. It is reported, and not compared when a run continues.
        columns: Columns that were read; reported too.
    """

    methods: Sequence[MethodLike]
    metrics: Sequence[MetricLike]
    explain_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    data_source: str = ""
    columns: str = ""


def evaluate_file(
    explainer: Explainer,
    examples: Examples,
    experiment: Experiment,
    folder: Path,
    *,
    partition: tuple[int, int] = (0, 1),
) -> tuple[Evaluation, list[Failure]]:
    """Evaluate ``examples`` part by part into ``folder``; finished parts are read, not repeated.

    Args:
        explainer: The model.
        examples: The texts.
        experiment: Methods, metrics and options.
        folder: Where to keep the parts.
        partition: ``(i, n)`` computes only every n-th part, starting with the i-th, so that n processes can
            share a folder.

    Returns:
        The evaluation of all parts that are finished, and the failures.

    Raises:
        BadInput: A setting is wrong for every text, or the folder belongs to another run.
    """
    metrics = build_metrics(experiment.metrics)
    _check_experiment(explainer, examples, experiment, metrics)
    settings = _describe_settings(explainer, examples, experiment)
    claim_folder("an evaluation", Folder(str(folder)), "settings.json", settings)

    settings_digest = digest_values(sorted(settings.items()))

    def load_or_compute_part(start: int, part: Examples) -> Sequence[Mapping[str, Any]] | None:
        """Return the entries of a part; None if another process computes it."""
        path = _part_path(folder, start)
        manifest = _make_manifest(settings_digest, start, start + len(part))
        entries = _read_part(path, manifest)
        is_assigned = start // PART_SIZE % partition[1] == partition[0]
        if entries is None and is_assigned:
            part_entries = _compute_part(explainer, part, experiment, metrics, start)
            write_part(path, part_entries, manifest)
            entries = read_part(path, manifest)
        return entries

    records: list[Record] = []
    failures: list[Failure] = []
    with progress_bar("evaluating", len(examples)) as advance:
        for start in range(0, len(examples), PART_SIZE):
            part = examples[start : start + PART_SIZE]
            entries = load_or_compute_part(start, part)
            if entries is None:
                continue
            part_records, part_failures = _parse_entries(entries)
            records += part_records
            failures += part_failures
            advance(len(part))

    # Names are shortened for the whole run, not part by part.
    renamed_records, renamed_failures = shorten_method_names(records, failures)
    evaluation = Evaluation(
        records=renamed_records,
        metrics=metrics,
        seed=experiment.seed,
        document_frequencies=load_document_frequencies(explainer.tokenizer, metrics),
        failures=renamed_failures,
        metadata=_describe_for_report(experiment, settings),
        replacement_ids=find_replacements(explainer),
    )
    return evaluation, list(renamed_failures)


def _check_experiment(
    explainer: Explainer,
    examples: Examples,
    experiment: Experiment,
    metrics: Mapping[str, Metric],
) -> None:
    """Raise before any work for settings that are wrong for every text."""
    check_declarations([method for method in experiment.methods if isinstance(method, Method)])
    check_metrics(metrics.values(), explainer.runner.head, examples)
    _check_labels(explainer, examples)
    # A row of token ids may come from another tokenizer, so no sample text stands for it.
    has_token_rows = any(isinstance(example.text, TokenRow) for example in examples)
    if not has_token_rows:
        try_target(explainer, experiment.explain_options.get("target", "predicted"))


def _parse_entries(entries: Sequence[Mapping[str, Any]]) -> tuple[list[Record], list[Failure]]:
    """Return the records and failures of a part; each entry is one or the other."""
    records = []
    failures = []
    for entry in entries:
        if "record" in entry:
            records.append(Record.from_dict(entry["record"]))
        if "refused" in entry:
            failures.append(Failure.from_dict(entry["refused"]))
    return records, failures


def _check_labels(explainer: Explainer, examples: Examples) -> None:
    """Raise for an unknown label now, not in the last part; the message names its row."""
    for index, example in enumerate(examples):
        try:
            parse_labels([example.label], explainer.runner.head)
        except TokenlightError as error:
            location = example.location or f"text {index} (counted from 0)"
            raise type(error)(f"{location}: {error}", code=error.code) from error


def _describe_for_report(experiment: Experiment, settings: Mapping[str, str]) -> dict[str, str]:
    facts = {"data": Path(experiment.data_source).name, "columns": experiment.columns, **settings}
    return {name: facts[name] for name in REPORTED_SETTINGS if facts[name]}


def _part_path(folder: Path, start: int) -> Path:
    return folder / "parts" / f"{start:08d}.jsonl"


def _make_manifest(settings_digest: str, start: int, stop: int) -> dict[str, Any]:
    """Return what a finished part must declare to belong to this run."""
    return {"settings": settings_digest, "texts": [start, stop]}


def count_finished_texts(folder: Path) -> int:
    """Return the number of texts in finished parts."""
    count = 0
    for path in sorted((folder / "parts").glob("*.jsonl")):
        if _read_part(path, {}) is not None:
            start, stop = read_manifest(path, {})["texts"]
            count += stop - start
    return count


def check_evaluation(folder: Path) -> FolderCheck:
    """Check every part of an evaluation against its checksum, and whether its results exist.

    Raises:
        DamagedFile: The folder has no readable settings.
    """
    with DamagedFile.reraise_as(
        f"{folder}/settings.json is damaged (",
        *(OSError, ValueError, KeyError, TypeError, AttributeError),
        suffix="). Delete this file and run the command again to continue with what is finished.",
        code="damaged-settings",
    ):
        settings = read_json(folder / "settings.json")
        settings_digest = digest_values(sorted(settings.items()))
        num_texts = int(settings["texts"])
        part_size = int(settings["shard"])
        starts = range(0, num_texts, part_size)
    check = FolderCheck(len(starts))
    for start in starts:
        stop = min(start + part_size, num_texts)
        check.add_part(_part_path(folder, start), _make_manifest(settings_digest, start, stop))
    check.add_products(folder, ("summary.json", "rows.parquet", "report.html"))
    return check


def _read_part(path: Path, manifest: Mapping[str, Any]) -> list[Any] | None:
    """Return the entries of a finished part; None if it is missing or damaged, to be computed again."""
    try:
        return read_part(path, manifest)
    except DamagedFile:
        return None


def _compute_part(
    explainer: Explainer,
    part: Examples,
    experiment: Experiment,
    metrics: dict[str, Any],
    first_index: int,
) -> Iterator[dict[str, Any]]:
    """Yield the failures, then the records of a part, with indices of the whole file."""
    attributions, explain_failures = explain_part(explainer, part, experiment)
    records, measure_failures = measure_part(explainer, part, attributions, metrics)
    for failure in (*explain_failures, *measure_failures):
        yield {"refused": {**failure.to_dict(), "text": failure.text_index + first_index}}
    for record in records:
        yield {"record": {**record.to_dict(), "text": record.text_index + first_index}}


def _describe_settings(
    explainer: Explainer, examples: Examples, experiment: Experiment
) -> dict[str, str]:
    """Return all that determines the numbers; a run continues only if every entry is equal."""
    head = explainer.runner.head
    # The vocabulary of a language model is part of the tokenizer's digest.
    labels = "" if head.is_language_model else ", ".join(head.labels)
    options = {"target": "predicted", "long": "error", **experiment.explain_options}
    described_options = {}
    for name, value in sorted(options.items()):
        if name != "seed":
            described_options[name] = _describe_option(value)
    explain_seed = options.get("seed", experiment.seed)
    methods = _list_specs(experiment.methods)
    metrics = _list_specs(experiment.metrics)
    file_options = [spec_options for _, spec_options in (*methods, *metrics)]
    texts = [example.text for example in examples]
    annotations = [(example.label, example.spans) for example in examples]
    versions = [f"{name} {version}" for name, version in get_library_versions().items()]
    return {
        "model": explainer.name,
        "weights": digest_weights(explainer),
        "tokenizer": digest_tokenizer(explainer.tokenizer),
        "labels": labels,
        "longest text": str(explainer.max_tokens),
        "pooling": str(explainer.runner.pooling),
        "files": digest_files(file_options),
        "methods": ", ".join(format_spec(*spec) for spec in methods),
        "metrics": ", ".join(format_spec(*spec) for spec in metrics),
        **described_options,
        "seed": str(experiment.seed),
        "seed of explanations": str(explain_seed),
        "texts": str(len(examples)),
        "words of the texts": digest_values(texts),
        "true labels and marks": digest_values(annotations),
        "shard": str(PART_SIZE),  # the name that settings.json has always had
        "versions": ", ".join(versions),
    }


def _list_specs(components: Sequence[Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return methods or metrics, given as names, (name, options) pairs or objects, as pairs."""
    specs = []
    for component in components:
        if isinstance(component, tuple):
            specs.append(component)
        else:
            specs.append((str(component), getattr(component, "options", {})))
    return specs


def _describe_option(value: Any) -> str:
    """Return an option as text; the index 1 differs from a label that is named "1"."""
    return f"number {value}" if isinstance(value, int) else str(value)


def explain_part(
    explainer: Explainer, examples: Examples, experiment: Experiment
) -> tuple[dict[int, list[Attribution]], list[Failure]]:
    """Explain all texts with all methods; where that fails, text by text and method by method.

    Returns:
        The explanations by the index of their text, and the failures.
    """
    options = {"seed": experiment.seed, "progress": False, **experiment.explain_options}

    def explain(methods: Sequence[MethodLike], texts: Examples) -> list[list[Attribution]]:
        text_options = options
        if options.get("target") == LABEL_TARGET:
            text_options = options | {"target": [example.true_target for example in texts]}
        # Examples carry their columns, which their explanations keep.
        return explain_by_text(explainer, texts, list(methods), text_options)

    # No exception is kept here: it would hold tensors of the failed pass while its text is tried again.
    attributions = _drop_exceptions(
        isolate_failures(partial(explain, experiment.methods), list(examples), Exception)
    )
    # Try failed texts again, one method at a time, to find out which method fails.
    failures: list[Failure] = []
    for i, example in enumerate(examples):
        if attributions[i]:
            continue
        for method in experiment.methods:
            try:
                (explained,) = retry_on_oom(partial(explain, [method], [example]))
                if not explained:
                    raise BadInput(
                        "The text has nothing to explain. Leave it out.", code="nothing-to-explain"
                    )
                attributions[i] += explained
            except Exception as error:  # noqa: BLE001 - one bad text must not stop the others
                name = describe_requested_method(explainer, method, options["seed"])
                failures.append(Failure(i, name, describe_error(error)))
    return attributions, failures


def _drop_exceptions(
    results: Sequence[list[Attribution] | Exception],
) -> dict[int, list[Attribution]]:
    """Return the explanations by index, with an empty list in place of an exception."""
    attributions = {}
    for i, result in enumerate(results):
        attributions[i] = [] if isinstance(result, Exception) else result
    return attributions


def describe_requested_method(explainer: Explainer, method: MethodLike, seed: int) -> str:
    """Return the name that explanations of a method will have: the method with its options."""
    try:
        (built,) = resolve_methods(explainer, [method], seed)
    except TokenlightError:
        # It fails on every text, and is reported as it was requested.
        return format_spec(*method) if isinstance(method, tuple) else str(method)
    return format_spec(built.name, built.options)


def explain_by_text(
    explainer: Explainer,
    texts: Sequence[Any],
    methods: list[MethodLike],
    options: Mapping[str, Any],
) -> list[list[Attribution]]:
    """Return the explanations of each text."""
    results = explainer.explain_texts(list(texts), methods, **options)
    return [result.attributions for result in results]


def measure_part(
    explainer: Explainer,
    examples: Examples,
    attributions: Mapping[int, list[Attribution]],
    metrics: Mapping[str, Metric],
    *,
    batch_tokens: int | None = None,
) -> tuple[list[Record], list[Failure]]:
    """Measure all explanations; where that fails, the texts are tried in halves.

    Args:
        explainer: The model.
        examples: The texts.
        attributions: Explanations by the index of their text.
        metrics: Metrics by key.
        batch_tokens: Limit of tokens in one batch.

    Returns:
        One record per explanation, and the failures.
    """

    def measure_or_retry(text_indices: Sequence[int]) -> list[list[Record]]:
        measure_all = partial(
            _measure_texts, explainer, examples, attributions, metrics, batch_tokens, text_indices
        )
        # Several texts that do not fit into memory are divided; only a single one is tried again.
        if len(text_indices) == 1:
            return retry_on_oom(measure_all)
        return measure_all()

    # Texts without explanations are failures already.
    text_indices = [i for i in range(len(examples)) if attributions.get(i)]
    results = isolate_failures(measure_or_retry, text_indices, Exception)
    records: list[Record] = []
    failures: list[Failure] = []
    for i, result in zip(text_indices, results, strict=True):
        if isinstance(result, Exception):
            for name in dict.fromkeys(map(describe_method, attributions[i])):
                failures.append(
                    Failure(
                        text_index=i, method=name, reason=describe_error(result), stage="measured"
                    )
                )
        else:
            records += result
    return records, failures


def _measure_texts(
    explainer: Explainer,
    examples: Examples,
    attributions: Mapping[int, list[Attribution]],
    metrics: Mapping[str, Metric],
    batch_tokens: int | None,
    text_indices: Sequence[int],
) -> list[list[Record]]:
    """Return the records of each text."""
    labels = parse_labels([examples[i].label for i in text_indices], explainer.runner.head)
    spans_by_text = None
    # Parse spans only if a metric needs them: others may be invalid and do no harm.
    if any(metric.needs_spans for metric in metrics.values()):
        rows = [attributions[i][0].row for i in text_indices]
        spans = parse_spans([examples[i].spans for i in text_indices], rows)
        spans_by_text = dict(zip(text_indices, spans, strict=True))
    flat_attributions: list[Attribution] = []
    flat_indices: list[int] = []
    for i in text_indices:
        flat_attributions += attributions[i]
        flat_indices += [i] * len(attributions[i])
    records = measure(
        explainer,
        flat_attributions,
        metrics,
        flat_indices,
        labels=dict(zip(text_indices, labels, strict=True)),
        spans=spans_by_text,
        batch_tokens=batch_tokens,
        progress=False,
    )
    groups = groupby(records, key=lambda record: record.text_index)
    return [list(text_records) for _, text_records in groups]


def retry_on_oom(work: Callable[[], T]) -> T:
    """Call ``work``; if the device is out of memory, wait and call it again."""
    for delay in RETRY_DELAYS_SECONDS:
        try:
            return work()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the except block, so that the tensors of the failed pass are already freed.
        torch.cuda.empty_cache()
        time.sleep(delay)
    return work()
