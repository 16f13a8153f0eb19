"""The probability that a metric watches, read off the logits of a changed text."""

from typing import Literal

import numpy as np

from tokenlight.data.answers import log_probability, softmax
from tokenlight.data.target import Head, ResolvedTarget
from tokenlight.errors import BadInput, BadTarget, NotFinite, way
from tokenlight.metrics._metric import Answers, Case, Variant

Watched = Literal["explained", "predicted", "label"]
FOR_ONE_OUTPUT = (
    "measure its explanations with randomisation or, where a person marked what matters, with "
    "rationale or precision_at_k"
)
SMALLEST = 1e-12  # a probability below is taken as this before its logarithm


def needs_probabilities(head: Head, metric: str) -> None:
    """Refuse heads whose probability cannot fall: one output, or none."""
    if head.kind != "classification":
        return
    if head.problem == "regression":
        why = f"one output ({head.labels[0]}) and no probabilities; {FOR_ONE_OUTPUT}"
    elif head.problem == "single" and len(head.labels) == 1:
        why = (
            f"the single class {head.labels[0]!r}, whose probability is 1 whatever the text; give a "
            "model with two classes or more"
        )
    else:
        return
    raise BadTarget(f"{metric} watches a probability, but this model has {why}.")


def chances(case: Case, answers: Answers, which: Watched = "explained") -> np.ndarray:
    """The probability of the explained target, of the predicted class or of the label in each changed
    text; of a span or an answer that of the explained one."""
    target: ResolvedTarget = case.attribution.target
    if which != "explained" and target.kind != "span" and not case.attribution.row.answer:
        index = case.label if which == "label" else case.attribution.prediction.index
        if index is None:
            raise BadInput(
                "target='label' needs the true label of every text; give "
                f"{way('labels=…', '--label COLUMN')}."
            )
        target = ResolvedTarget("class", case.head.labels[index], (((index,), 1.0),))
    return np.array([chance(case.head, target, variant, logits) for variant, logits in answers])


def chance(head: Head, target: ResolvedTarget, variant: Variant, logits: np.ndarray) -> float:
    """Probability of a target in a changed text.

    Class: softmax (sigmoid where the labels do not exclude each other). Contrast: the share of the
    first class in the two. Span: the product over its sides; a deleted side has probability 0; of
    two spans in contrast the first one's share in both. Answer: the product over its tokens.
    """
    if not np.isfinite(logits).all():
        raise NotFinite("the model gives NaN or infinity for a changed text.")
    if target.kind == "span":
        return _span_chance(target, variant, logits)
    if target.kind == "answer":
        return float(np.exp(log_probability(logits[[place for (place, _), _ in target.terms]])))
    if target.kind == "contrast":
        return float(softmax(np.array([target.value(logits), 0.0]))[0])
    assert target.index is not None
    if head.problem == "multi":
        return float(softmax(np.array([logits[target.index], 0.0]))[0])
    return float(softmax(logits)[target.index])


def _span_chance(target: ResolvedTarget, variant: Variant, logits: np.ndarray) -> float:
    # A contrast's spans have weights of opposite sign; a side they share has none and says nothing.
    chances = {1: 1.0, -1: 1.0}
    for (position, side), weight in target.terms:
        if weight:
            place = variant.place_of(position)
            found = 0.0 if place is None else float(softmax(logits[:, side])[place])
            chances[1 if weight > 0 else -1] *= found
    this, that = chances.values()
    if all(weight > 0 for _, weight in target.terms):
        return this
    return this / (this + that) if this + that > 0 else 0.5
