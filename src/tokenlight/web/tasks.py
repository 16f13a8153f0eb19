"""Tasks of a worker: explain a batch of requests, test, evaluate, and read attention.

Requests that ask for the same methods share their passes through the model. Longer work pauses between
its passes, so that the worker can answer others.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Continuation
from tokenlight.data.tokens import LongTextPolicy, TokenRow
from tokenlight.errors import BadInput, TokenlightError, describe_error
from tokenlight.evaluation.evaluate import build_metrics
from tokenlight.evaluation.measure import check_requirements, measure
from tokenlight.evaluation.measurement_records import Failure, Record, shorten_method_names
from tokenlight.evaluation.partial_text_statistics import RandomPoint
from tokenlight.evaluation.preflight import parse_labels, try_explaining
from tokenlight.evaluation.random_partial_texts import NUM_EXPLANATION_DRAWS
from tokenlight.evaluation.removal_evidence import RemovedWords
from tokenlight.evaluation.replacement_tokens import find_replacements
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.trust import assess_trust
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.input_rows import encode_input
from tokenlight.explaining.windows import OVERLAP_SHARE, exceeds_max_tokens
from tokenlight.inputs.encode import encode_windows
from tokenlight.inputs.prompt import Context
from tokenlight.methods.base import Method
from tokenlight.metrics.base import Metric
from tokenlight.registry import format_spec
from tokenlight.trace.randomization import list_stages
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site
from tokenlight.web.api_errors import ApiError, check_cost_limit, strip_paths, to_api_error
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import ServedModel
from tokenlight.web.options import count_token_passes, is_slow, parse_allowed_spec
from tokenlight.web.requests import AttentionBody, EvaluateBody, ExplainBody

# Tokens per pass of lengthy work; others wait until a pass has ended.
LONG_WORK_BATCH_TOKENS = 512
# Random orders of the trust test, the more reliable first.
TRUST_ORDERS = (5, 3)
# The most partial texts of a trust test. Words are deleted, masked or replaced by likely words, and a random
# order gives its partial texts under each of these removals.
PASSES_PER_TRUST_ORDER = 3 * len(RandomPoint)
# The explanation chooses partial texts of its own: once deleted, once masked, and replaced by each of a few
# draws. Whatever the orders, the whole text and the text without any word are run, too.
TRUST_PASSES_BESIDE_ORDERS = len(RemovedWords) * (2 + NUM_EXPLANATION_DRAWS) + 2


@dataclass(frozen=True, eq=False)
class ExplainRequest:
    """A checked request to explain one input.

    Args:
        explain_input: Input, as ``explain()`` takes it.
        methods: Methods by the names under which they were requested.
        target: Target, as ``explain()`` takes it.
        options: Further keywords of ``explain()``; always with ``long``.
        batch_key: Equal for requests that can share a pass.
    """

    explain_input: Any
    methods: dict[str, Method]
    target: Any
    options: dict[str, Any]
    batch_key: str

    @classmethod
    def from_body(cls, body: ExplainBody, served_model: ServedModel) -> "ExplainRequest":
        """Check methods and options before the request is queued; duplicate methods count once.

        Args:
            body: The body of a request.
            served_model: The model that it asks.
        """
        model = served_model.explainer.runner.model
        specs: dict[str, Any] = {}
        methods: dict[str, Method] = {}
        explain_input = served_model.format_documents(body.explain_input)
        for name in served_model.resolve_methods(body.method, explain_input):
            specs[name] = parse_allowed_spec("methods", name, served_model.head_map)
            methods[name] = Method.build_for_model(*specs[name], seed=body.seed, model=model)
        options = {"long": body.long, "seed": body.seed, "progress": False}
        batch_key = json.dumps([specs, body.seed], default=str)
        return cls(explain_input, methods, body.explain_target, options, batch_key)

    @property
    def is_lengthy(self) -> bool:
        """Whether it takes too many passes for others to wait for all of them."""
        if self.options["long"] == "stride" or isinstance(self.target, Continuation):
            return True
        return any(map(is_slow, self.methods.values()))


@dataclass(frozen=True, eq=False)
class ExplainResult:
    """Attributions in the order of the methods, and the methods that failed, each with its error."""

    attributions: tuple[Attribution, ...]
    failures: tuple[tuple[str, ApiError], ...] = ()


def count_targets(target: Any, served_model: ServedModel) -> int:
    """Return how many targets a requested one stands for.

    "all" of a language model counts as one: it is refused when the target is resolved.

    Args:
        target: The target of a request.
        served_model: The model, whose labels ``all`` stands for.
    """
    head = served_model.explainer.runner.head
    if isinstance(target, Continuation) and not target.joint:
        return target.max_new_tokens
    if target == "all" and not head.is_language_model:
        return len(head.labels) or 1
    return 1


def explain_batch(
    served_model: ServedModel, requests: Sequence[ExplainRequest], max_cost: int
) -> list[ExplainResult | Exception]:
    """Explain several requests; an error of one does not affect the others.

    Args:
        served_model: The model.
        requests: The requests.
        max_cost: The most tokens of each request, each counted once per pass.

    Returns:
        A result or an error per request.
    """
    answers: dict[int, ExplainResult | Exception] = {}
    groups: dict[str, dict[int, Any]] = {}  # batch key → request index → prepared input
    for index, request in enumerate(requests):
        try:
            prepared_input = _prepare_input(served_model, request, max_cost)
        except (TokenlightError, ApiError) as error:
            answers[index] = error
        else:
            groups.setdefault(request.batch_key, {})[index] = prepared_input
    for inputs_by_index in groups.values():
        group = {index: requests[index] for index in inputs_by_index}
        # If one input of the group fails, each is explained by itself below.
        with suppress(TokenlightError):
            answers |= _explain_together(served_model, group, inputs_by_index)
        for index in inputs_by_index.keys() - answers.keys():
            result = _explain_by_method(served_model, requests[index], inputs_by_index[index])
            if result.attributions:
                answers[index] = result
            else:
                _, answers[index] = result.failures[0]
    return [answers[index] for index in range(len(requests))]


def explain_alone(
    served_model: ServedModel, request: ExplainRequest, max_cost: int
) -> ExplainResult:
    """Explain one lengthy request, method by method and in small passes.

    Args:
        served_model: The model.
        request: A request that takes too many passes to share a batch with others.
        max_cost: The most tokens, each counted once per pass.
    """
    prepared_input = _prepare_input(served_model, request, max_cost)
    return _explain_by_method(
        served_model, request, prepared_input, batch_tokens=LONG_WORK_BATCH_TOKENS
    )


def encode_row(served_model: ServedModel, explain_input: Any, long: LongTextPolicy) -> TokenRow:
    """Return an input as the row of tokens that the model reads.

    Args:
        served_model: The model.
        explain_input: The text, pair, question or picture of a request.
        long: What happens to a text that is longer than the model reads.
    """
    options = ExplainOptions(
        methods=(),
        explain_mask="none",
        token_types="tokenizer",
        long=long,
        seed=0,
        batch_tokens=1,
        progress=False,
    )
    return encode_input(served_model.explainer, explain_input, options)


def _prepare_input(served_model: ServedModel, request: ExplainRequest, max_cost: int) -> Any:
    """Check the cost of a request; return what ``explain()`` is called with.

    That is the encoded row, unless the text is split into windows or an answer is written behind it.
    """
    long = request.options["long"]
    uses_windows = long == "stride"
    row = encode_row(served_model, request.explain_input, "truncate" if uses_windows else long)
    window_lengths = [len(row)]
    if uses_windows and exceeds_max_tokens(served_model.explainer, request.explain_input):
        window_lengths = _count_window_tokens(served_model, request.explain_input)
    check_cost(request, served_model, window_lengths, max_cost)
    is_written = isinstance(request.target, Continuation)
    if uses_windows or is_written or isinstance(request.explain_input, Context):
        return request.explain_input
    return row


def _count_window_tokens(served_model: ServedModel, explain_input: Any) -> list[int]:
    """Return the number of tokens of each window that is explained."""
    explainer = served_model.explainer
    max_tokens = explainer.max_tokens
    assert max_tokens is not None
    overlap = int(max_tokens * OVERLAP_SHARE)
    windows = encode_windows(
        explain_input, explainer.tokenizer, max_tokens=max_tokens, overlap=overlap
    )
    lengths = [len(row) for row, _ in windows]
    if served_model.task == "span":
        # All windows of a question are read, but only the one with the answer is explained.
        return lengths[:1]
    return lengths


def check_cost(
    request: ExplainRequest,
    served_model: ServedModel,
    window_lengths: Sequence[int],
    max_cost: int,
) -> None:
    """Refuse a request that would take this machine minutes.

    Args:
        request: The request.
        served_model: The model.
        window_lengths: Number of tokens of each window.
        max_cost: The most tokens, each counted once per pass.
    """
    num_targets = count_targets(request.target, served_model)
    cost = 0
    for num_tokens in window_lengths:
        cost += count_token_passes(request.methods.values(), num_tokens, num_targets)
    if isinstance(request.target, Continuation) and request.target.text is None:
        # Each method writes the answer first, token by token.
        cost += request.target.max_new_tokens * len(request.methods) * sum(window_lengths)
    # One forward and backward pass is served whatever the length of the text.
    single_pass = 3 * max(window_lengths) * len(request.methods)
    check_cost_limit(
        cost, max(max_cost, single_pass), "a shorter text, fewer samples, targets or methods"
    )


def _explain_together(
    served_model: ServedModel, requests: Mapping[int, ExplainRequest], inputs: Mapping[int, Any]
) -> dict[int, ExplainResult]:
    """Explain requests with the same methods in one call.

    Returns:
        A result per request, by its index.
    """
    first = next(iter(requests.values()))
    methods = list(first.methods.values())
    targets = [request.target for request in requests.values()]
    text_results = served_model.explainer.explain_texts(
        list(inputs.values()), methods, targets, **first.options
    )
    results: dict[int, ExplainResult] = {}
    for index, text_result in zip(requests, text_results, strict=True):
        results[index] = ExplainResult(tuple(text_result.attributions))
    return results


def _explain_by_method(
    served_model: ServedModel, request: ExplainRequest, prepared_input: Any, **options: Any
) -> ExplainResult:
    """Explain one request method by method: some methods may fail where others work.

    Args:
        served_model: The model.
        request: The request.
        prepared_input: Input, from :func:`_prepare_input`.
        **options: Further keywords of ``explain()``.
    """
    attributions: list[Attribution] = []
    failures: list[tuple[str, ApiError]] = []
    for name, method in request.methods.items():
        try:
            attributions += served_model.explainer.explain(
                [prepared_input], [method], [request.target], **request.options, **options
            )
        except TokenlightError as error:
            failures.append((name, to_api_error(error)))
    return ExplainResult(tuple(attributions), tuple(failures))


def count_trust_passes(num_orders: int) -> int:
    """Return the most partial texts that the trust test of one explanation runs.

    Args:
        num_orders: The most random orders that it tries.
    """
    return PASSES_PER_TRUST_ORDER * num_orders + TRUST_PASSES_BESIDE_ORDERS


def compute_trust(
    served_model: ServedModel, attribution: Attribution, limits: ServerLimits
) -> Attribution:
    """Return the attribution with ``extras["trust"]``; longer texts are tested with fewer random orders.

    Args:
        served_model: The model that made the explanation.
        attribution: The explanation to test.
        limits: How many passes a test may take.
    """
    num_tokens = len(attribution)
    for max_orders in TRUST_ORDERS:
        cost = num_tokens * count_trust_passes(max_orders)
        if cost <= limits.trust_token_passes:
            return assess_trust(served_model.explainer, attribution, max_orders=max_orders)
    raise ApiError(
        f"Testing a text of {num_tokens} tokens would keep this server busy for minutes.",
        code="too_costly",
        hint="Give a shorter text, or use: tokenlight explain --trust.",
    )


def evaluate(served_model: ServedModel, body: EvaluateBody, limits: ServerLimits) -> dict[str, Any]:
    """Explain and measure text by text; texts that fail are listed besides the results.

    Args:
        served_model: The model.
        body: The checked body of the request: texts, methods and metrics.
        limits: How many passes an evaluation may take.
    """
    start = time.perf_counter()
    explainer = served_model.explainer
    head = explainer.runner.head
    metrics = build_metrics([parse_allowed_spec("metrics", spec) for spec in body.metrics])
    labels = None if body.labels is None else parse_labels(body.labels, head)
    check_requirements(metrics.values(), head, has_labels=labels is not None, has_spans=False)
    requests = _build_evaluation_requests(served_model, body)
    max_cost = limits.evaluation_token_passes
    check_evaluation_cost(served_model, requests, list(metrics.values()), max_cost)
    measured = _measure_texts(served_model, requests, metrics, labels, limits)
    if not measured.records:
        first_error = measured.refused[0]["error"]
        raise ApiError(first_error["message"], code=first_error["code"], hint=first_error["hint"])
    named_records, named_failures = shorten_method_names(measured.records, measured.failures)
    evaluation = Evaluation(
        named_records,
        metrics,
        body.seed,
        failures=named_failures,
        replacement_ids=find_replacements(explainer),
    )
    return {
        "model": served_model.name,
        **evaluation.to_dict(),
        "rows": evaluation.rows,
        "refused": measured.refused,
        "table": evaluation.format_table(),
        "seconds": round(time.perf_counter() - start, 3),
    }


class _MeasuredTexts(NamedTuple):
    """What was measured, what failed, and the failures as the page shows them."""

    records: list[Record]
    failures: list[Failure]
    refused: list[dict[str, Any]]


def _measure_texts(
    served_model: ServedModel,
    requests: Sequence[ExplainRequest],
    metrics: dict[str, Metric],
    labels: Sequence[int | None] | None,
    limits: ServerLimits,
) -> _MeasuredTexts:
    """Explain and measure each text."""
    records: list[Record] = []
    failures: list[Failure] = []
    refused: list[dict[str, Any]] = []
    for text_index, request in enumerate(requests):
        result = _explain_for_evaluation(served_model, request, limits)
        for name, error in result.failures:
            method = request.methods[name]
            refused.append({"text": text_index, "method": name, **error.to_dict()})
            full_name = format_spec(method.name, method.options)
            failures.append(Failure(text_index, full_name, refused[-1]["error"]["message"]))
        text_indices = [text_index] * len(result.attributions)
        records += measure(
            served_model.explainer,
            result.attributions,
            metrics,
            text_indices,
            labels=labels,
            progress=False,
        )
    return _MeasuredTexts(records, failures, refused)


def _build_evaluation_requests(
    served_model: ServedModel, body: EvaluateBody
) -> list[ExplainRequest]:
    """Return a request to explain per text of an evaluation."""
    options = {**body.model_dump(include={"method", "target", "seed"}), "long": "truncate"}
    requests: list[ExplainRequest] = []
    for text in body.input_bodies:
        explain_body = ExplainBody.model_validate({**text.model_dump(), **options})
        requests.append(ExplainRequest.from_body(explain_body, served_model))
    return requests


def _explain_for_evaluation(
    served_model: ServedModel, request: ExplainRequest, limits: ServerLimits
) -> ExplainResult:
    """Explain one text; if it fails as a whole, every method has failed."""
    try:
        return explain_alone(served_model, request, limits.evaluation_token_passes)
    except (TokenlightError, ApiError) as error:
        api_error = to_api_error(error)
        return ExplainResult((), tuple((name, api_error) for name in request.methods))


def check_evaluation_cost(
    served_model: ServedModel,
    requests: Sequence[ExplainRequest],
    metrics: list[Metric],
    max_cost: int,
    trust_orders: int = 0,
) -> None:
    """Count every explanation, the extra ones that metrics need, and the perturbed texts.

    Args:
        served_model: The model.
        requests: The texts to explain.
        metrics: The metrics to measure.
        max_cost: The most tokens, each counted once per pass.
        trust_orders: Random orders of the trust test of each explanation; 0 without a test.
    """
    runner = served_model.explainer.runner
    extra_counts = {"randomized": len(list_stages(runner)), "classes": len(runner.head.labels)}
    num_perturbed = count_trust_passes(trust_orders) if trust_orders else 0
    num_extra = 0
    for metric in metrics:
        if metric.needs_model:
            num_perturbed += len(metric.curve_points) + 1
        num_extra += extra_counts.get(metric.extra_explanations, 0)
    cost = 0
    for request in requests:
        num_targets = count_targets(request.target, served_model)
        with suppress(TokenlightError):  # reported with the text when it is explained
            num_tokens = len(encode_row(served_model, request.explain_input, "truncate"))
            num_explanations = num_targets * (1 + num_extra)
            cost += count_token_passes(request.methods.values(), num_tokens, num_explanations)
            cost += num_tokens * num_perturbed * len(request.methods) * num_targets
    check_cost_limit(cost, max_cost, "fewer or shorter texts, methods or metrics")


def compute_attention_map(
    served_model: ServedModel, body: AttentionBody, limits: ServerLimits
) -> dict[str, Any]:
    """Return the attention map of one head, or the mean over a layer's heads: ``query key``.

    Args:
        served_model: The model.
        body: The checked body of the request: the text, the layer and the head.
        limits: How long the text may be.
    """
    row = encode_row(served_model, served_model.format_documents(body.explain_input), "error")
    if len(row) > limits.attention_tokens:
        raise ApiError(
            f"A map of {len(row)} × {len(row)} tokens is too large for the page.",
            code="too_costly",
            hint=f"Give a text of at most {limits.attention_tokens} tokens.",
        )
    runner = served_model.explainer.runner
    runner.verify(row, reads_attention=True)
    maps = record(runner, [row], frozenset({Site.ATTENTION})).attention
    num_layers = len(maps)
    num_heads = int(maps[0].shape[1])  # ``batch head query key``
    if body.layer >= num_layers or (body.head is not None and body.head >= num_heads):
        raise BadInput(
            f"Layer {body.layer}, head {body.head} does not exist. This model has layers 0 to "
            f"{num_layers - 1} with heads 0 to {num_heads - 1}.",
            code="head-missing",
        )
    head_maps = maps[body.layer][0].detach()
    weights = head_maps.mean(dim=0) if body.head is None else head_maps[body.head]
    return {
        "model": served_model.name,
        "layer": body.layer,
        "head": body.head,
        "tokens": list(row.surface_forms),
        "special": list(row.special_tokens_mask),
        "weights": weights.double().cpu().numpy().round(6).tolist(),
    }


def try_method(served_model: ServedModel, name: str) -> None:
    """Try one method on a short text, as ``tokenlight doctor`` does, and remember the result.

    Args:
        served_model: The model.
        name: The name of a method.
    """
    error, seconds = try_explaining(served_model.explainer, name)
    reason: str | None = None
    if error is not None:
        reason = strip_paths(describe_error(error))
    served_model.trial_results[name] = {
        "is_supported": error is None,
        "reason": reason,
        "milliseconds": round(1000 * seconds),
    }
