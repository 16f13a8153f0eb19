"""One call of evaluate(): check its arguments, measure every explanation, return an Evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenlight import registry
from tokenlight.data.attribution import METHOD_CLASS, METHOD_CODE, Attribution
from tokenlight.errors import BadInput, MissingExtra, short_repr
from tokenlight.evaluation.corpus import DocumentFrequencies
from tokenlight.evaluation.measure import find_text_indices, measure
from tokenlight.evaluation.measurement_records import shorten_method_names
from tokenlight.evaluation.preflight import parse_labels, parse_spans
from tokenlight.evaluation.replacement_tokens import find_replacements
from tokenlight.evaluation.results import Evaluation
from tokenlight.metrics.base import Metric

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

MetricLike = str | tuple[str, dict[str, Any]] | Metric


def evaluate_attributions(  # noqa: PLR0913 - the keywords users set, each by name
    explainer: Explainer,
    attributions: Attribution | Iterable[Attribution],
    metrics: MetricLike | Sequence[MetricLike] = ("aopc", "lodds"),
    *,
    labels: Sequence[str | int | None] | None = None,
    spans: Sequence[Any] | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Measure explanations; :meth:`tokenlight.Explainer.evaluate` is the same as a method.

    Args:
        explainer: The model that was explained.
        attributions: The output of ``explain()``, grouped by text.
        metrics: Names, (name, options) pairs, or metrics.
        labels: The true label of each text, by name or index; None where it is not known.
        spans: Annotated spans of each text: (start, end), a list of these, or None.
        seed: Seed of the intervals.
        batch_tokens: Limit of tokens in one batch.
        progress: Whether to show a progress bar; None decides by the terminal.

    Returns:
        One record per explanation, with means and intervals over texts.

    Raises:
        BadInput: An argument does not fit, or a metric needs labels or spans that are missing.
        MissingExtra: scipy, which computes the intervals, is not installed.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.evaluation.evaluate import evaluate_attributions
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> attribution = explainer.explain("A warm and funny film.", "attcat")
        >>> evaluate_attributions(explainer, attribution, "aopc").rows[0]["method"]
        'attcat'
    """
    MissingExtra.check_installed(
        ["scipy"], "bench", "An evaluation, which computes confidence intervals,"
    )
    # Check the arguments and build the metrics.
    attribution_list = _list_attributions(attributions)
    refuse_shared_names(attribution_list)
    built_metrics = build_metrics(metrics)
    text_indices = find_text_indices(attribution_list)
    num_texts = text_indices[-1] + 1
    _check_one_per_text("labels", labels, num_texts)
    _check_one_per_text("spans", spans, num_texts)
    # Parse what is known of the texts.
    label_indices = None if labels is None else parse_labels(labels, explainer.runner.head)
    parsed_spans = None
    if spans is not None:
        # The first row of each text stands for the text.
        rows: dict[int, Any] = {}
        for text_index, attribution in zip(text_indices, attribution_list, strict=True):
            rows.setdefault(text_index, attribution.row)
        parsed_spans = parse_spans(spans, list(rows.values()))
    # Measure, and name the methods.
    measured = measure(
        explainer,
        attribution_list,
        built_metrics,
        text_indices,
        labels=label_indices,
        spans=parsed_spans,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    records, _ = shorten_method_names(measured)
    frequencies = load_document_frequencies(explainer.tokenizer, built_metrics)
    replacement_ids = find_replacements(explainer)
    return Evaluation(
        records=records,
        metrics=built_metrics,
        seed=seed,
        document_frequencies=frequencies,
        replacement_ids=replacement_ids,
    )


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a single number of an array or tensor."""
    return getattr(value, "shape", None) == ()


def _list_attributions(attributions: Any) -> list[Attribution]:
    attribution_list: list[Any] = [attributions]
    is_iterable = isinstance(attributions, Iterable) and not isinstance(attributions, str)
    if is_iterable and not _is_scalar(attributions):
        attribution_list = list(attributions)
    if not attribution_list or not all(
        isinstance(attribution, Attribution) for attribution in attribution_list
    ):
        raise BadInput(
            f"{short_repr(attributions)} cannot be evaluated. Give what explain() returned.",
            code="not-attributions",
        )
    return attribution_list


def _check_one_per_text(name: str, values: Any, num_texts: int) -> None:
    """Raise unless ``values`` is None or a list with one entry per text."""
    if values is None:
        return
    is_list = hasattr(values, "__len__") and not isinstance(values, str) and not _is_scalar(values)
    if not is_list:
        raise BadInput(
            f"{name}={short_repr(values)} is not a list. Give one entry per text.",
            code="not-one-per-text",
        )
    if len(values) != num_texts:
        raise BadInput(
            f"{len(values)} {name} were given for {num_texts} texts. Give one per text, with the "
            "explanations in the order of explain(): text by text.",
            code="wrong-number-per-text",
        )


def refuse_shared_names(attributions: Iterable[Attribution]) -> None:
    """Raise if explanations of two different methods have the same name: they would be counted as one."""
    classes: dict[str, Any] = {}
    codes: dict[str, Any] = {}
    for attribution in attributions:
        name = attribution.method
        method_class = attribution.extras.get(METHOD_CLASS)
        other_class = classes.setdefault(name, method_class)
        if method_class != other_class:
            unnamed = "a registered or imported method"
            raise BadInput(
                f"Explanations by {other_class or unnamed} and by {method_class or unnamed} have the "
                f"same name, {name!r}, so their numbers would be counted as one method's. Rename one of "
                "the classes and explain again, or evaluate them separately.",
                code="shared-method-name",
            )
        code = attribution.extras.get(METHOD_CODE)
        if codes.setdefault(name, code) != code:
            raise BadInput(
                f"Explanations by two versions of {method_class} have the same name, {name!r}, so their "
                "numbers would be counted as one method's. Rename the class, or explain again what the "
                "older version explained.",
                code="two-versions-of-method",
            )


def build_metrics(metrics: MetricLike | Sequence[MetricLike]) -> dict[str, Metric]:
    """Build metrics from names, (name, options) pairs, or metrics.

    Returns:
        Metrics by name, or by name and options where one name is given several times.

    Raises:
        BadInput: No metric is given, or one is given twice.
    """
    built = []
    for entry in _list_metrics(metrics):
        if isinstance(entry, Metric):
            built.append(entry)
        else:
            name, options = registry.resolve_spec("metrics", entry)
            built.append(registry.build("metrics", name, options))
    if not built:
        raise BadInput(
            f"No metric was given. Choose from {', '.join(registry.list_names('metrics'))}.",
            code="no-metric",
        )
    # Options are part of the key only where they tell two variants apart.
    counts = Counter(metric.name for metric in built)
    by_key: dict[str, Metric] = {}
    for metric in built:
        key = metric.display_name if counts[metric.name] > 1 else metric.name
        if key in by_key:
            raise BadInput(
                f"The metric {key} was given twice. Leave one out.", code="metric-given-twice"
            )
        by_key[key] = metric
    return by_key


def _list_metrics(metrics: Any) -> list[Any]:
    """Return a list of names, pairs or metrics, from one of them or from several."""
    is_single = isinstance(metrics, str | Metric) or not isinstance(metrics, Iterable)
    is_pair = isinstance(metrics, tuple) and len(metrics) == 2 and isinstance(metrics[1], Mapping)
    if is_single or is_pair or _is_scalar(metrics):
        return [metrics]
    return list(metrics)


def load_document_frequencies(
    tokenizer: Any, metrics: Mapping[str, Metric]
) -> dict[str, DocumentFrequencies]:
    """Load the corpus of each metric that names one, with counts by token id.

    The option ``corpus`` of a metric names a file of texts, or of frequencies that ``tokenlight idf`` wrote.
    """
    loaded = {}
    for key, metric in metrics.items():
        corpus = getattr(metric, "corpus", None)
        if corpus is None:
            continue
        frequencies = DocumentFrequencies.from_file(corpus, tokenizer)
        ids = tokenizer.convert_tokens_to_ids(list(frequencies.counts))
        counts = dict(zip(ids, frequencies.counts.values(), strict=True))
        loaded[key] = DocumentFrequencies(frequencies.num_documents, counts)
    return loaded
