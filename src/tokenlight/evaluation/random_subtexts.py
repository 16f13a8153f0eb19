"""Random subtexts: what chance does to one text, shared by all explanations that are tested on it.

Words are removed in random orders, other ones for each removal. Each order gives two subtexts: one without
its first few words, one without its first half. Two tests read them. The top words of an explanation must do
more than the first words of random orders, and the sums of its scores over the words that are left must
predict the log-odds of the subtexts better than the same scores shuffled among the words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.evaluation.removal import PerturbedText, Removal, TargetProbability

NUM_REMOVED_WORDS = 3
# Random orders per removal after which a test may stop; the last number is the most that are tried.
ORDER_BLOCKS = (4, 6, 8)
# A pass over a longer text costs more of an explanation's time, so that a longer text gets fewer orders.
LONG_TEXT_WORDS = 32
LONG_TEXT_ORDERS = 6
NUM_SHUFFLES = 499
TIE_TOLERANCE = 1e-9  # changes this close count as equal
MIN_ODDS_PROBABILITY = 1e-6  # probabilities are clipped to this before their log-odds
INTERVAL = (5, 95)  # percentiles of what random choices do


def limit_orders(num_words: int, max_orders: int = ORDER_BLOCKS[-1]) -> int:
    """Return how many random orders a text gets at most."""
    return min(max_orders, LONG_TEXT_ORDERS) if num_words > LONG_TEXT_WORDS else max_orders


def compute_log_odds(probabilities: Any) -> np.ndarray:
    """Return ln p / (1 − p); certainty counts as one in a million."""
    clipped = np.clip(
        np.asarray(probabilities, dtype=float), MIN_ODDS_PROBABILITY, 1 - MIN_ODDS_PROBABILITY
    )
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


@dataclass(frozen=True, eq=False)
class RemovalEvidence:
    """Results of one removal for one explanation.

    Attributes:
        removal: How words were removed.
        counts: Words that were removed at each point of the curve: none, the top words, half, and for the
            first removal all.
        curve: The probability at each point, when words are removed in the order of their scores.
        random: The probabilities of the subtexts, of shape ``order point``: the top words, half.
        share_beaten: Share of the random removals of as many words that have a smaller effect.
        num_stronger: Random choices of as many words as the top words that lower the probability as much.
        correlation: Correlation of the sums of scores with the log-odds of the subtexts.
        correlation_rank: Share of shuffled scores that predict the subtexts less well.
        sums: The sum of scores of the words that are left in each subtext, of shape ``order point``.
        all_correlations: The correlation, then that of each shuffle; the same shuffles for every removal.
    """

    removal: Removal
    counts: tuple[int, ...]
    curve: np.ndarray
    random: np.ndarray
    share_beaten: float
    num_stronger: int
    correlation: float
    correlation_rank: float
    sums: np.ndarray
    all_correlations: np.ndarray

    @property
    def largest_fall(self) -> float:
        """The largest fall of the probability when words are removed in the order of their scores."""
        num_points = self.random.shape[1]
        return float(self.curve[0] - self.curve[1 : 1 + num_points].min())

    @property
    def lowers_probability(self) -> bool:
        """Whether removing the top words lowers the probability, and more than most random choices do."""
        fall = float(np.subtract(*compute_log_odds(self.curve[:2])))
        return fall > TIE_TOLERANCE and 2 * self.num_stronger < len(self.random)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: the numbers, the curve with its random interval, and the subtexts."""
        low, high = np.percentile(self.random, INTERVAL, axis=0)
        odds = compute_log_odds(self.random)
        return {
            "removal": self.removal.name,
            "words_are": self.removal.participle,
            "beaten": round(self.share_beaten, 4),
            "stronger": self.num_stronger,
            "correlation": round(self.correlation, 4),
            "correlation_rank": round(self.correlation_rank, 4),
            "counts": list(self.counts),
            "curve": _round_all(self.curve),
            "random_low": _round_all(low),
            "random_high": _round_all(high),
            "log_odds_fall": round(float(np.subtract(*compute_log_odds(self.curve[:2]))), 4),
            "log_odds_random": _round_all(
                compute_log_odds(self.curve[0]) - np.percentile(odds[:, 0], INTERVAL[::-1])
            ),
            "subtexts": {
                "sums": _round_all(self.sums.ravel()),
                "log_odds": _round_all(odds.ravel()),
            },
        }


