"""What the removal of words says about one explanation: its own choices of words against random ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from tokenlight.evaluation.partial_text_statistics import (
    TIE_TOLERANCE,
    RandomPoint,
    contrast_partial_texts,
    correlate_partial_texts,
    rank_beyond,
    rank_first,
)
from tokenlight.evaluation.removal import Removal
from tokenlight.evaluation.removal_results import SavedRemoval

MIN_CLIPPED_PROBABILITY = 1e-6  # probabilities are clipped to this before their log-odds
INTERVAL = (5, 95)  # percentiles of what random choices do


class RemovedWords(IntEnum):
    """The partial texts that an explanation chooses, named by what they lack."""

    # The words that it scores highest.
    TOP = 0
    # The half of the words that it scores higher.
    BETTER_HALF = 1
    # The half that it scores lower.
    OTHER_HALF = 2
    # The top words, and the lowest of the others.
    LOWEST = 3


def compute_log_odds(probabilities: Any) -> np.ndarray:
    """Return ln p / (1 − p); certainty counts as one in a million."""
    clipped = np.clip(
        np.asarray(probabilities, dtype=float), MIN_CLIPPED_PROBABILITY, 1 - MIN_CLIPPED_PROBABILITY
    )
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def invert_log_odds(log_odds: np.ndarray) -> np.ndarray:
    """Return the probability of each log-odds."""
    return np.asarray(1 / (1 + np.exp(-log_odds)))


@dataclass(frozen=True, eq=False)
class RemovalEvidence:
    """Results of one removal for one explanation.

    Attributes:
        removal: How words were removed.
        num_top_words: Number of top words.
        num_words: Number of words in the text.
        whole_probability: The probability in the whole text.
        empty_probability: The probability without any word; None where it was not measured.
        explanation_probabilities: The probabilities of the partial texts that the explanation chooses, in the
            order of :class:`RemovedWords`.
        random_probabilities: The probabilities of the random partial texts, of shape ``order point``, in the
            order of :class:`RandomPoint`.
        random_kept_sums: The sum of scores of the words that are kept in each random partial text, of shape
            ``order point``.
        explanation_removed_sums: The sum of scores of the words that are removed from each partial text that
            it chooses.
        total: The sum of the scores of all words.
        spread: The standard deviation of the scores of the words.
        all_correlations: The correlation of the sums with the log-odds, then that of each shuffle; the same
            shuffles for every removal.
        presence: Which words are left in each random partial text, of shape ``order point word``.
        shuffled_scores: The scores of the words, then the shuffled ones, of shape ``shuffle word``.
    """

    removal: Removal
    num_top_words: int
    num_words: int
    whole_probability: float
    empty_probability: float | None
    explanation_probabilities: np.ndarray
    random_probabilities: np.ndarray
    random_kept_sums: np.ndarray
    explanation_removed_sums: np.ndarray
    total: float
    spread: float
    all_correlations: np.ndarray
    presence: np.ndarray
    shuffled_scores: np.ndarray

    @property
    def num_half(self) -> int:
        """Words of half of the text."""
        return max(1, self.num_words // 2)

    @property
    def top_fall(self) -> float:
        """The fall of the probability without the top words."""
        return float(self.whole_probability - self.explanation_probabilities[RemovedWords.TOP])

    @property
    def half_fall(self) -> float:
        """The fall of the probability without the better half of the words."""
        return float(
            self.whole_probability - self.explanation_probabilities[RemovedWords.BETTER_HALF]
        )

    @property
    def share_beaten(self) -> float:
        """Share of random choices of as many words that lower the log-odds less than the top words."""
        difference = self._compare_few_with_top()
        is_beaten = difference > TIE_TOLERANCE
        is_tied = np.abs(difference) <= TIE_TOLERANCE
        return float((is_beaten + 0.5 * is_tied).mean())

    @property
    def num_stronger(self) -> int:
        """Random choices of as many words that lower the log-odds as much as the top words."""
        difference = self._compare_few_with_top()
        return int((difference <= TIE_TOLERANCE).sum())

    def _compare_few_with_top(self) -> np.ndarray:
        """Return how much higher the log-odds are without a few random words than without the top words."""
        without_few = compute_log_odds(self.random_probabilities[:, RandomPoint.FEW])
        without_top = compute_log_odds(self.explanation_probabilities[RemovedWords.TOP])
        return np.asarray(without_few - without_top)

    @property
    def half_contrast(self) -> float:
        """How much lower the log-odds are without the better half than without the other half.

        In units of the same contrast of random halves (their root mean square).
        """
        log_odds = compute_log_odds(self.explanation_probabilities)
        return (
            float(log_odds[RemovedWords.OTHER_HALF] - log_odds[RemovedWords.BETTER_HALF])
            / self.half_unit
        )

    @property
    def rest_contrast(self) -> float:
        """The contrast of the words after the top words: their better part against their lowest."""
        log_odds = compute_log_odds(self.explanation_probabilities)
        return (
            float(log_odds[RemovedWords.LOWEST] - log_odds[RemovedWords.BETTER_HALF])
            / self.half_unit
        )

    @property
    def half_unit(self) -> float:
        """How much the log-odds of random halves of one order differ (root mean square)."""
        log_odds = compute_log_odds(self.random_probabilities)
        differences = log_odds[:, RandomPoint.FIRST_HALF] - log_odds[:, RandomPoint.SECOND_HALF]
        return float(np.sqrt(np.square(differences).mean())) or 1.0

    @property
    def correlation(self) -> float:
        """Correlation of the sums of scores with the log-odds of the random partial texts."""
        return float(self.all_correlations[0])

    @property
    def correlation_rank(self) -> float:
        """Share of shuffled scores that predict the random partial texts less well."""
        return rank_first(self.all_correlations)

    @property
    def log_odds_falls(self) -> np.ndarray:
        """The fall of the log-odds in every partial text, random ones first."""
        random_log_odds = compute_log_odds(self.random_probabilities).ravel()
        explanation_log_odds = compute_log_odds(self.explanation_probabilities)
        log_odds = np.concatenate([random_log_odds, explanation_log_odds])
        return np.asarray(compute_log_odds(self.whole_probability) - log_odds)

    @property
    def removed_score_sums(self) -> np.ndarray:
        """The sum of the scores of the removed words of every partial text, random ones first."""
        random_removed_sums = self.total - self.random_kept_sums
        return np.concatenate([random_removed_sums.ravel(), self.explanation_removed_sums])

    @property
    def num_removed(self) -> np.ndarray:
        """The number of removed words of every partial text, random ones first."""
        half = self.num_half
        in_lowest = max(half, self.num_top_words)
        in_explanation = [self.num_top_words, half, half, in_lowest]
        return np.concatenate([self._num_removed_at_random, in_explanation]).astype(float)

    @property
    def _num_removed_at_random(self) -> np.ndarray:
        """The number of removed words of every random partial text."""
        of_one_order = [self.num_top_words, self.num_half, self.num_half]
        return np.tile(of_one_order, len(self.random_probabilities))

    def to_dict(self) -> SavedRemoval:
        """Return JSON values: the numbers, the curve with its random interval, and the partial texts."""
        other_half = self.explanation_probabilities[RemovedWords.OTHER_HALF]
        counts, curve = self._build_curve()
        # The intervals of what random choices do: without a few words, and without half of them.
        top_size_probabilities = self.random_probabilities[:, RandomPoint.FEW]
        half_points = [RandomPoint.FIRST_HALF, RandomPoint.SECOND_HALF]
        half_probabilities = self.random_probabilities[:, half_points].ravel()
        top_size_interval = np.percentile(top_size_probabilities, INTERVAL)
        half_interval = np.percentile(half_probabilities, INTERVAL)
        low, high = np.transpose([top_size_interval, half_interval])
        whole_log_odds = compute_log_odds(self.whole_probability)
        random_log_odds = compute_log_odds(self.random_probabilities)
        explanation_log_odds = compute_log_odds(self.explanation_probabilities)
        # The largest log-odds are the smallest falls.
        falls = whole_log_odds - np.percentile(random_log_odds[:, RandomPoint.FEW], INTERVAL[::-1])
        return {
            "removal": self.removal.name,
            "action": self.removal.action,
            "share_beaten": round(self.share_beaten, 4),
            "num_stronger": self.num_stronger,
            "half_contrast": round(self.half_contrast, 4),
            "rest_contrast": round(self.rest_contrast, 4),
            "correlation": round(self.correlation, 4),
            "correlation_rank": round(self.correlation_rank, 4),
            "counts": counts,
            "curve": curve,
            "other_half": float(f"{other_half:.4g}"),
            "random_low": _round_all(low),
            "random_high": _round_all(high),
            "log_odds_fall": round(
                float(whole_log_odds - explanation_log_odds[RemovedWords.TOP]), 4
            ),
            "log_odds_random": _round_all(falls),
            "partial_texts": {
                "sums": _round_all(self.random_kept_sums.ravel()),
                "log_odds": _round_all(random_log_odds.ravel()),
                "removed": self._num_removed_at_random.tolist(),
            },
        }

    def _build_curve(self) -> tuple[list[int], list[float]]:
        """Return how many words are removed at each point, best first, and the probability that remains."""
        top = self.explanation_probabilities[RemovedWords.TOP]
        better_half = self.explanation_probabilities[RemovedWords.BETTER_HALF]
        counts = [0, self.num_top_words, self.num_half]
        curve = [self.whole_probability, top, better_half]
        if self.empty_probability is not None:
            counts.append(self.num_words)
            curve.append(self.empty_probability)
        return counts, _round_all(np.array(curve))


def _round_all(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def build_evidence(  # noqa: PLR0913 - measured numbers, and the words that they are of
    *,
    removal: Removal,
    whole_probability: float,
    empty_probability: float | None,
    explanation_log_odds: np.ndarray,
    random_probabilities: np.ndarray,
    shuffled_scores: np.ndarray,
    explanation_choices: Sequence[np.ndarray],
    random_choices: Sequence[Sequence[np.ndarray]],
) -> RemovalEvidence:
    """Build the evidence of one removal from measured probabilities.

    Args:
        removal: How words were removed.
        whole_probability: The probability in the whole text.
        empty_probability: The probability without any word; None where it was not measured.
        explanation_log_odds: Log-odds of the partial texts that the explanation chooses, of shape ``draw
            point``.
        random_probabilities: Probabilities of the random partial texts, of shape ``order point``.
        shuffled_scores: The scores of the words, then the shuffled ones, of shape ``shuffle word``.
        explanation_choices: The removed words of the partial texts that the explanation chooses.
        random_choices: The removed words of the random partial texts, of shape ``order point``.
    """
    word_scores = shuffled_scores[0]
    presence = list_presence(random_choices, len(word_scores))
    shuffled_kept_sums = presence @ shuffled_scores.T  # order point shuffle
    removed_sums = [word_scores[chosen].sum() for chosen in explanation_choices]
    random_log_odds = compute_log_odds(random_probabilities)
    return RemovalEvidence(
        removal=removal,
        num_top_words=len(explanation_choices[RemovedWords.TOP]),
        num_words=len(word_scores),
        whole_probability=whole_probability,
        empty_probability=empty_probability,
        # Drawn replacements are averaged, in log-odds.
        explanation_probabilities=invert_log_odds(explanation_log_odds.mean(axis=0)),
        random_probabilities=random_probabilities,
        random_kept_sums=shuffled_kept_sums[:, :, 0],
        explanation_removed_sums=np.array(removed_sums),
        total=float(word_scores.sum()),
        spread=float(word_scores.std()) or 1.0,
        all_correlations=correlate_partial_texts(shuffled_kept_sums, random_log_odds),
        presence=presence,
        shuffled_scores=shuffled_scores,
    )


def rank_all_removals(evidence_by_removal: Sequence[RemovalEvidence]) -> float:
    """Rank the mean correlation over the removals among that of shuffled scores.

    The shuffles are those of each removal, so that the rank of random scores is uniform however alike the
    removals are.
    """
    return rank_first(np.mean([item.all_correlations for item in evidence_by_removal], axis=0))


def measure_rest_effect(evidence_by_removal: Sequence[RemovalEvidence]) -> float:
    """Return the most that the words after the top words do, as a share of what the top words do.

    Both are changes of the log-odds, averaged over the removals: what removing the next best words or the
    lowest ones adds to removing the top words, and what removing the lower half alone does.

    Args:
        evidence_by_removal: The evidence of each removal.

    Returns:
        The share; infinite where removing the top words lowers nothing.
    """
    whole_log_odds = compute_log_odds(evidence_by_removal[0].whole_probability)
    probabilities = [item.explanation_probabilities for item in evidence_by_removal]
    log_odds = compute_log_odds(np.stack(probabilities)).mean(axis=0)
    without_top = log_odds[RemovedWords.TOP]
    top_fall = float(whole_log_odds - without_top)
    if top_fall <= 0:
        return float("inf")
    effects = [
        without_top - log_odds[RemovedWords.BETTER_HALF],
        without_top - log_odds[RemovedWords.LOWEST],
        whole_log_odds - log_odds[RemovedWords.OTHER_HALF],
    ]
    return float(np.abs(effects).max()) / top_fall


def _compare_all_partial_texts(
    evidence_by_removal: Sequence[RemovalEvidence],
) -> tuple[np.ndarray, np.ndarray]:
    """Compare random partial texts under all removals: return ``comparison word``, and the log-odds."""
    presence = np.concatenate(
        [contrast_partial_texts(item.presence) for item in evidence_by_removal]
    )
    log_odds = [compute_log_odds(item.random_probabilities) for item in evidence_by_removal]
    return presence, np.concatenate([contrast_partial_texts(values) for values in log_odds])


def rank_beyond_position(evidence_by_removal: Sequence[RemovalEvidence]) -> float:
    """Rank the sums of scores among those of shuffled ones, under all removals, beyond the words' positions.

    The last words matter most for a next token: scores that rise from first to last say no more than that.
    """
    presence, log_odds = _compare_all_partial_texts(evidence_by_removal)
    first = evidence_by_removal[0]
    positions = np.arange(first.num_words, dtype=float)[:, None]
    return rank_beyond(presence @ first.shuffled_scores.T, log_odds, presence @ positions)


def list_presence(orders: Sequence[Sequence[np.ndarray]], num_words: int) -> np.ndarray:
    """Return which words are left in each random partial text, of shape ``order point word``."""
    presence = np.ones((len(orders), len(RandomPoint), num_words))
    for j, points in enumerate(orders):
        for point, chosen in enumerate(points):
            presence[j, point, chosen] = 0.0
    return presence
