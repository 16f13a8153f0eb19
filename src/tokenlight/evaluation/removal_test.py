"""The removal test: compare one explanation with chance, under every removal, and grade it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tokenlight import registry
from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.trust import BETTER_THAN_CHANCE, INCONCLUSIVE, UNTESTED
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.grade import (
    DEFAULT_THRESHOLDS,
    JointEvidence,
    assign_grade,
    compute_min_change,
    is_decided,
    would_pass_by_positions,
    would_pass_with_top_words_alone,
    would_pass_without_signs,
)
from tokenlight.evaluation.measure import check_single_window, check_token_scores
from tokenlight.evaluation.random_partial_texts import (
    NUM_TOP_WORDS,
    ORDER_BLOCKS,
    RandomPartialTexts,
)
from tokenlight.evaluation.removal import LogitsCache, RemovalRunner, list_removals
from tokenlight.evaluation.removal_evidence import (
    RemovalEvidence,
    RemovedWords,
    measure_rest_effect,
)
from tokenlight.evaluation.removal_results import (
    GradedRemovalTest,
    RemovalTestResult,
    SavedRemovalTest,
    UngradedRemovalTest,
    UntestedExplanation,
)
from tokenlight.evaluation.verdict import (
    RemovedUnits,
    describe_cancellation,
    describe_few_orders,
    describe_insensitive_target,
    describe_position,
    describe_rest,
    describe_result,
    describe_sign_mismatch,
    describe_ties,
    describe_unlikely_target,
    list_findings,
)
from tokenlight.explainer import Explainer
from tokenlight.metrics.base import check_has_probabilities
from tokenlight.perturb.target_probability import compute_target_probability
from tokenlight.perturb.variants import Variant

# Number of the random stream of a text, which differs from those that methods draw from.
RANDOM_STREAM = 34
# Below this probability a target cannot lose enough to be seen; the next token of a language model is rarely
# as likely as a class.
MIN_INITIAL_PROBABILITY = 0.05
MIN_INITIAL_TOKEN_PROBABILITY = 0.01
# Scores that differ by less than this many roundings of the largest one count as equal.
ROUNDING_STEPS = 64
MAX_TIED_SHARE = 0.5  # of the tokens
# Whole words are removed: of scores that cancel within a word, the test sees only the rest.
MAX_CANCELLED_SHARE = 0.5  # of the total absolute score


class RemovalTest:
    """Test explanations of one model against chance.

    The random partial texts of the current text are kept, for each target. Testing an explanation of another
    text discards them, so pass explanations text by text.

    Args:
        explainer: The model that made the explanations.
        seed: Seed of the random partial texts.
        max_orders: The most random orders to try; a clear grade needs fewer.
        num_top_words: Number of words that are removed together.
    """

    def __init__(
        self,
        explainer: Explainer,
        seed: int = 0,
        max_orders: int = ORDER_BLOCKS[-1],
        num_top_words: int = NUM_TOP_WORDS,
    ) -> None:
        self.explainer = explainer
        self.seed = seed
        self.max_orders = max_orders
        self.num_top_words = num_top_words
        self.text_fingerprint = ""
        self.logits_cache: LogitsCache = {}
        self.partial_texts: dict[ResolvedTarget, RandomPartialTexts] = {}

    def get_partial_texts(self, attribution: Attribution) -> RandomPartialTexts:
        """Return the random partial texts for this text and target, prepared on first use."""
        row = attribution.row
        target = attribution.target
        if row.fingerprint != self.text_fingerprint:
            self.text_fingerprint = row.fingerprint
            self.logits_cache = {}
            self.partial_texts = {}
        if target not in self.partial_texts:
            removal_runner = RemovalRunner(self.explainer, attribution, self.logits_cache)
            generator = row.make_generator(self.seed, RANDOM_STREAM)
            removals = list_removals(self.explainer, row, removal_runner.words, generator)
            self.partial_texts[target] = RandomPartialTexts(
                removal_runner, removals, generator, self.num_top_words, self.max_orders
            )
        return self.partial_texts[target]

    def prefetch(self, attributions: Sequence[Attribution]) -> None:
        """Run all partial texts that the first interim check of these explanations needs, packed together.

        Args:
            attributions: Explanations of one text for one target.
        """
        try:
            check_has_probabilities(self.explainer.runner.head, "The removal test")
            partial_texts = self.get_partial_texts(attributions[0])
            if len(partial_texts.words) > 1:
                all_scores = [attribution.scores for attribution in attributions]
                partial_texts.prefetch(all_scores, min(ORDER_BLOCKS[0], self.max_orders))
        except TokenlightError:
            # Each explanation is tested alone, and its verdict gives the reason.
            return

    def __call__(self, attribution: Attribution) -> RemovalTestResult:
        """Return the results, the grade and the verdict as JSON values."""
        check_has_probabilities(self.explainer.runner.head, "The removal test")
        check_token_scores(attribution)
        if "windows" not in attribution.extras:
            check_single_window(self.explainer, attribution, "The removal test")
        units = RemovedUnits.from_attribution(attribution)
        removal_runner = RemovalRunner(self.explainer, attribution, {})
        num_tokens = len(removal_runner.removable_positions)
        num_tied = self._count_tied(attribution, removal_runner.removable_positions)
        if len(removal_runner.words) < 2:
            return _make_untested_result("the text has one word, so there is nothing to rank")
        if num_tied == num_tokens:
            return _make_untested_result(describe_ties(units, num_tied, num_tokens))
        # The logits of the explanation often tell that there is nothing to test, at no cost.
        known_probability = self._read_probability(attribution)
        if known_probability is not None and self._is_unlikely(attribution, known_probability):
            return _make_unlikely_target_result(units, known_probability)
        partial_texts = self.get_partial_texts(attribution)
        evidence_by_removal = self._collect_evidence(partial_texts, attribution)
        if self._is_unlikely(attribution, partial_texts.whole_probability):
            return _make_unlikely_target_result(units, partial_texts.whole_probability)
        weakness = ""
        if num_tied > MAX_TIED_SHARE * num_tokens:
            weakness = describe_ties(units, num_tied, num_tokens)
        elif compute_cancelled_share(attribution.scores, partial_texts.words) > MAX_CANCELLED_SHARE:
            weakness = describe_cancellation(units)
        values = self._summarize(attribution, partial_texts, evidence_by_removal)
        return self._grade(
            values, self._join_evidence(attribution, evidence_by_removal), units, weakness
        )

    def _count_tied(self, attribution: Attribution, positions: Any) -> int:
        """Count the tokens that share their score, within what this device and dtype can tell apart."""
        runner = self.explainer.runner
        tolerance = compute_tie_tolerance(
            attribution, compute_rounding_eps(runner.device, runner.dtype)
        )
        return count_tied(attribution.scores[positions], tolerance)

    def _is_unlikely(self, attribution: Attribution, probability: float) -> bool:
        """Return whether the target cannot lose enough probability for a fall to be seen."""
        return probability < self._choose_min_probability(attribution)

    def _grade(
        self,
        values: SavedRemovalTest,
        joint_evidence: JointEvidence,
        units: RemovedUnits,
        weakness: str,
    ) -> GradedRemovalTest | UngradedRemovalTest:
        """Add the grade, the verdict and the findings; with a ``weakness`` the tests cannot tell."""
        if values["max_change"] < joint_evidence.min_change:
            verdict = describe_insensitive_target(units, values["before"], values["max_change"])
            return {**values, "verdict": verdict, "grade": UNTESTED}
        grade, judgments = assign_grade(joint_evidence)
        if values["num_orders"] < ORDER_BLOCKS[0]:
            weakness = weakness or describe_few_orders(values["num_orders"], ORDER_BLOCKS[0])
        if weakness:
            grade = INCONCLUSIVE
        else:
            weakness = _find_weakness(grade, joint_evidence, units)
        result: GradedRemovalTest = {
            **values,
            "grade": grade,
            "judgments": judgments,
            "weakness": weakness,
            "verdict": "",
            "findings": [],
        }
        falls = joint_evidence.find_noticeable_falls()
        result["verdict"] = describe_result(result, units, falls)
        result["findings"] = list_findings(result, units, falls, joint_evidence.points_by_test)
        return result

    def _join_evidence(
        self, attribution: Attribution, evidence_by_removal: Sequence[RemovalEvidence]
    ) -> JointEvidence:
        return JointEvidence.from_removals(
            evidence_by_removal,
            is_signed=has_signs(attribution),
            min_change=compute_min_change(evidence_by_removal[0].whole_probability),
            special_share=compute_special_share(attribution),
        )

    def _choose_min_probability(self, attribution: Attribution) -> float:
        if (
            self.explainer.runner.head.is_language_model
            or attribution.target.kind == "continuation"
        ):
            return MIN_INITIAL_TOKEN_PROBABILITY
        return MIN_INITIAL_PROBABILITY

    def _read_probability(self, attribution: Attribution) -> float | None:
        """Return the probability of a class from the logits of the explanation; None if a pass is needed."""
        has_class_logits = attribution.target.kind == "class" and attribution.logits.ndim == 1
        if not has_class_logits or not attribution.logits.size or "windows" in attribution.extras:
            return None
        variant = Variant.from_row(attribution.row)
        head = self.explainer.runner.head
        return compute_target_probability(head, attribution.target, variant, attribution.logits)

    def _collect_evidence(
        self, partial_texts: RandomPartialTexts, attribution: Attribution
    ) -> list[RemovalEvidence]:
        """Compare with more and more random orders until the grade is clear."""
        evidence_by_removal: list[RemovalEvidence] = []
        for num_orders in sorted({min(block, self.max_orders) for block in ORDER_BLOCKS}):
            evidence_by_removal = partial_texts.measure(attribution.scores, num_orders)
            if is_decided(self._join_evidence(attribution, evidence_by_removal)):
                break
        return evidence_by_removal

    def _summarize(
        self,
        attribution: Attribution,
        partial_texts: RandomPartialTexts,
        evidence_by_removal: list[RemovalEvidence],
    ) -> SavedRemovalTest:
        """Return the numbers of all removals as JSON values."""
        word_scores = partial_texts.sum_words(attribution.scores)
        top = partial_texts.rank_words(word_scores)[: partial_texts.num_top_words]
        row = attribution.row
        names = [row.extract_text(partial_texts.words[i].tolist()).strip() for i in top]
        joint_evidence = self._join_evidence(attribution, evidence_by_removal)
        zero_shift = joint_evidence.zero_shift
        top_probabilities = evidence_by_removal[0].explanation_probabilities
        falls = [max(item.top_fall, item.half_fall) for item in evidence_by_removal]
        return {
            "removals": [item.to_dict() for item in evidence_by_removal],
            "top_words": names,
            "num_words": len(partial_texts.words),
            "num_orders": len(evidence_by_removal[0].random_probabilities),
            "before": partial_texts.whole_probability,
            "after": float(top_probabilities[RemovedWords.TOP]),
            "evidence": round(joint_evidence.points, 4),
            "joint_rank": round(joint_evidence.joint_rank, 4),
            "has_signs": zero_shift is not None,
            "zero_shift": _round_finite(zero_shift),
            "rest_contrast": round(joint_evidence.rest_contrast, 4),
            "rest_effect": _round_finite(measure_rest_effect(evidence_by_removal)),
            "position_rank": round(joint_evidence.position_rank, 4),
            "special_share": joint_evidence.special_share,
            "max_change": max(partial_texts.max_change, *falls),
        }


def _find_weakness(grade: str, joint_evidence: JointEvidence, units: RemovedUnits) -> str:
    """Return why a grade is not better than it is; empty if the tests themselves say it."""
    if joint_evidence.num_words < DEFAULT_THRESHOLDS.min_words:
        return f"one text of {joint_evidence.num_words} words is too short for a verdict"
    has_little_on_words = joint_evidence.special_share > DEFAULT_THRESHOLDS.max_special_share
    if grade == BETTER_THAN_CHANCE and has_little_on_words:
        return "most of its total score falls on special tokens"
    if joint_evidence.zero_shift is not None and would_pass_without_signs(joint_evidence):
        return describe_sign_mismatch(units, joint_evidence.zero_shift)
    if would_pass_with_top_words_alone(joint_evidence):
        return describe_rest(units)
    if would_pass_by_positions(joint_evidence):
        return describe_position(units)
    return ""


def has_signs(attribution: Attribution) -> bool:
    """Return whether positive and negative scores claim different things; unknown methods do."""
    if any(step.startswith("absolute") for step in attribution.steps):
        return False
    if not registry.is_available("methods", attribution.method):
        return True
    return bool(registry.load_class("methods", attribution.method).signed)


def _round_finite(value: float | None) -> float | None:
    """Round for a file; None for infinity, which JSON does not have."""
    return None if value is None or not np.isfinite(value) else round(value, 3)


def _make_untested_result(verdict: str) -> UntestedExplanation:
    return {"verdict": verdict, "grade": UNTESTED}


def _make_unlikely_target_result(units: RemovedUnits, probability: float) -> UntestedExplanation:
    verdict = describe_unlikely_target(units, probability)
    return {"verdict": verdict, "grade": UNTESTED, "before": probability}


def compute_tie_tolerance(attribution: Attribution, eps: float) -> float:
    """Return the difference up to which two scores count as equal: rounding, or the noise of a method."""
    largest = float(np.abs(attribution.scores).max(initial=0.0))
    # Files and pictures keep single precision at best.
    precision = max(eps, torch.finfo(torch.float32).eps)
    rounding = ROUNDING_STEPS * precision * largest
    errors = attribution.standard_errors
    return rounding if errors is None else max(rounding, float(np.median(errors)))


def count_tied(scores: np.ndarray, tolerance: float) -> int:
    """Return the size of the largest group of scores within ``tolerance``, if it has more than one.

    Tokens are counted and not words: tokens with equal scores make words with different sums.
    """
    if not len(scores):
        return 0
    ordered = np.sort(scores)
    ends = np.searchsorted(ordered, ordered + tolerance, side="right")
    largest = int((ends - np.arange(len(ordered))).max())
    return largest if largest > 1 else 0


def compute_cancelled_share(scores: np.ndarray, words: Sequence[np.ndarray]) -> float:
    """Return the share of the total absolute score that tokens of one word cancel among themselves."""
    total = sum(float(np.abs(scores[positions]).sum()) for positions in words)
    remaining = sum(abs(float(scores[positions].sum())) for positions in words)
    return 1.0 - remaining / total if total else 0.0


def compute_special_share(attribution: Attribution) -> float:
    """Return the share of the total absolute score on special tokens, which have no segment."""
    share = 0.0
    for segment_share in attribution.segment_shares():
        if segment_share.segment is None:
            share += segment_share.share
    return share
