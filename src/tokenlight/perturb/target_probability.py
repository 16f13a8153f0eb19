"""The probability of a target in a perturbed text."""

import numpy as np

from tokenlight.data.head import Head
from tokenlight.data.odds import compute_target_log_odds
from tokenlight.data.probabilities import compute_continuation_log_probability, softmax
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import NotFinite
from tokenlight.perturb.variants import Variant


def compute_target_probability(
    head: Head, target: ResolvedTarget, variant: Variant, logits: np.ndarray
) -> float:
    """Compute the probability of a target in a perturbed text.

    - Class: softmax, or sigmoid if the labels do not exclude each other.
    - Token of a language model: softmax over the vocabulary, whichever alternatives it was contrasted with.
    - Contrast: the share of the first class in those that are named.
    - Span: the product of start and end; a deleted side has probability 0. For two spans in contrast, the
      share of the first in both.
    - Answer: the product over its tokens.

    Args:
        head: The meaning of the logits.
        target: The target of the unperturbed text.
        variant: The perturbed text, which knows where its tokens came from: the answer may have moved.
        logits: Its logits.

    Raises:
        NotFinite: A logit is NaN or infinite.
    """
    if not np.isfinite(logits).all():
        raise NotFinite(
            "The model returns NaN or infinity for a perturbed text. Check its weights and precision.",
            code="perturbed-logits-not-finite",
        )
    if target.kind == "span":
        return _compute_span_probability(target, variant, logits)
    if target.kind == "continuation":
        continuation_logits = logits[target.continuation_positions]
        return float(np.exp(compute_continuation_log_probability(continuation_logits)))
    # A sigmoid of a difference of logits is the softmax of that difference and 0.
    if target.kind == "contrast":
        return float(softmax(np.array([compute_target_log_odds(head, target, logits), 0.0]))[0])
    assert target.index is not None
    if head.problem_type == "multi":
        return float(softmax(np.array([logits[target.index], 0.0]))[0])
    return float(softmax(logits)[target.index])


def _compute_span_probability(
    target: ResolvedTarget, variant: Variant, logits: np.ndarray
) -> float:
    """Return the probability of a span, or of the first of two spans in contrast."""
    # The two spans of a contrast have weights of opposite sign. A side that they share has weight zero.
    positive = 1.0
    negative = 1.0
    for (original_position, side), weight in target.terms:
        if not weight:
            continue
        position = variant.find_position(original_position)
        probability = 0.0
        if position is not None:
            probability = float(softmax(logits[:, side])[position])
        if weight > 0:
            positive *= probability
        else:
            negative *= probability
    if all(weight > 0 for _, weight in target.terms):
        return positive
    # If both spans were deleted, neither is more likely.
    total = positive + negative
    return positive / total if total > 0 else 0.5
