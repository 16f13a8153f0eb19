"""The removal test: compare one explanation with chance, under every removal, and grade it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.grade import (
    BETTER_THAN_CHANCE,
    DEFAULT_THRESHOLDS,
    INCONCLUSIVE,
    UNTESTED,
    RemovalResult,
    assign_grade,
    is_decided,
)
from tokenlight.evaluation.measure import check_single_window, check_token_scores
from tokenlight.evaluation.random_subtexts import (
    NUM_REMOVED_WORDS,
    ORDER_BLOCKS,
    RandomSubtexts,
    RemovalEvidence,
    limit_orders,
    rank_all_removals,
)
from tokenlight.evaluation.removal import LogitsCache, TargetProbability, list_removals
from tokenlight.evaluation.verdict import (
    RemovedUnits,
    describe_cancellation,
    describe_ceiling,
    describe_floor,
    describe_result,
    describe_ties,
    list_findings,
)
from tokenlight.explainer import Explainer
from tokenlight.metrics._perturbation import target_probability
from tokenlight.metrics.base import check_has_probabilities
from tokenlight.perturb.engine import Variant

# Number of the random stream of a text, which differs from those that methods draw from.
RANDOM_STREAM = 34
# Below this probability a target cannot lose enough to be seen; the next token of a language model is rarely
# as likely as a class.
MIN_INITIAL_PROBABILITY = 0.05
MIN_INITIAL_TOKEN_PROBABILITY = 0.01
# A change that a person would notice; half of the probability, if that is less.
MIN_PROBABILITY_CHANGE = 0.05
MAX_TIED_SHARE = 0.5  # of the tokens
# Whole words are removed: of scores that cancel within a word, the test sees only the rest.
MAX_CANCELLED_SHARE = 0.5  # of the total absolute score


class RemovalTest:
    """Test explanations of one model against chance.

    The random subtexts of the current text are kept, for each target. Testing an explanation of another
    text discards them, so pass explanations text by text.

    Args:
        explainer: The model that made the explanations.
        seed: Seed of the random subtexts.
        max_orders: The most random orders to try; a clear grade needs fewer.
        num_top_words: Words that are removed at once.
    """

    def __init__(
        self,
        explainer: Explainer,
        seed: int = 0,
        max_orders: int = ORDER_BLOCKS[-1],
        num_top_words: int = NUM_REMOVED_WORDS,
    ) -> None:
        self.explainer = explainer
        self.seed = seed
        self.max_orders = max_orders
        self.num_top_words = num_top_words
        self.text_fingerprint = ""
        self.logits_cache: LogitsCache = {}
        self.subtexts: dict[ResolvedTarget, RandomSubtexts] = {}

    def get_subtexts(self, attribution: Attribution) -> RandomSubtexts:
        """Return the random subtexts for this text and target, prepared on first use."""
        row = attribution.row
        target = attribution.target
        if row.fingerprint != self.text_fingerprint:
            self.text_fingerprint = row.fingerprint
            self.logits_cache = {}
            self.subtexts = {}
        if target not in self.subtexts:
            probability = TargetProbability(self.explainer, attribution, self.logits_cache)
            generator = row.make_generator(self.seed, RANDOM_STREAM)
            removals = list_removals(self.explainer, row, probability.words, generator)
            self.subtexts[target] = RandomSubtexts(
                probability, removals, generator, self.num_top_words, self.max_orders
            )
        return self.subtexts[target]

    def prefetch(self, attributions: Sequence[Attribution]) -> None:
        """Run all subtexts that the first look at these explanations needs, packed together.

        Args:
            attributions: Explanations of one text for one target.
        """
        try:
            check_has_probabilities(self.explainer._runner.head, "The removal test")
            subtexts = self.get_subtexts(attributions[0])
            if len(subtexts.words) > 1:
                all_scores = [attribution.scores for attribution in attributions]
                subtexts.prefetch(all_scores, min(ORDER_BLOCKS[0], self.max_orders))
        except TokenlightError:
            # Each explanation is tested alone, and its verdict gives the reason.
            return

    def __call__(self, attribution: Attribution) -> dict[str, Any]:
        """Return the results, the grade and the verdict as JSON values."""
        check_has_probabilities(self.explainer._runner.head, "The removal test")
        check_token_scores(attribution)
        if "windows" not in attribution.extras:
            check_single_window(self.explainer, attribution, "The removal test")
        units = RemovedUnits.of_attribution(attribution)
        probability = TargetProbability(self.explainer, attribution, {})
        positions = probability.removable_positions
        num_tied = count_tied(attribution.scores[positions])
        if len(probability.words) < 2:
            return _untested("the text has one word, so there is nothing to rank")
        if num_tied == len(positions):
            return _untested(describe_ties(units, num_tied, num_tied))
        floor = self._min_initial_probability(attribution)
        before = self._read_probability(attribution)
        if before is None or before >= floor:
            subtexts = self.get_subtexts(attribution)
            evidence = self._collect_evidence(subtexts, attribution.scores)
            before = subtexts.before
        if before < floor:
            return _untested(describe_floor(units, before)) | {"before": before}
        result = self._summarize(attribution, subtexts, evidence)
        weakness = ""
        if num_tied > MAX_TIED_SHARE * len(positions):
            weakness = describe_ties(units, num_tied, len(positions))
        elif _cancelled_share(attribution.scores, subtexts.words) > MAX_CANCELLED_SHARE:
            weakness = describe_cancellation(units)
        return self._grade(result, evidence, units, weakness)

    def _grade(
        self,
        result: dict[str, Any],
        evidence: list[RemovalEvidence],
        units: RemovedUnits,
        weakness: str,
    ) -> dict[str, Any]:
        """Add the grade, the verdict and the findings; with a ``weakness`` the tests cannot tell."""
        before = result["before"]
        min_change = _min_change(before)
        if result["moved"] < min_change:
            verdict = describe_ceiling(units, before, result["moved"])
            return result | {"verdict": verdict, "grade": UNTESTED}
        results = [RemovalResult.of_evidence(item, min_change) for item in evidence]
        num_words = result["words"]
        grade, judgments = assign_grade(results, result["joint_rank"], result["special"], num_words)
        has_little_on_words = result["special"] > DEFAULT_THRESHOLDS.max_special_share
        if weakness:
            grade = INCONCLUSIVE
        elif num_words < DEFAULT_THRESHOLDS.min_words:
            weakness = f"one text of {num_words} words is too short for a verdict"
        elif grade == BETTER_THAN_CHANCE and has_little_on_words:
            weakness = "most of its total score falls on special tokens"
        result |= {"grade": grade, "judgements": judgments, "weak": weakness}
        result["verdict"] = describe_result(result, judgments, units, weakness)
        result["findings"] = list_findings(result, units)
        return result

    def _min_initial_probability(self, attribution: Attribution) -> float:
        if self.explainer._runner.head.is_language_model or attribution.target.kind == "answer":
            return MIN_INITIAL_TOKEN_PROBABILITY
        return MIN_INITIAL_PROBABILITY

    def _read_probability(self, attribution: Attribution) -> float | None:
        """Return the probability of a class from the logits of the explanation; None if a pass is needed."""
        has_class_logits = attribution.target.kind == "class" and attribution.logits.ndim == 1
        if not has_class_logits or not attribution.logits.size or "windows" in attribution.extras:
            return None
        variant = Variant.from_row(attribution.row)
        head = self.explainer._runner.head
        return target_probability(head, attribution.target, variant, attribution.logits)

    def _collect_evidence(
        self, subtexts: RandomSubtexts, scores: np.ndarray
    ) -> list[RemovalEvidence]:
        """Compare with more and more random orders until the grade is clear."""
        evidence: list[RemovalEvidence] = []
        max_orders = limit_orders(len(subtexts.words), self.max_orders)
        for num_orders in (*ORDER_BLOCKS, max_orders):
            if num_orders > max_orders:
                continue
            evidence = subtexts.measure(scores, num_orders)
            min_change = _min_change(subtexts.before)
            results = [RemovalResult.of_evidence(item, min_change) for item in evidence]
            is_short = len(subtexts.words) < DEFAULT_THRESHOLDS.min_words
            if is_short or is_decided(results, rank_all_removals(evidence)):
                break
        return evidence

    def _summarize(
        self, attribution: Attribution, subtexts: RandomSubtexts, evidence: list[RemovalEvidence]
    ) -> dict[str, Any]:
        """Return the numbers of all removals as JSON values."""
        word_scores = subtexts.sum_words(attribution.scores)
        top = subtexts.rank_words(word_scores)[: subtexts.num_top_words]
        row = attribution.row
        names = [row.extract_text(subtexts.words[i].tolist()).strip() for i in top]
        return {
            "removals": [item.to_dict() for item in evidence],
            "top_words": names,
            "words": len(subtexts.words),
            "orders": len(evidence[0].random),
            "before": subtexts.before,
            "after": float(evidence[0].curve[1]),
            "joint_rank": round(rank_all_removals(evidence), 4),
            "special": _special_token_share(attribution),
            "moved": max(subtexts.max_change, *(item.largest_fall for item in evidence)),
        }


def _min_change(before: float) -> float:
    """Return the smallest change that counts, of a probability that is ``before`` in the whole text."""
    return min(MIN_PROBABILITY_CHANGE, before / 2)


def _untested(verdict: str) -> dict[str, Any]:
    return {"verdict": verdict, "grade": UNTESTED}


def count_tied(scores: np.ndarray) -> int:
    """Return the size of the largest group of equal scores, if it has more than one.

    Tokens are counted and not words: tokens with equal scores make words with different sums.
    """
    if not len(scores):
        return 0
    tolerance = 1e-12 * float(np.abs(scores).max())
    ordered = np.sort(scores)
    group_ids = np.concatenate([[0], np.cumsum(np.diff(ordered) > tolerance)])
    largest = int(np.bincount(group_ids).max())
    return largest if largest > 1 else 0


def _cancelled_share(scores: np.ndarray, words: Sequence[np.ndarray]) -> float:
    """Return the share of the total absolute score that tokens of one word cancel among themselves."""
    total = sum(float(np.abs(scores[positions]).sum()) for positions in words)
    left = sum(abs(float(scores[positions].sum())) for positions in words)
    return 1.0 - left / total if total else 0.0


def _special_token_share(attribution: Attribution) -> float:
    """Return the share of the total absolute score on special tokens, which have no segment."""
    share = 0.0
    for segment_share in attribution.segment_shares():
        if segment_share.segment is None:
            share += segment_share.share
    return share
