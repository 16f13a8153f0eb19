"""Random partial texts: what chance does to one text, shared by all explanations that are tested on it.

Every random order of the words gives three partial texts under each removal: one without a few words, one
without its first half, and one without its second half. The two halves are antithetic: each word is missing
from one of them, so that their difference does not depend on what shortening the text does by itself. The few
words are dealt from a shuffled deck, so that no word is drawn twice before every other was drawn once.

An explanation adds the four partial texts of :class:`RemovedWords`.
"""

from collections.abc import Sequence

import numpy as np

from tokenlight.evaluation.partial_text_statistics import RandomPoint
from tokenlight.evaluation.removal import AppliedRemoval, Removal, RemovalRunner
from tokenlight.evaluation.removal_evidence import (
    RemovalEvidence,
    RemovedWords,
    build_evidence,
    compute_log_odds,
)

NUM_TOP_WORDS = 3
# Of a long text more words count as top words: three of a hundred rarely change anything.
TOP_WORD_SHARE = 0.1
MAX_TOP_WORD_SHARE = 1 / 3
# Random orders per removal after which a test may stop; the last number is the most that are tried.
ORDER_BLOCKS = (3, 5)
NUM_SHUFFLES = 499
# Drawn replacements over which the partial texts that an explanation chooses are averaged.
NUM_EXPLANATION_DRAWS = 2
MAX_REDRAWS = 20  # of an order whose halves were drawn before


def count_top_words(num_words: int, num_top_words: int = NUM_TOP_WORDS) -> int:
    """Return how many words of a text count as its top words: at most a third, at least a tenth."""
    num_wanted = max(num_top_words, int(np.ceil(TOP_WORD_SHARE * num_words)))
    return max(1, min(num_wanted, int(MAX_TOP_WORD_SHARE * num_words)))


class RandomPartialTexts:
    """Random partial texts of one text for one target, under every removal.

    Args:
        removal_runner: Runs the text without some of its words.
        removals: The ways to remove words.
        generator: Draws the orders and the shuffles.
        num_top_words: Words that count as top words, unless the text is very short or long.
        max_orders: The most random orders to try.

    Attributes:
        words: Token positions of each word.
        num_top_words: Words that count as top words.
        random_choices: Words that are removed, of shape ``removal order point``; the points are
            those of :class:`RandomPoint`.
    """

    def __init__(
        self,
        removal_runner: RemovalRunner,
        removals: Sequence[Removal],
        generator: np.random.Generator,
        num_top_words: int = NUM_TOP_WORDS,
        max_orders: int = ORDER_BLOCKS[-1],
    ) -> None:
        self.removal_runner = removal_runner
        self.removals = list(removals)
        self.words = removal_runner.words
        num_words = len(self.words)
        self.num_top_words = count_top_words(num_words, num_top_words)
        # Everything is drawn now, so that the number of interim checks does not change it.
        self.random_choices = _draw_choices(
            generator, len(self.removals), max_orders, num_words, self.num_top_words
        )
        self.shuffles = np.stack([generator.permutation(num_words) for _ in range(NUM_SHUFFLES)])
        self.tie_breaks = generator.random(num_words)
        self._whole_probability: float | None = None
        # ``removal order point``
        self._random_probabilities: list[list[np.ndarray]] = [[] for _ in self.removals]
        # The probability without any word, under the first removal.
        self._empty_probability: float | None = None

    @property
    def whole_probability(self) -> float:
        """Probability of the target in the unperturbed text; the first interim check measures it."""
        if self._whole_probability is None:
            (probability,) = self.removal_runner.run([self._whole_text])
            self._whole_probability = float(probability)
        return self._whole_probability

    @property
    def _whole_text(self) -> AppliedRemoval:
        return AppliedRemoval(self.removals[0], np.empty(0, int))

    @property
    def num_orders(self) -> int:
        """The random orders that were measured so far."""
        return len(self._random_probabilities[0])

    @property
    def max_change(self) -> float:
        """The largest change of the probability by any random partial text so far."""
        probabilities = [np.concatenate(orders) for orders in self._random_probabilities if orders]
        if not probabilities:
            return 0.0
        probabilities.append(np.array([self._empty_probability]))
        return float(np.abs(self.whole_probability - np.concatenate(probabilities)).max())

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
        explanation_choices = self._choose_words(word_scores)
        self._run_missing(explanation_choices, num_orders)
        evidence_by_removal = []
        for i in range(len(self.removals)):
            evidence_by_removal.append(self._judge(i, word_scores, explanation_choices, num_orders))
        return evidence_by_removal

    def prefetch(self, all_scores: Sequence[np.ndarray], num_orders: int) -> None:
        """Run what :meth:`measure` needs for several explanations in one stream; the cache keeps it."""
        texts = [*self._list_whole_and_empty_text(), *self._list_missing_texts(num_orders)]
        for scores in all_scores:
            explanation_choices = self._choose_words(self.sum_words(scores))
            for removal in self.removals:
                texts += self.list_explanation_texts(removal, explanation_choices)
        self.removal_runner.run(texts)

    def _choose_words(self, word_scores: np.ndarray) -> list[np.ndarray]:
        return choose_explanation_words(self.rank_words(word_scores), self.num_top_words)

    def _run_missing(self, explanation_choices: Sequence[np.ndarray], num_orders: int) -> None:
        """Run the chosen partial texts and what is missing of the random ones, in one stream."""
        explanation_texts = []
        for removal in self.removals:
            explanation_texts += self.list_explanation_texts(removal, explanation_choices)
        texts = self._list_missing_texts(num_orders)
        probabilities = self.removal_runner.run(
            [*self._list_whole_and_empty_text(), *texts, *explanation_texts]
        )
        self._whole_probability, self._empty_probability = map(float, probabilities[:2])
        random_probabilities = probabilities[2 : 2 + len(texts)]
        by_removal = random_probabilities.reshape(len(self.removals), -1, len(RandomPoint))
        for i, orders in enumerate(by_removal):
            self._random_probabilities[i] += list(orders)

    def _list_whole_and_empty_text(self) -> list[AppliedRemoval]:
        """Return the whole text, and the text without any word."""
        all_words = np.arange(len(self.words))
        empty_text = AppliedRemoval(self.removals[0], self.select_positions(all_words))
        return [self._whole_text, empty_text]

    def _list_missing_texts(self, num_orders: int) -> list[AppliedRemoval]:
        """Return, for each removal, the partial texts of random orders that were not measured yet."""
        texts = []
        for removal, orders in zip(self.removals, self.random_choices, strict=True):
            for j in range(self.num_orders, min(num_orders, len(orders))):
                for chosen in orders[j]:
                    texts.append(AppliedRemoval(removal, self.select_positions(chosen), j))
        return texts

    def list_explanation_texts(
        self, removal: Removal, explanation_choices: Sequence[np.ndarray]
    ) -> list[AppliedRemoval]:
        """Return the partial texts that an explanation chooses, once for each drawn replacement."""
        num_draws = 1 if removal.replacement_ids is None else len(removal.replacement_ids)
        texts = []
        for draw in range(min(NUM_EXPLANATION_DRAWS, num_draws)):
            for chosen in explanation_choices:
                texts.append(AppliedRemoval(removal, self.select_positions(chosen), draw))
        return texts

    def _judge(
        self,
        removal_index: int,
        word_scores: np.ndarray,
        explanation_choices: Sequence[np.ndarray],
        num_orders: int,
    ) -> RemovalEvidence:
        removal = self.removals[removal_index]
        # The cache knows these texts by now.
        probabilities = self.removal_runner.run(
            self.list_explanation_texts(removal, explanation_choices)
        )
        return build_evidence(
            removal=removal,
            whole_probability=self.whole_probability,
            # Without any word all removals leave the same text, so it is measured once.
            empty_probability=self._empty_probability if removal_index == 0 else None,
            explanation_log_odds=compute_log_odds(probabilities).reshape(-1, len(RemovedWords)),
            random_probabilities=np.stack(self._random_probabilities[removal_index][:num_orders]),
            shuffled_scores=np.vstack([word_scores, word_scores[self.shuffles]]),
            explanation_choices=explanation_choices,
            random_choices=self.random_choices[removal_index][:num_orders],
        )


