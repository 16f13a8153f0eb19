"""Which words drive the errors of a file: those that weigh more in them than in right predictions.

The terminal lists them after the texts. The page of the same file computes them by the same formula, in
``report_words.js``.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenlight.data.attribution import Attribution
from tokenlight.data.true_label import find_true_label

# With fewer errors of a kind than this, a word that stands out may do so by chance.
MIN_ERRORS = 10


class ErrorWord(NamedTuple):
    """A word, and in how many errors and right predictions of the same class it occurs."""

    word: str
    num_errors: int
    num_right: int


@dataclass(slots=True)
class _WordSums:
    """The words of some texts: sums of shares, and numbers of texts."""

    num_texts: int = 0
    shares: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)

    def mean_share(self, word: str) -> float:
        return self.shares.get(word, 0.0) / max(1, self.num_texts)


@dataclass(slots=True)
class ErrorWords:
    """Collects the words of texts with true labels, and ranks those of each kind of error.

    Args:
        sums: The words by true and predicted label.
        num_unread: Numbers of errors by true and predicted label that were explained for another class than
            the predicted one, so that their words do not say why it was predicted.

    Example:
        >>> from tokenlight.plots.error_words import ErrorWords
        >>> ErrorWords().rank("negative", "positive")
        []
    """

    sums: dict[tuple[str, str], _WordSums] = field(default_factory=dict)
    num_unread: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, attribution: Attribution) -> None:
        """Add the words of one text; without a true label it is left out."""
        true_label = find_true_label(attribution)
        if true_label is None:
            return
        prediction = attribution.prediction
        labels = true_label, prediction.label
        if prediction.ids or attribution.target.index != prediction.index:
            self.num_unread[labels] += true_label != prediction.label
            return
        sums = self.sums.setdefault(labels, _WordSums())
        sums.num_texts += 1
        for word, share in _compute_shares(attribution).items():
            sums.shares[word] += share
            sums.counts[word] += 1

    def rank(self, true_label: str, predicted: str) -> list[ErrorWord]:
        """Return the words whose mean share is larger in these errors than in texts of that class.

        The word with the largest difference comes first; a word that weighs less in the errors is left out.

        Args:
            true_label: The true label of the errors.
            predicted: What was predicted instead.
        """
        errors = self.sums.get((true_label, predicted), _WordSums())
        right = self.sums.get((predicted, predicted), _WordSums())
        weights = {}
        for word in errors.shares:
            weight = errors.mean_share(word) - right.mean_share(word)
            if weight > 0:
                weights[word] = weight
        ranked = sorted(weights, key=lambda word: (-weights[word], word))
        return [ErrorWord(word, errors.counts[word], right.counts[word]) for word in ranked]


def _compute_shares(attribution: Attribution) -> dict[str, float]:
    """Return each word's share of all absolute scores in the text; positive for the predicted class."""
    scores: defaultdict[str, float] = defaultdict(float)
    words = [
        (word.strip().casefold().replace("’", "'"), score) for word, score in attribution.words()
    ]
    total = sum(abs(score) for _, score in words)
    for word, score in _join_apostrophes(words):
        if re.search(r"[^\W_]", word):
            scores[word] += score
    return {word: score / total if total else 0.0 for word, score in scores.items()}


def _join_apostrophes(words: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Join "don", "'", "t" to one word, and "it", "'", "s" to two: a negation belongs to what it negates."""
    joined: list[tuple[str, float]] = []
    for word, score in words:
        if joined and joined[-1][0] == "'" and word in ("s", "t", "re", "ve", "ll", "d", "m"):
            previous, previous_score = joined.pop()
            word, score = previous + word, previous_score + score  # noqa: PLW2901
        if word == "'t" and joined and joined[-1][0][-1:].isalpha():
            host, host_score = joined.pop()
            word, score = host + word, host_score + score  # noqa: PLW2901
        joined.append((word, score))
    return joined