def _round_all(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


class RandomSubtexts:
    """Random subtexts of one text for one target, under every removal.

    Args:
        probability: Computes the probability of the target.
        removals: The ways to remove words.
        generator: Draws the orders and the shuffles.
        num_top_words: Words that count as top words; at most half of the text.
        max_orders: The most random orders to try.

    Attributes:
        words: Token positions of each word.
        counts: Words that are removed from a subtext: the number of top words, and half.
    """

    def __init__(
        self,
        probability: TargetProbability,
        removals: Sequence[Removal],
        generator: np.random.Generator,
        num_top_words: int = NUM_REMOVED_WORDS,
        max_orders: int = ORDER_BLOCKS[-1],
    ) -> None:
        self.probability = probability
        self.removals = list(removals)
        self.words = probability.words
        num_words = len(self.words)
        num_top = min(num_top_words, max(1, num_words // 2))
        self.counts = tuple(sorted({num_top, max(num_top, num_words // 2)}))
        self.num_top_words = num_top
        # Every order is drawn now, so that the number of looks does not change any of them.
        self.orders = []  # removal order
        for _ in self.removals:
            self.orders.append([generator.permutation(num_words) for _ in range(max_orders)])
        self.shuffles = np.stack([generator.permutation(num_words) for _ in range(NUM_SHUFFLES)])
        self.tie_breaks = generator.random(num_words)
        self._before: float | None = None
        self._random: list[list[np.ndarray]] = [[] for _ in self.removals]  # removal order point
        self._empty: float | None = (
            None  # the probability without any word, under the first removal
        )

    @property
    def before(self) -> float:
        """Probability of the target in the unperturbed text; known after the first look at no cost."""
        if self._before is None:
            (before,) = self.probability.run([self._whole_text])
            self._before = float(before)
        return self._before

    @property
    def _whole_text(self) -> PerturbedText:
        return PerturbedText(self.removals[0], np.empty(0, int))

    @property
    def num_orders(self) -> int:
        """The random orders that were measured so far."""
        return len(self._random[0])

    @property
    def max_change(self) -> float:
        """The largest change of the probability by any subtext so far."""
        probabilities = [np.concatenate(orders) for orders in self._random if orders]
        if not probabilities:
            return 0.0
        probabilities.append(np.array([self._empty]))
        return float(np.abs(self.before - np.concatenate(probabilities)).max())

    def select_positions(self, word_indices: np.ndarray) -> np.ndarray:
        """Return the token positions of some words."""
        return np.concatenate([self.words[i] for i in word_indices])

    def sum_words(self, scores: np.ndarray) -> np.ndarray:
        """Return the sum of the token scores of each word."""
        return np.array([scores[positions].sum() for positions in self.words])

    def rank_words(self, word_scores: np.ndarray) -> np.ndarray:
        """Return the words by score, highest first; equal scores in a random order."""
        return np.lexsort((self.tie_breaks, -word_scores))

    def measure(self, scores: np.ndarray, num_orders: int) -> list[RemovalEvidence]:
        """Test one explanation against ``num_orders`` random orders.

        Args:
            scores: One score per token.
            num_orders: Random orders to compare with; those that are known already cost nothing.

        Returns:
            The evidence of each removal.
        """
        word_scores = self.sum_words(scores)
        curves = self._run_missing(self.rank_words(word_scores), num_orders)
        return [self._judge(i, word_scores, curve, num_orders) for i, curve in enumerate(curves)]

    def prefetch(self, all_scores: Sequence[np.ndarray], num_orders: int) -> None:
        """Run what :meth:`measure` needs for several explanations in one stream; the cache keeps it."""
        own_orders = [self.rank_words(self.sum_words(scores)) for scores in all_scores]
        self.probability.run(
            [*self._list_ends(), *self._list_missing_texts(own_orders, num_orders)]
        )

    def _run_missing(self, own_order: np.ndarray, num_orders: int) -> np.ndarray:
        """Run the explanation's own order and what is missing of the random orders, in one stream.

        Returns:
            The probabilities of the own order, of shape ``removal point``.
        """
        texts = self._list_missing_texts([own_order], num_orders)
        before, empty, *probabilities = self.probability.run([*self._list_ends(), *texts])
        self._before = float(before)
        self._empty = float(empty)
        num_points = len(self.counts)
        by_removal = np.array(probabilities).reshape(len(self.removals), -1, num_points)
        for i, own_and_random in enumerate(by_removal):
            self._random[i] += list(own_and_random[1:])
        return by_removal[:, 0]

    def _list_ends(self) -> list[PerturbedText]:
        """Return the whole text, and the text without any word."""
        all_words = np.arange(len(self.words))
        empty_text = PerturbedText(self.removals[0], self.select_positions(all_words))
        return [self._whole_text, empty_text]

    def _list_missing_texts(
        self, own_orders: Sequence[np.ndarray], num_orders: int
    ) -> list[PerturbedText]:
        """Return, for each removal, the subtexts of the given orders, then those of new random orders."""
        texts = []
        for removal, orders in zip(self.removals, self.orders, strict=True):
            for own_order in own_orders:
                texts += self._list_texts(removal, own_order, 0)
            for j in range(self.num_orders, min(num_orders, len(orders))):
                texts += self._list_texts(removal, orders[j], j)
        return texts

    def _list_texts(self, removal: Removal, order: np.ndarray, draw: int) -> list[PerturbedText]:
        texts = []
        for count in self.counts:
            texts.append(PerturbedText(removal, self.select_positions(order[:count]), draw))
        return texts

    def _judge(
        self, removal_index: int, word_scores: np.ndarray, curve: np.ndarray, num_orders: int
    ) -> RemovalEvidence:
        random = np.stack(self._random[removal_index][:num_orders])  # order point
        # Top words: a lower log-odds is a larger effect.
        own_odds = compute_log_odds(curve)
        odds = compute_log_odds(random)
        is_beaten = own_odds < odds - TIE_TOLERANCE
        is_tied = np.abs(own_odds - odds) <= TIE_TOLERANCE
        share_beaten = float((is_beaten + 0.5 * is_tied).mean())
        top_point = self.counts.index(self.num_top_words)
        num_stronger = int((~is_beaten[:, top_point]).sum())
        # Subtexts: sums of scores, shuffled and not, against log-odds.
        presence = self._presence(removal_index, len(random))
        shuffled = np.vstack([word_scores, word_scores[self.shuffles]])  # shuffle word
        sums = presence @ shuffled.T  # order point shuffle
        correlations = _correlate(sums, odds)
        counts = (0, *self.counts)
        full_curve = [self.before, *curve]
        if removal_index == 0:
            assert self._empty is not None
            counts = (*counts, len(self.words))
            full_curve.append(self._empty)
        return RemovalEvidence(
            removal=self.removals[removal_index],
            counts=counts,
            curve=np.array(full_curve),
            random=random,
            share_beaten=share_beaten,
            num_stronger=num_stronger,
            correlation=float(correlations[0]),
            correlation_rank=_rank_first(correlations),
            sums=sums[:, :, 0],
            all_correlations=correlations,
        )

    def _presence(self, removal_index: int, num_orders: int) -> np.ndarray:
        """Return which words are left in each subtext, of shape ``order point word``."""
        presence = np.ones((num_orders, len(self.counts), len(self.words)))
        for j in range(num_orders):
            for point, count in enumerate(self.counts):
                presence[j, point, self.orders[removal_index][j][:count]] = 0.0
        return presence


def rank_all_removals(evidence: Sequence[RemovalEvidence]) -> float:
    """Rank the mean correlation over the removals among that of shuffled scores.

    The shuffles are those of each removal, so that the rank of random scores is uniform however alike the
    removals are.
    """
    return _rank_first(np.mean([item.all_correlations for item in evidence], axis=0))


def _rank_first(values: np.ndarray) -> float:
    """Return the mid-rank of the first value among the others, from 0 to 1."""
    own = values[0]
    others = values[1:]
    num_below = (others < own - TIE_TOLERANCE).sum()
    num_tied = (np.abs(others - own) <= TIE_TOLERANCE).sum()
    return float((num_below + 0.5 * num_tied + 0.5) / (len(others) + 1))


def _correlate(sums: np.ndarray, odds: np.ndarray) -> np.ndarray:
    """Correlate sums with log-odds among subtexts of one size, and average over the sizes.

    Subtexts of different sizes are not compared: a shorter text loses log-odds whatever was removed.

    Args:
        sums: Of shape ``order point shuffle``.
        odds: Of shape ``order point``.

    Returns:
        The mean Pearson correlation of each shuffle; 0 where nothing varies.
    """
    centered_sums = sums - sums.mean(axis=0)
    centered_odds = odds - odds.mean(axis=0)
    products = (centered_sums * centered_odds[:, :, None]).sum(axis=0)  # point shuffle
    sizes = np.sqrt((centered_sums**2).sum(axis=0) * (centered_odds**2).sum(axis=0)[:, None])
    is_constant = sizes <= TIE_TOLERANCE
    correlations = np.where(is_constant, 0.0, products / np.where(is_constant, 1.0, sizes))
    return np.asarray(correlations.mean(axis=0))
