"""A list of texts explained into one report: the page on which it is filtered, sorted and exported."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.true_label import name_label
from tokenlight.errors import BadInput, TokenlightError, join_first
from tokenlight.plots.dataset_report import DataSetReport
from tokenlight.web import tasks
from tokenlight.web.api_errors import ApiError, to_api_error
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import ServedModel
from tokenlight.web.requests import ExplainBody, TextsBody

FIRST_PAGE = "report.html"
MAX_LISTED_ERRORS = 5
# The page brings a policy with the digest of its script; in a sandbox it cannot reach this server.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "sandbox allow-scripts allow-downloads"
)


def write_report(
    served_model: ServedModel, body: TextsBody, limits: ServerLimits
) -> tuple[dict[str, bytes], int]:
    """Explain every text and write the report.

    Args:
        served_model: The model.
        body: The request.
        limits: How much it may ask for.

    Returns:
        The pages of the report by name, and the number of texts that were explained.

    Raises:
        ApiError: No text could be explained, or all of them together cost too much.
        BadInput: The model has none of the labels.
    """
    labels = _name_labels(served_model, body.labels)
    report = DataSetReport(f"{len(body.texts)} texts")
    errors: list[str] = []
    first_error: Exception | None = None
    for index, result in enumerate(_explain_texts(served_model, body, limits)):
        if isinstance(result, Exception):
            first_error = first_error or result
            message = to_api_error(result).to_dict()["error"]["message"]
            errors.append(f"line {index + 1}: {message}")
            continue
        attributions = result.attributions
        if body.trust:
            attributions = tuple(_assess(served_model, item, limits) for item in attributions)
        report.add(_add_origin(attributions, index, labels))
    num_explained = len(body.texts) - len(errors)
    if first_error is not None and not num_explained:
        raise first_error
    if errors:
        listed = "; ".join(errors[:MAX_LISTED_ERRORS])
        report.metadata["left out"] = f"{len(errors)} of {len(body.texts)} texts ({listed})"
    pages = {name: content.encode("utf-8") for name, content in report.render_pages(FIRST_PAGE)}
    return pages, num_explained


def _name_labels(
    served_model: ServedModel, labels: Sequence[str | None] | None
) -> Sequence[str | None] | None:
    """Return the true labels as the model names them; a number stands for the label with that index.

    Raises:
        BadInput: The model has none of the labels, so that every text would count as an error.
    """
    head = served_model.explainer.runner.head
    if labels is None or not head.has_classes:
        return labels
    named = [
        name_label(int(label) if label is not None and label.isdecimal() else label, head.labels)
        for label in labels
    ]
    true_labels = {label for label in named if label is not None}
    if true_labels and not true_labels & set(head.labels):
        raise BadInput(
            f"No label of the texts is one of the model's: they are {join_first(sorted(true_labels), 5)}, "
            f"but the model predicts {join_first(head.labels, 5)}. Name the labels as the model does.",
            code="report-labels-unknown",
        )
    return named


def _explain_texts(
    served_model: ServedModel, body: TextsBody, limits: ServerLimits
) -> Iterator[tasks.ExplainResult | Exception]:
    """Yield the result or the error of each text, in order."""
    field = served_model.accepted_inputs[0][0]
    requests: list[tasks.ExplainRequest] = []
    for text in body.texts:
        fields = {field: text, "method": body.method, "seed": body.seed, "long": "truncate"}
        explain_body = ExplainBody.model_validate(fields)
        requests.append(tasks.ExplainRequest.from_body(explain_body, served_model))
    trust_orders = tasks.TRUST_ORDERS[0] if body.trust else 0
    tasks.check_evaluation_cost(
        served_model, requests, [], limits.evaluation_token_passes, trust_orders
    )
    for start in range(0, len(requests), limits.batch_texts):
        batch = requests[start : start + limits.batch_texts]
        yield from tasks.explain_batch(served_model, batch, limits.explain_token_passes)


def _assess(
    served_model: ServedModel, attribution: Attribution, limits: ServerLimits
) -> Attribution:
    """Test an explanation; one that cannot be tested stays without a grade."""
    try:
        return tasks.compute_trust(served_model, attribution, limits)
    except (TokenlightError, ApiError):
        return attribution


def _add_origin(
    attributions: Sequence[Attribution], index: int, labels: Sequence[str | None] | None
) -> list[Attribution]:
    """Add the line and the true label of a text to its explanations."""
    line_number = index + 1
    extras: dict[str, Any] = {
        "location": f"line {line_number} of the list",
        "row_number": line_number,
    }
    if labels is not None and labels[index] is not None:
        extras["label"] = str(labels[index])
    return [replace(item, extras={**item.extras, **extras}) for item in attributions]
