"""``effort`` and ``stable``: which method a user gets for the forward passes they allow, and why.

Every partial text (the text without some of its words) is one sample and takes one forward pass; the whole
text takes one more.

The rules of docs/adr/0019 and 0021 chose what stands here, on held-out texts; docs/results/frontier has the
evidence. Pairs and questions, for which partial texts were not found better, and kinds of input that the
rules were not applied to keep their default method at every effort.
"""

from typing import Any, NamedTuple

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.explaining.default_method import (
    KIND_DESCRIPTIONS,
    choose_default_method,
    detect_input_kind,
    encode_probe_row,
    is_auto,
)
from tokenlight.explaining.method_support import supports_method
from tokenlight.explaining.session import Session
from tokenlight.methods.base import Method

SAMPLING_METHOD = "subset_relevance"
# What the rule chose: the number of partial texts besides the whole text; none is the default method.
EFFORT_SAMPLES = {"instant": 0, "normal": 8, "thorough": 64}
EFFORT_REASONS = {
    "normal": "ahead of attnlrp, Shapley values and integrated gradients in AOPC on the text tasks measured",
    "thorough": "slightly ahead of 8 partial texts in AOPC on most text tasks measured",
}
KINDS_NOT_IMPROVED = frozenset({"pair", "span"})  # measured, and kept as they were
MIN_SAMPLES = 2  # the fewest partial texts that were measured, and found ahead of one pass
MAX_PASSES = 1 << 20
STABLE_ROUND = 8  # partial texts between two checks of the stability
STABLE_MAX_SAMPLES = 128


def check_effort(effort: Any, stable: Any, method: Any) -> None:
    """Check ``effort`` and ``stable``, and that no method is given with them.

    Raises:
        BadInput: A value is not valid, or the two cannot hold together or with ``method``.
    """
    if effort is None and stable is None:
        return
    _check_effort_value(effort)
    _check_stable_value(stable)
    specs = method if isinstance(method, list) else [method]
    if len(specs) != 1 or not is_auto(specs[0]):
        raise BadInput(
            f"{_describe_request(effort, stable)} chooses the method, but method={method!r} is given, too. "
            "Leave out the method, or set its own options, such as method='subset_relevance:num_samples=64'.",
            code="effort-with-method",
        )
    if stable is not None and effort is not None and count_samples(effort) == 0:
        raise BadInput(
            f"stable={stable} needs partial texts to compare, but effort={effort!r} allows only one pass. "
            "Leave out the effort, or give a higher one.",
            code="stable-without-effort",
        )


def _check_effort_value(effort: Any) -> None:
    is_number = isinstance(effort, int | np.integer) and not isinstance(effort, bool)
    if effort is None or (isinstance(effort, str) and effort in EFFORT_SAMPLES):
        return
    if is_number and 1 <= effort <= MAX_PASSES:
        return
    raise BadInput(
        f"effort={effort!r} is not valid. Choose one of {', '.join(EFFORT_SAMPLES)}, or give the number of "
        f"passes, from 1 to {MAX_PASSES:,}.",
        code="effort-value",
    )


def _check_stable_value(stable: Any) -> None:
    is_number = isinstance(stable, int | float | np.number) and not isinstance(stable, bool)
    # The comparison is false for NaN.
    if stable is None or (is_number and 0 < stable <= 1):
        return
    raise BadInput(
        f"stable={stable!r} is not valid. Give the share of the top tokens that other draws would name "
        "again, such as 0.95.",
        code="stable-value",
    )


def count_samples(effort: str | int) -> int:
    """Return how many partial texts an effort allows; 0 for the one pass of the default method."""
    if isinstance(effort, str):
        return EFFORT_SAMPLES[effort]
    num_samples = int(effort) - 1  # the whole text takes one pass
    return num_samples if num_samples >= MIN_SAMPLES else 0


class ChosenMethod(NamedTuple):
    """The method for an effort, its options, and a note that says why it was chosen."""

    method: str
    options: dict[str, Any]
    note: str


def choose_by_effort(
    session: Session, effort: str | int | None, stable: float | None, example: Any
) -> ChosenMethod:
    """Choose the method for an effort.

    Args:
        session: The model, its tokenizer and its limits.
        effort: The effort, checked; None with ``stable`` alone.
        stable: The stability to reach, checked.
        example: The first input, which decides on the kind.

    Raises:
        BadInput: ``stable`` was asked for where no partial texts are drawn.
    """
    kind = detect_input_kind(session, example)
    request = _describe_request(effort, stable)
    default_name = choose_default_method(session, kind, example)
    if effort is not None and count_samples(effort) == 0:
        return ChosenMethod(default_name, {}, f"{request}: {default_name}, one pass")
    reason_against = _explain_why_not_sampled(session, kind, example)
    if reason_against is not None:
        if stable is not None:
            raise BadInput(
                f"stable={stable} draws partial texts, but {reason_against}. Leave out stable, or give "
                "method='subset_relevance:stable=0.95' to try it anyway.",
                code="stable-unsupported",
            )
        return ChosenMethod(default_name, {}, f"{request}: {default_name}, since {reason_against}")
    options, reason = _plan_sampling(effort, stable)
    return ChosenMethod(SAMPLING_METHOD, options, f"{request}: {reason}")


def list_sampling_specs(session: Session, example: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the methods that refine the default explanation of an input by more passes, the cheapest first.

    There are none for a kind of input that more passes do not improve.
    """
    kind = detect_input_kind(session, example)
    if _explain_why_not_sampled(session, kind, example) is not None:
        return []
    return [
        (SAMPLING_METHOD, {"num_samples": number}) for number in EFFORT_SAMPLES.values() if number
    ]


def _describe_request(effort: str | int | None, stable: float | None) -> str:
    parts = []
    if effort is not None:
        parts.append(f"effort={effort!r}")
    if stable is not None:
        parts.append(f"stable={float(stable):g}")
    return ", ".join(parts)


def _explain_why_not_sampled(session: Session, kind: str, example: Any) -> str | None:
    """Say why no partial texts are drawn; None if they are."""
    if kind != "text" or session.runner.head.task != "text-classification":
        input_description = KIND_DESCRIPTIONS[kind]
        if session.runner.head.task == "token-classification":
            input_description = "a labeled token"
        if kind in KINDS_NOT_IMPROVED:
            return f"more passes were not found better for {input_description}"
        return f"larger budgets were not measured for {input_description}"
    row = encode_probe_row(session, example)
    if row is not None:
        method = Method.build_for_model(SAMPLING_METHOD, {}, seed=0, model=session.runner.model)
        if not supports_method(session, method, row):
            return f"{SAMPLING_METHOD} does not support this model"
    return None


def _plan_sampling(effort: str | int | None, stable: float | None) -> tuple[dict[str, Any], str]:
    """Return the options of the method that draws partial texts, and the reason for them."""
    if stable is not None:
        max_samples = STABLE_MAX_SAMPLES if effort is None else count_samples(effort)
        options = {
            "num_samples": min(STABLE_ROUND, max_samples),
            "stable": float(stable),
            "max_samples": max_samples,
        }
        return options, (
            f"{SAMPLING_METHOD}, partial texts until {100 * float(stable):g} % of the top 5 tokens would be "
            f"named again by others, at most {max_samples}"
        )
    num_samples = count_samples(effort or "normal")
    reason = f"{SAMPLING_METHOD}, {num_samples} partial texts ({num_samples + 1} passes)"
    if effort in EFFORT_REASONS:
        reason += f", {EFFORT_REASONS[str(effort)]}"
    return {"num_samples": num_samples}, reason