def choose_explanation_words(order: np.ndarray, num_top_words: int) -> list[np.ndarray]:
    """Return the words that are removed from each of the partial texts that an explanation chooses.

    Args:
        order: The words, highest score first.
        num_top_words: Words that count as top words.
    """
    num_half = max(1, len(order) // 2)
    top = order[:num_top_words]
    num_lowest = max(0, num_half - len(top))
    lowest = np.concatenate([top, order[len(order) - num_lowest :]])
    return [top, order[:num_half], order[-num_half:], lowest]


class _Deck:
    """Deals words so that none is dealt twice before every other was dealt once.

    Args:
        generator: Shuffles the words.
        num_words: Words of the text.
    """

    def __init__(self, generator: np.random.Generator, num_words: int) -> None:
        self.generator = generator
        self.num_words = num_words
        self.remaining = np.empty(0, int)

    def draw(self, count: int) -> np.ndarray:
        """Deal ``count`` words; too few that remain are shuffled in with all others."""
        if len(self.remaining) < count:
            self.remaining = self.generator.permutation(self.num_words)
        drawn = self.remaining[:count]
        self.remaining = self.remaining[count:]
        return drawn


def _draw_choices(
    generator: np.random.Generator,
    num_removals: int,
    num_orders: int,
    num_words: int,
    num_few: int,
) -> list[list[list[np.ndarray]]]:
    """Draw the words that are removed from random partial texts, of shape ``removal order point``."""
    num_half = max(1, num_words // 2)
    deck = _Deck(generator, num_words)
    choices = []
    for _ in range(num_removals):
        orders = []
        known_halves: set[frozenset[int]] = set()
        for _ in range(num_orders):
            few = deck.draw(num_few)
            order = _draw_new_order(generator, num_words, known_halves)
            first_half = order[:num_half]
            second_half = order[-num_half:]
            known_halves |= {frozenset(first_half.tolist()), frozenset(second_half.tolist())}
            chosen = {
                RandomPoint.FEW: few,
                RandomPoint.FIRST_HALF: first_half,
                RandomPoint.SECOND_HALF: second_half,
            }
            orders.append([chosen[point] for point in RandomPoint])
        choices.append(orders)
    return choices


def _draw_new_order(
    generator: np.random.Generator, num_words: int, known_halves: set[frozenset[int]]
) -> np.ndarray:
    """Draw an order with a first half that was not drawn before.

    A short text has few halves: one that is known is accepted when ``MAX_REDRAWS`` gave no other.
    """
    num_half = max(1, num_words // 2)
    order = generator.permutation(num_words)
    for _ in range(MAX_REDRAWS):
        if frozenset(order[:num_half].tolist()) not in known_halves:
            break
        order = generator.permutation(num_words)
    return order
