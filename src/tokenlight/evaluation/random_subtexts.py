"""Random subtexts: what chance does to one text, shared by all explanations that are tested on it.

Every random order of the words gives three subtexts under each removal: one without a few words, one without
its first half, and one without its second half. The two halves are antithetic: each word is missing from
one of them, so that their difference does not depend on what shortening the text does by itself. The few
words are dealt from a shuffled deck, so that no word is drawn twice before every other was drawn once.

An explanation adds four subtexts of its own: without its top words, without the better half of the words,
without the other half, and without the top words and the lowest of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.evaluation.removal import PerturbedText, Removal, TargetProbability
from tokenlight.evaluation.subtext_statistics import (
    TIE_TOLERANCE,
    correlate_subtexts,
    rank_first,
)

NUM_REMOVED_WORDS = 3
# Of a long text more words count as top words: three of a hundred rarely change anything.
TOP_WORD_SHARE = 0.1
MAX_TOP_WORD_SHARE = 1 / 3
# Random orders per removal after which a test may stop; the last number is the most that are tried.
ORDER_BLOCKS = (3, 5)
NUM_SHUFFLES = 499
MIN_ODDS_PROBABILITY = 1e-6  # probabilities are clipped to this before their log-odds
INTERVAL = (5, 95)  # percentiles of what random choices do
NUM_OWN_DRAWS = 2  # drawn replacements over which an explanation's own subtexts are averaged
MAX_REDRAWS = 20  # of an order whose halves were drawn before

# Points of an explanation's own subtexts.
TOP, BETTER_HALF, OTHER_HALF, LOWEST = range(4)
NUM_OWN_POINTS = 4
NUM_RANDOM_POINTS = 3  # subtexts per random order: a few words, and the two halves


def compute_log_odds(probabilities: Any) -> np.ndarray:
    """Return ln p / (1 − p); certainty counts as one in a million."""
    clipped = np.clip(
        np.asarray(probabilities, dtype=float), MIN_ODDS_PROBABILITY, 1 - MIN_ODDS_PROBABILITY
    )
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def invert_log_odds(log_odds: np.ndarray) -> np.ndarray:
    """Return the probability of each log-odds."""
    return np.asarray(1 / (1 + np.exp(-log_odds)))


def count_top_words(num_words: int, num_top_words: int = NUM_REMOVED_WORDS) -> int:
    """Return how many words of a text count as its top words: at most a third, at least a tenth."""
    wanted = max(num_top_words, int(np.ceil(TOP_WORD_SHARE * num_words)))
    return max(1, min(wanted, int(MAX_TOP_WORD_SHARE * num_words)))


@dataclass(frozen=True, eq=False)
class RemovalEvidence:
    """Results of one removal for one explanation.

    Attributes:
        removal: How words were removed.
        num_top_words: Words that count as top words.
        num_words: Words of the text.
        before: The probability in the whole text.
        empty: The probability without any word; None where it was not measured.
        own: The probabilities of the explanation's own subtexts: without its top words, without the better
            half, without the other half, and without the top words and the lowest of the others.
        random: The probabilities of the random subtexts, of shape ``order point``: without a few words,
            without the first half, without the second half.
        sums: The sum of scores of the words that are left in each random subtext, of shape ``order point``.
        own_sums: The sum of scores of the words that are removed from each of its own subtexts.
        total: The sum of the scores of all words.
        spread: The standard deviation of the scores of the words.
        all_correlations: The correlation of the sums with the log-odds, then that of each shuffle; the same
            shuffles for every removal.
    """

    removal: Removal
    num_top_words: int
    num_words: int
    before: float
    empty: float | None
    own: np.ndarray
    random: np.ndarray
    sums: np.ndarray
    own_sums: np.ndarray
    total: float
    spread: float
    all_correlations: np.ndarray

    @property
    def num_half(self) -> int:
        """Words of half of the text."""
        return max(1, self.num_words // 2)

    @property
    def top_fall(self) -> float:
        """The fall of the probability without the top words."""
        return float(self.before - self.own[TOP])

    @property
    def half_fall(self) -> float:
        """The fall of the probability without the better half of the words."""
        return float(self.before - self.own[BETTER_HALF])

    @property
    def share_beaten(self) -> float:
        """Share of random choices of as many words that lower the log-odds less than the top words."""
        difference = compute_log_odds(self.random[:, 0]) - compute_log_odds(self.own[TOP])
        is_beaten = difference > TIE_TOLERANCE
        is_tied = np.abs(difference) <= TIE_TOLERANCE
        return float((is_beaten + 0.5 * is_tied).mean())

    @property
    def num_stronger(self) -> int:
        """Random choices of as many words that lower the log-odds as much as the top words."""
        difference = compute_log_odds(self.random[:, 0]) - compute_log_odds(self.own[TOP])
        return int((difference <= TIE_TOLERANCE).sum())

    @property
    def half_contrast(self) -> float:
        """How much lower the log-odds are without the better half than without the other half.

        In units of the same contrast of random halves (their root mean square).
        """
        odds = compute_log_odds(self.own)
        return float(odds[OTHER_HALF] - odds[BETTER_HALF]) / self.half_unit

    @property
    def rest_contrast(self) -> float:
        """The contrast of the words after the top words: their better part against their lowest."""
        odds = compute_log_odds(self.own)
        return float(odds[LOWEST] - odds[BETTER_HALF]) / self.half_unit

    @property
    def half_unit(self) -> float:
        """How much the log-odds of random halves of one order differ (root mean square)."""
        odds = compute_log_odds(self.random[:, 1:])
        return float(np.sqrt(np.square(odds[:, 0] - odds[:, 1]).mean())) or 1.0

    @property
    def correlation(self) -> float:
        """Correlation of the sums of scores with the log-odds of the random subtexts."""
        return float(self.all_correlations[0])

    @property
    def correlation_rank(self) -> float:
        """Share of shuffled scores that predict the random subtexts less well."""
        return rank_first(self.all_correlations)

    @property
    def changes(self) -> np.ndarray:
        """The fall of the log-odds in every subtext, random ones first."""
        odds = np.concatenate([compute_log_odds(self.random).ravel(), compute_log_odds(self.own)])
        return np.asarray(compute_log_odds(self.before) - odds)

    @property
    def claims(self) -> np.ndarray:
        """The sum of the scores of the removed words of every subtext, random ones first."""
        return np.concatenate([(self.total - self.sums).ravel(), self.own_sums])

    @property
    def sizes(self) -> np.ndarray:
        """The number of removed words of every subtext, random ones first."""
        half = self.num_half
        random = np.tile([self.num_top_words, half, half], len(self.random))
        lowest = max(half, self.num_top_words)
        return np.concatenate([random, [self.num_top_words, half, half, lowest]]).astype(float)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: the numbers, the curve with its random interval, and the subtexts."""
        few = self.random[:, 0]
        halves = self.random[:, 1:].ravel()
        low, high = np.transpose([np.percentile(few, INTERVAL), np.percentile(halves, INTERVAL)])
        odds = compute_log_odds(self.random)
        before = compute_log_odds(self.before)
        counts = [0, self.num_top_words, self.num_half]
        curve = [self.before, *self.own[[TOP, BETTER_HALF]]]
        if self.empty is not None:
            counts.append(self.num_words)
            curve.append(self.empty)
        half = self.num_half
        return {
            "removal": self.removal.name,
            "words_are": self.removal.participle,
            "beaten": round(self.share_beaten, 4),
            "stronger": self.num_stronger,
            "half_contrast": round(self.half_contrast, 4),
            "rest_contrast": round(self.rest_contrast, 4),
            "correlation": round(self.correlation, 4),
            "correlation_rank": round(self.correlation_rank, 4),
            "counts": counts,
            "curve": _round_all(np.array(curve)),
            "other_half": float(f"{self.own[OTHER_HALF]:.4g}"),
            "random_low": _round_all(low),
            "random_high": _round_all(high),
            "log_odds_fall": round(float(before - compute_log_odds(self.own[TOP])), 4),
            "log_odds_random": _round_all(before - np.percentile(odds[:, 0], INTERVAL[::-1])),
            "subtexts": {
                "sums": _round_all(self.sums.ravel()),
                "log_odds": _round_all(odds.ravel()),
                "removed": np.tile([self.num_top_words, half, half], len(odds)).tolist(),
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
        num_top_words: Words that count as top words, unless the text is very short or long.
        max_orders: The most random orders to try.

    Attributes:
        words: Token positions of each word.
        num_top_words: Words that count as top words.
        choices: Words that are removed, of shape ``removal order`` and for each a few words, the first
            half and the second half.
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
        self.num_top_words = count_top_words(num_words, num_top_words)
        # Everything is drawn now, so that the number of looks does not change it.
        self.choices = _draw_choices(
            generator, len(self.removals), max_orders, num_words, self.num_top_words
        )
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
        """The largest change of the probability by any random subtext so far."""
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
        own_choices = self._choose_own(word_scores)
        self._run_missing(own_choices, num_orders)
        evidence = []
        for i in range(len(self.removals)):
            evidence.append(self._judge(i, word_scores, own_choices, num_orders))
        return evidence

    def prefetch(self, all_scores: Sequence[np.ndarray], num_orders: int) -> None:
        """Run what :meth:`measure` needs for several explanations in one stream; the cache keeps it."""
        texts = [*self._list_ends(), *self._list_missing_texts(num_orders)]
        for scores in all_scores:
            own_choices = self._choose_own(self.sum_words(scores))
            for removal in self.removals:
                texts += self.list_own_texts(removal, own_choices)
        self.probability.run(texts)

    def _choose_own(self, word_scores: np.ndarray) -> list[np.ndarray]:
        return choose_own_words(self.rank_words(word_scores), self.num_top_words)

    def _run_missing(self, own_choices: Sequence[np.ndarray], num_orders: int) -> None:
        """Run the explanation's own subtexts and what is missing of the random ones, in one stream."""
        own_texts = []
        for removal in self.removals:
            own_texts += self.list_own_texts(removal, own_choices)
        texts = self._list_missing_texts(num_orders)
        probabilities = self.probability.run([*self._list_ends(), *texts, *own_texts])
        self._before, self._empty = map(float, probabilities[:2])
        random = probabilities[2 : 2 + len(texts)]
        by_removal = random.reshape(len(self.removals), -1, NUM_RANDOM_POINTS)
        for i, orders in enumerate(by_removal):
            self._random[i] += list(orders)

    def _list_ends(self) -> list[PerturbedText]:
        """Return the whole text, and the text without any word."""
        all_words = np.arange(len(self.words))
        empty_text = PerturbedText(self.removals[0], self.select_positions(all_words))
        return [self._whole_text, empty_text]

    def _list_missing_texts(self, num_orders: int) -> list[PerturbedText]:
        """Return, for each removal, the subtexts of random orders that were not measured yet."""
        texts = []
        for removal, orders in zip(self.removals, self.choices, strict=True):
            for j in range(self.num_orders, min(num_orders, len(orders))):
                for chosen in orders[j]:
                    texts.append(PerturbedText(removal, self.select_positions(chosen), j))
        return texts

    def list_own_texts(
        self, removal: Removal, own_choices: Sequence[np.ndarray]
    ) -> list[PerturbedText]:
        """Return an explanation's own subtexts, once for each drawn replacement."""
        num_draws = 1 if removal.replacement_ids is None else len(removal.replacement_ids)
        texts = []
        for draw in range(min(NUM_OWN_DRAWS, num_draws)):
            for chosen in own_choices:
                texts.append(PerturbedText(removal, self.select_positions(chosen), draw))
        return texts

    def _judge(
        self,
        removal_index: int,
        word_scores: np.ndarray,
        own_choices: Sequence[np.ndarray],
        num_orders: int,
    ) -> RemovalEvidence:
        removal = self.removals[removal_index]
        # The cache knows these texts by now.
        own = self.probability.run(self.list_own_texts(removal, own_choices))
        orders = self.choices[removal_index][:num_orders]
        return build_evidence(
            removal=removal,
            ends=(self.before, self._empty if removal_index == 0 else None),
            own_odds=compute_log_odds(own).reshape(-1, NUM_OWN_POINTS),
            random=np.stack(self._random[removal_index][:num_orders]),
            shuffled_scores=np.vstack([word_scores, word_scores[self.shuffles]]),
            choices=(own_choices, orders),
        )


def build_evidence(
    *,
    removal: Removal,
    ends: tuple[float, float | None],
    own_odds: np.ndarray,
    random: np.ndarray,
    shuffled_scores: np.ndarray,
    choices: tuple[Sequence[np.ndarray], Sequence[Sequence[np.ndarray]]],
) -> RemovalEvidence:
    """Build the evidence of one removal from measured probabilities.

    Args:
        removal: How words were removed.
        ends: The probability in the whole text, and without any word where it was measured.
        own_odds: Log-odds of the explanation's own subtexts, of shape ``draw point``.
        random: Probabilities of the random subtexts, of shape ``order point``.
        shuffled_scores: The scores of the words, then the shuffled ones, of shape ``shuffle word``.
        choices: The removed words of its own subtexts, and of the random ones (``order point``).
    """
    own_choices, orders = choices
    word_scores = shuffled_scores[0]
    presence = list_presence(orders, len(word_scores))
    sums = presence @ shuffled_scores.T  # order point shuffle
    before, empty = ends
    return RemovalEvidence(
        removal=removal,
        num_top_words=len(own_choices[TOP]),
        num_words=len(word_scores),
        before=before,
        empty=empty,
        # Drawn replacements are averaged, in log-odds.
        own=invert_log_odds(own_odds.mean(axis=0)),
        random=random,
        sums=sums[:, :, 0],
        own_sums=np.array([word_scores[chosen].sum() for chosen in own_choices]),
        total=float(word_scores.sum()),
        spread=float(word_scores.std()) or 1.0,
        all_correlations=correlate_subtexts(sums, compute_log_odds(random)),
    )


def rank_all_removals(evidence: Sequence[RemovalEvidence]) -> float:
    """Rank the mean correlation over the removals among that of shuffled scores.

    The shuffles are those of each removal, so that the rank of random scores is uniform however alike the
    removals are.
    """
    return rank_first(np.mean([item.all_correlations for item in evidence], axis=0))


def list_presence(orders: Sequence[Sequence[np.ndarray]], num_words: int) -> np.ndarray:
    """Return which words are left in each random subtext, of shape ``order point word``."""
    presence = np.ones((len(orders), NUM_RANDOM_POINTS, num_words))
    for j, points in enumerate(orders):
        for point, chosen in enumerate(points):
            presence[j, point, chosen] = 0.0
    return presence


def choose_own_words(order: np.ndarray, num_top_words: int) -> list[np.ndarray]:
    """Return the words that are removed from each of an explanation's own subtexts.

    Args:
        order: The words, highest score first.
        num_top_words: Words that count as top words.
    """
    num_half = max(1, len(order) // 2)
    top = order[:num_top_words]
    num_lowest = max(0, num_half - len(top))
    lowest = np.concatenate([top, order[len(order) - num_lowest :]])
    return [top, order[:num_half], order[-num_half:], lowest]


def _draw_choices(
    generator: np.random.Generator,
    num_removals: int,
    num_orders: int,
    num_words: int,
    num_few: int,
) -> list[list[list[np.ndarray]]]:
    """Draw the words that are removed from random subtexts, of shape ``removal order point``."""
    num_half = max(1, num_words // 2)
    deck = np.empty(0, int)
    choices = []
    for _ in range(num_removals):
        orders = []
        known_halves: set[frozenset[int]] = set()
        for _ in range(num_orders):
            if len(deck) < num_few:
                deck = generator.permutation(num_words)
            few = deck[:num_few]
            deck = deck[num_few:]
            order = generator.permutation(num_words)
            # A short text has few halves: those that were drawn are not drawn again while there are others.
            for _ in range(MAX_REDRAWS):
                if frozenset(order[:num_half].tolist()) not in known_halves:
                    break
                order = generator.permutation(num_words)
            first = order[:num_half]
            second = order[-num_half:]
            known_halves |= {frozenset(first.tolist()), frozenset(second.tolist())}
            orders.append([few, first, second])
        choices.append(orders)
    return choices
