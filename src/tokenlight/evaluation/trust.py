"""Trust: can one explanation be believed? A removal test against chance, and checks of its health."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from tokenlight import registry
from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.data.attribution import Attribution
from tokenlight.data.image import OCCLUDED_ID
from tokenlight.data.tokens import TokenRow
from tokenlight.data.trust import UNTESTED, compute_digests
from tokenlight.errors import TokenlightError
from tokenlight.errors.arguments import Count, Seed, check_items, checked
from tokenlight.evaluation.measure import MULTI_PASS_EXTRAS, check_same_model
from tokenlight.evaluation.random_partial_texts import NUM_TOP_WORDS, ORDER_BLOCKS
from tokenlight.evaluation.removal_test import RemovalTest
from tokenlight.explainer import Explainer

CONSERVATION_TOLERANCE = 1e-3  # share of the relevance that may be lost or created unreported
# Largest change of a score in a batch that rounding explains, relative to the largest score. Coarser
# arithmetic than float32, such as half precision or TF32, explains more.
BATCH_TOLERANCE = 1e-4
COARSE_BATCH_TOLERANCE = 5e-2
NUM_PADDING_TOKENS = 8  # by which the other text in that batch is longer

# An explanation once more, the error that prevented it, or None if it was not repeated.
Repeated = Attribution | TokenlightError | None


class HealthCheck(NamedTuple):
    """The outcome of one check.

    Attributes:
        check: Name of the check.
        state: ``good``, ``doubtful`` or ``bad``.
        finding: The finding as a sentence.
    """

    check: str
    state: str
    finding: str

    def to_dict(self) -> dict[str, str]:
        """Return the check under the names that files and the page have."""
        return {"check": self.check, "state": self.state, "finding": self.finding}


@checked
def assess_trust(
    explainer: Explainer,
    attribution: Attribution,
    *,
    max_orders: Count = ORDER_BLOCKS[-1],
    num_top_words: Count = NUM_TOP_WORDS,
    seed: Seed = 0,
    repeat: bool = True,
) -> Attribution:
    """Test whether one explanation can be believed.

    Args:
        explainer: The model that was explained.
        attribution: The explanation to test.
        max_orders: The most random orders of the words to compare it with; a clear case needs fewer. With
            less than three the grade is at best "cannot tell".
        num_top_words: Number of words that are removed together; of a long text a tenth, of a short one at
            most a third.
        seed: Seed of the random orders.
        repeat: Whether to explain the text once more in a batch with a longer one, to see that other texts
            in a batch do not change its scores.

    Returns:
        The same explanation with ``extras["trust"]``: JSON values with the ``grade``, the ``verdict`` in
        words, the numbers behind them, and the ``health`` checks; ``read_trust`` returns them as a
        dataclass. A model without probabilities is not tested, and the verdict says so.

    Raises:
        BadInput: The explanation was made with another model.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.trust import assess_trust
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> attribution = explainer.explain("A warm and funny film, never dull.", "attcat")
        >>> trust = assess_trust(explainer, attribution).extras["trust"]
        >>> trust["top_words"]
        ['warm', 'funny', 'never']
    """
    removal_test = RemovalTest(explainer, seed, max_orders, num_top_words)
    repeated = _repeat_in_batch(explainer, [attribution])[0] if repeat else None
    return _assess(removal_test, attribution, repeated)


@checked
def assess_trust_of_all(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    *,
    seed: Seed = 0,
    advance: Callable[[int], None] | None = None,
) -> list[Attribution]:
    """Test several explanations; see :func:`assess_trust`.

    Explanations of one text are compared with the same random partial texts, which go through the model once.
    Pass them text by text, as ``explain()`` returns them.

    Args:
        explainer: The model that was explained.
        attributions: The explanations to test.
        seed: Seed of the random orders.
        advance: Called with 1 after each explanation, to report progress.

    Returns:
        The explanations in order, each with ``extras["trust"]``.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.trust import assess_trust_of_all
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> attributions = explainer.explain("A warm and funny film, never dull.", ["attcat", "random"])
        >>> [a.extras["trust"]["top_words"][0] for a in assess_trust_of_all(explainer, attributions)]
        ['warm', 'never']
    """
    check_items("attributions", attributions, Attribution)
    removal_test = RemovalTest(explainer, seed)
    assessed = []
    for _, group in groupby(attributions, lambda a: (a.row.fingerprint, a.target, a.seed)):
        explanations = list(group)
        if len(explanations) > 1:
            removal_test.prefetch(explanations)
        repeats = _repeat_in_batch(explainer, explanations)
        for attribution, repeated in zip(explanations, repeats, strict=True):
            assessed.append(_assess(removal_test, attribution, repeated))
            if advance is not None:
                advance(1)
    return assessed


def _assess(removal_test: RemovalTest, attribution: Attribution, repeated: Repeated) -> Attribution:
    check_same_model(removal_test.explainer, attribution)
    checks = _run_health_checks(removal_test.explainer, attribution, repeated)
    try:
        result = removal_test(attribution)
    except TokenlightError as error:
        result = {"verdict": f"not tested: {error}", "grade": UNTESTED}
    health_line = " · ".join(check["finding"] for check in checks)
    digests = compute_digests(attribution)
    trust = {**result, "health": checks, "health_line": health_line, "digests": digests}
    return replace(attribution, extras={**attribution.extras, "trust": trust})


def run_health_checks(
    explainer: Explainer, attribution: Attribution, *, repeat: bool
) -> list[dict[str, str]]:
    """Check an explanation for technical faults.

    Args:
        explainer: The model that was explained.
        attribution: The explanation to check.
        repeat: Whether to explain the text again in a batch with a longer one.

    Returns:
        One dict with ``check``, ``state`` and ``finding`` for each check: conservation (if the method
        conserves relevance), batch (if ``repeat``), truncation, and ties.
    """
    repeated = _repeat_in_batch(explainer, [attribution])[0] if repeat else None
    return _run_health_checks(explainer, attribution, repeated)


def _run_health_checks(
    explainer: Explainer, attribution: Attribution, repeated: Repeated
) -> list[dict[str, str]]:
    checks = [
        _check_conservation(attribution),
        _check_batch_invariance(explainer, attribution, repeated),
        _check_truncation(attribution),
        _check_ties(attribution),
    ]
    return [check.to_dict() for check in checks if check is not None]


def _check_conservation(attribution: Attribution) -> HealthCheck | None:
    """Check that relevance is conserved from layer to layer, if the method recorded it."""
    kept_shares: Any = attribution.extras.get("conservation")
    if not isinstance(kept_shares, list) or not kept_shares:
        return None
    # The layer in which most relevance is lost or created.
    worst = max(kept_shares, key=lambda share: abs(share - 1))
    if abs(worst - 1) <= CONSERVATION_TOLERANCE:
        return HealthCheck("conservation", "good", "relevance conserved")
    finding = f"{worst:.3f} of the relevance kept; biases and the softmax absorb or add the rest"
    return HealthCheck("conservation", "doubtful", finding)


def _check_truncation(attribution: Attribution) -> HealthCheck:
    num_truncated = attribution.row.num_truncated
    if not num_truncated:
        return HealthCheck("truncation", "good", "nothing cut off")
    num_tokens = num_truncated + len(attribution)
    return HealthCheck("truncation", "doubtful", f"{num_truncated} of {num_tokens} tokens cut off")


def _check_ties(attribution: Attribution) -> HealthCheck:
    """Count tokens that share their score with another: their order is arbitrary."""
    is_special = np.array(attribution.row.special_tokens_mask, dtype=bool)
    scores = attribution.scores[~is_special]
    _, counts = np.unique(scores, return_counts=True)
    num_tied = int(counts[counts > 1].sum())
    if not num_tied:
        return HealthCheck("ties", "good", "no ties")
    if len(counts) == 1:
        return HealthCheck("ties", "bad", "all scores are equal")
    return HealthCheck("ties", "doubtful", f"{num_tied} of {len(scores)} tokens tie with another")


def _repeat_in_batch(explainer: Explainer, attributions: Sequence[Attribution]) -> list[Repeated]:
    """Explain a text again in a batch with a longer one, by all methods that can be repeated, in one call.

    Args:
        explainer: The model that was explained.
        attributions: Explanations of one text for one target with one seed.

    Returns:
        For each explanation its repetition, the error that prevented it, or None if it cannot be repeated in
        one batch, or only slowly.
    """
    repeats: list[Repeated] = [None] * len(attributions)
    indices = [i for i, attribution in enumerate(attributions) if _can_repeat(attribution)]
    if not indices:
        return repeats
    try:
        repeated = _explain_beside_neighbor(explainer, [attributions[i] for i in indices])
    except TokenlightError as error:
        if len(attributions) == 1:
            return [error]
        # One method may fail alone.
        return [_repeat_in_batch(explainer, [attribution])[0] for attribution in attributions]
    for i, attribution in zip(indices, repeated, strict=True):
        repeats[i] = attribution
    return repeats


def _explain_beside_neighbor(
    explainer: Explainer, attributions: Sequence[Attribution]
) -> list[Attribution]:
    first = attributions[0]
    row = first.row
    neighbor_target: Any = explainer.runner.head.default_target
    if row.continuation_ids:
        neighbor_target = first.target
    explained = explainer.explain(
        [row, _make_longer_neighbor(explainer, row)],
        method=[(attribution.method, dict(attribution.options)) for attribution in attributions],
        target=[first.target, neighbor_target],
        seed=first.seed,
        progress=False,
    )
    return list(explained[: len(attributions)])


def _check_batch_invariance(
    explainer: Explainer, attribution: Attribution, repeated: Repeated
) -> HealthCheck | None:
    """Compare with the same explanation in a batch with a longer text: padding must not change its scores."""
    if repeated is None:
        return None
    if isinstance(repeated, TokenlightError):
        return HealthCheck("batch", "doubtful", f"could not be repeated ({repeated})")
    # Compare relative to the largest score: scores have no common scale.
    largest_score = float(np.abs(attribution.scores).max()) or 1.0
    largest_change = float(np.abs(repeated.scores - attribution.scores).max())
    relative_change = largest_change / largest_score
    tolerance = BATCH_TOLERANCE
    eps = compute_rounding_eps(explainer.runner.device, explainer.runner.dtype)
    if eps > torch.finfo(torch.float32).eps:
        tolerance = COARSE_BATCH_TOLERANCE
    if relative_change <= tolerance:
        return HealthCheck("batch", "good", "same alone and in a batch")
    finding = f"changes by {100 * relative_change:.2g} % when batched with another text"
    return HealthCheck("batch", "bad", finding)


def _can_repeat(attribution: Attribution) -> bool:
    """Return whether one forward pass of a known, fast method gives these scores."""
    if not registry.is_available("methods", attribution.method):
        return False
    has_several_passes = not attribution.extras.keys().isdisjoint({"windows", *MULTI_PASS_EXTRAS})
    if attribution.steps or has_several_passes:
        return False
    return not registry.load_class("methods", attribution.method).slow


def _make_longer_neighbor(explainer: Explainer, row: TokenRow) -> TokenRow:
    """Make a longer row, so that the text itself is padded; an image gets every other patch occluded."""
    if row.image is not None:
        occluded = set(row.image.get_positions(len(row))[::2])
        ids = list(row.ids)
        for position in occluded:
            ids[position] = OCCLUDED_ID
        return replace(row, ids=tuple(ids))
    # An encoder-decoder keeps its source: only the part after it is repeated.
    source_length = row.source_length or 0
    repeated = range(source_length, len(row))[:NUM_PADDING_TOKENS]
    positions = [*range(len(row)), *repeated]
    max_length = source_length + (explainer.max_tokens or 2 * len(row))
    return row.take(positions[: max(len(row), max_length)])
