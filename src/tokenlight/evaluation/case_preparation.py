"""Prepare what a metric needs of each text before it can measure.

Some metrics compare an explanation with further ones, made with the same method, options and steps: for all
classes, or of the model with randomized weights. Others search for the best and worst value that any
explanation of the text could have. All texts are explained or searched together, in batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from tokenlight import registry
from tokenlight.data import postprocess
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import TargetLike
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.explainer import Explainer
from tokenlight.explaining.streams import isolate_failures
from tokenlight.metrics.base import Bounds, Case, Metric, Search, VariantOutputs
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Variant
from tokenlight.registry import format_spec
from tokenlight.trace.randomization import randomize_cascade

_REPEATABLE_STEPS = ("absolute", "l1_normalise", "max_normalise", "without_special")
MAX_CACHED_SEARCHES = 100_000  # results kept for one explainer
SearchKey = tuple[str, str, str, bytes]  # metric, fingerprint of the text, target, logits
ExtraAttributions = list[Attribution] | TokenlightError


def describe_method(attribution: Attribution) -> str:
    """Return the method with its options and steps: equal for explanations made the same way."""
    spec = format_spec(attribution.method, attribution.options)
    return " | ".join((spec, *attribution.steps))


def complete_cases(
    explainer: Explainer, cases: Sequence[Case], metric: Metric, batch_tokens: int | None
) -> Sequence[Case | TokenlightError]:
    """Add to each case the bounds or the further explanations that ``metric`` needs.

    Args:
        explainer: The model under test.
        cases: The explanations to measure.
        metric: The metric to prepare for.
        batch_tokens: Limit of tokens in one batch.

    Returns:
        Each completed case in order, or the error that prevented it.
    """
    if metric.has_search:
        return _add_bounds(explainer, cases, metric, batch_tokens)
    if metric.extra_explanations == "classes":
        return _add_attributions(cases, [_explain_again(explainer, cases, "all")])
    if metric.extra_explanations == "randomized":
        rounds = [_explain_again(other, cases) for other in _randomize(explainer, metric)]
        return _add_attributions(cases, rounds)
    return cases


def _randomize(explainer: Explainer, metric: Metric) -> Iterator[Explainer]:
    """Yield the explainer with more and more of its weights randomized, from the head down."""
    runner = explainer.runner
    options: dict[str, Any] = {"pooling": runner.pooling, "similarity": runner.similarity}
    for stage, model in randomize_cascade(runner, getattr(metric, "seed", 0)):
        name = f"{explainer.name}, {stage} randomized"
        yield Explainer(model, explainer.tokenizer, name=name, **options)


def _add_bounds(
    explainer: Explainer, cases: Sequence[Case], metric: Metric, batch_tokens: int | None
) -> list[Case | TokenlightError]:
    completed: list[Case | TokenlightError] = []
    bounds_per_case = _search_bounds(explainer, cases, metric, batch_tokens)
    for case, bounds in zip(cases, bounds_per_case, strict=True):
        if isinstance(bounds, TokenlightError):
            completed.append(bounds)
        else:
            completed.append(replace(case, bounds=bounds))
    return completed


def _add_attributions(
    cases: Sequence[Case], rounds: Sequence[Sequence[ExtraAttributions]]
) -> list[Case | TokenlightError]:
    """Add the explanations of all rounds to each case; the first error of a case replaces it."""
    completed: list[Case | TokenlightError] = []
    for case, *results in zip(cases, *rounds, strict=True):
        extra_attributions: list[Attribution] = []
        error = None
        for result in results:
            if isinstance(result, TokenlightError):
                error = result
                break
            extra_attributions += result
        completed.append(error or replace(case, extra_attributions=tuple(extra_attributions)))
    return completed


def _explain_again(
    explainer: Explainer, cases: Sequence[Case], target: TargetLike | None = None
) -> list[ExtraAttributions]:
    """Explain each case again with its own method, options and steps.

    Args:
        explainer: The model to explain, which may be another one than that of the cases.
        cases: The explanations to repeat.
        target: The target; by default that of each case.

    Returns:
        The explanations of each case in order, or the error that prevented them.
    """
    # Explanations made the same way are repeated in one batch.
    groups: dict[str, list[Attribution]] = {}
    for case in cases:
        groups.setdefault(describe_method(case.attribution), []).append(case.attribution)
    # An error of one explanation is isolated, so that the others of its batch are still made.
    explain_batch = partial(_explain_batch, explainer, target)
    results: dict[str, Iterator[ExtraAttributions]] = {}
    for description, attributions in groups.items():
        repeated = isolate_failures(explain_batch, attributions, TokenlightError)
        results[description] = iter(repeated)
    return [next(results[describe_method(case.attribution)]) for case in cases]


def _explain_batch(
    explainer: Explainer, target: TargetLike | None, attributions: Sequence[Attribution]
) -> list[list[Attribution]]:
    """Repeat explanations that share method, options and steps; one list per explanation."""
    first = attributions[0]
    if not registry.is_available("methods", first.method):
        raise BadInput(
            f"This metric needs further explanations by {first.method!r}, which is not a method of "
            "tokenlight. Choose a metric that needs none, or a method of tokenlight.",
            code="extra-explanations-unknown-method",
        )
    for step in first.steps:
        if step not in _REPEATABLE_STEPS:
            raise BadInput(
                f"The step {step!r} cannot be repeated on the further explanations that this metric needs. "
                "Measure the explanation before this step.",
                code="extra-explanations-step",
            )
    rows = [attribution.row for attribution in attributions]
    results = explainer.explain_texts(
        rows,
        method=[(first.method, dict(first.options))],
        target=[target or attribution.target for attribution in attributions],
        seed=first.seed,
        progress=False,
    )
    return [_repeat_steps(result.attributions, first.steps) for result in results]


def _repeat_steps(attributions: list[Attribution], steps: Sequence[str]) -> list[Attribution]:
    """Repeat the postprocessing of an explanation, in order."""
    for step in steps:
        apply_step = getattr(postprocess, step)
        attributions = [apply_step(attribution) for attribution in attributions]
    return attributions


def _make_search_key(metric: Metric, attribution: Attribution) -> SearchKey:
    # The logits tell apart a model before and after training. They are rounded, because their last
    # digits depend on the other rows of a batch.
    rounded_logits = attribution.logits.round(1).tobytes()
    target = attribution.target.name
    return metric.display_name, attribution.row.fingerprint, target, rounded_logits


def _search_bounds(
    explainer: Explainer, cases: Sequence[Case], metric: Metric, batch_tokens: int | None
) -> list[Bounds | TokenlightError]:
    """Run the search of a metric for each case, once for all explanations of a text and target."""
    results: dict[SearchKey, Bounds | TokenlightError] = explainer.facts.search_bounds
    if len(results) > MAX_CACHED_SEARCHES:
        results.clear()
    # Explanations of the same text and target share a key, and with it a search.
    keys = [_make_search_key(metric, case.attribution) for case in cases]
    searches: dict[SearchKey, Search] = {}
    for key, case in zip(keys, cases, strict=True):
        if key not in results:
            searches[key] = metric.search(case)

    # All searches advance together, so that each round is one stream through the model. A generator is
    # started by sending None.
    outputs: dict[SearchKey, Any] = dict.fromkeys(searches)
    while outputs:
        requests: dict[SearchKey, list[Variant]] = {}
        for key, variant_outputs in outputs.items():
            try:
                requests[key] = searches[key].send(variant_outputs)
            except StopIteration as finished:
                results[key] = finished.value
            except TokenlightError as error:
                results[key] = error
        outputs = _run_requests(explainer, requests, batch_tokens)
    return [results[key] for key in keys]


def _run_requests(
    explainer: Explainer, requests: dict[SearchKey, list[Variant]], batch_tokens: int | None
) -> dict[SearchKey, VariantOutputs]:
    """Return each search's variants with their logits."""

    def iter_variants() -> Iterator[Variant]:
        for variants in requests.values():
            yield from variants

    logits = stream_logits(explainer.runner, iter_variants(), batch_tokens=batch_tokens)
    outputs: dict[SearchKey, VariantOutputs] = {}
    for key, variants in requests.items():
        outputs[key] = list(zip(variants, islice(logits, len(variants)), strict=True))
    return outputs
