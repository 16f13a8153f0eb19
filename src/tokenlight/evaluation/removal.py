"""The removal test: how a target's probability falls as tokens go, beside what chance does.

Tokens are taken in the order of their scores, as AOPC takes them, and whole words by their summed scores;
both are held against random orders and random choices of the same text, which are asked once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import comb, factorial
from typing import Any

import numpy as np

from tokenlight.capture.live import LiveModel
from tokenlight.capture.perturbation import Original, StandIns, Variant, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.explainer import Explainer
from tokenlight.metrics._chance import chance
from tokenlight.metrics._ranking import PAPER_GRID, ranked_among, ranking, shares_to_counts

ORDERS, CHOICES, TOP = 50, 100, 3
SAME = 1e-9  # falls this close are one


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many random orders, how many random choices, and of how many words."""

    orders: int = ORDERS
    choices: int = CHOICES
    top: int = TOP


class Asked:
    """What a model has said to changed texts; each is asked once."""

    def __init__(self, live: LiveModel) -> None:
        self.live = live
        self.answers: dict[Hashable, np.ndarray] = {}

    def logits(self, variants: Sequence[Variant]) -> list[np.ndarray]:
        """The logits of each, in order."""
        keys = [variant.key for variant in variants]
        new = {
            key: variant
            for key, variant in zip(keys, variants, strict=True)
            if key not in self.answers
        }
        said = stream_logits(self.live, new.values())
        self.answers |= zip(new, said, strict=True)
        return [self.answers[key] for key in keys]


class Watched:
    """The probability of one target of one text while tokens are taken from it.

    A text that was read in windows is read in the same windows again, each without the tokens taken:
    its logits are their weighted mean, as those of the explanation were.
    """

    def __init__(self, explainer: Explainer, attribution: Attribution, asked: Asked) -> None:
        self.head, self.target, self.asked = explainer.live.head, attribution.target, asked
        stand_ins = StandIns.of(explainer.live, explainer.tokenizer)
        self.original = Original(attribution.row, stand_ins)
        self.taken = self.original.taken
        windows: Any = attribution.extras.get("windows")
        self.windows = _windows(attribution, windows) if windows else [(1.0, np.empty(0, int))]
        unread = set.intersection(*(set(outside.tolist()) for _, outside in self.windows))
        self.places = np.array([i for i in self.original.rankable if i not in unread], dtype=int)

    def words(self) -> list[np.ndarray]:
        """Positions of each word; a token without a word stands alone."""
        groups: dict[Any, list[int]] = {}
        for place in self.places:
            word = self.original.row.words[place]
            groups.setdefault(("token", place) if word is None else word, []).append(int(place))
        return [np.array(group) for group in groups.values()]

    def left(self, removals: Sequence[np.ndarray]) -> np.ndarray:
        """The probability that is left after each removal."""
        texts = [
            [self.taken(np.concatenate([gone, outside])) for _, outside in self.windows]
            for gone in removals
        ]
        said = iter(self.asked.logits([variant for text in texts for variant in text]))
        found = []
        for text in texts:
            logits = sum(weight * next(said) for weight, _ in self.windows)
            found.append(chance(self.head, self.target, text[0], np.asarray(logits)))
        return np.array(found)


def _windows(attribution: Attribution, given: Sequence[Any]) -> list[tuple[float, np.ndarray]]:
    """Each window that counts: its weight, and the tokens outside it. Special tokens and the first of
    two texts stand in every window."""
    row = attribution.row
    last = max(segment or 0 for segment in row.segments)
    moving = np.array([segment == last for segment in row.segments]) & ~np.array(row.special)
    places = np.arange(len(row))
    return [
        (
            float(one["weight"]),
            np.flatnonzero(moving & ((places < one["first"]) | (places > one["last"]))),
        )
        for one in given
        if one["weight"]
    ]


class Chance:
    """What chance does to a text: tokens taken in random orders, words in random choices.

    Where few orders or choices exist, all of them are tried.
    """

    def __init__(self, watched: Watched, sizes: Sizes, generator: np.random.Generator) -> None:
        self.watched, self.places, self.words = watched, watched.places, watched.words()
        self.counts = shares_to_counts(PAPER_GRID, len(self.places))
        self.every_order = factorial(len(self.places)) <= sizes.orders + 1
        self.orders = (
            [np.array(order, dtype=int) for order in permutations(self.places)]
            if self.every_order
            else [generator.permutation(self.places) for _ in range(sizes.orders)]
        )
        self.top = min(sizes.top, max(1, len(self.words) // 2))
        self.every_choice = comb(len(self.words), self.top) <= sizes.choices
        self.choices = (
            list(combinations(range(len(self.words)), self.top))
            if self.every_choice
            else [
                tuple(sorted(generator.choice(len(self.words), self.top, replace=False).tolist()))
                for _ in range(sizes.choices)
            ]
        )
        steps = [order[:count] for order in self.orders for count in self.counts]
        words = [self.of_words(choice) for choice in self.choices]
        left = watched.left([np.empty(0, int), *steps, *words])
        self.before = float(left[0])
        falls = self.before - left[1:]
        self.moved = float(np.abs(falls).max(initial=0.0))
        self.means = falls[: len(steps)].reshape(-1, len(self.counts)).mean(axis=1)
        self.falls = falls[len(steps) :]

    def of_words(self, choice: Sequence[int]) -> np.ndarray:
        """The tokens of some words."""
        return np.concatenate([self.words[i] for i in choice]) if choice else np.empty(0, int)

    def of_order(self, scores: np.ndarray) -> dict[str, Any]:
        """Where the order of the scores stands among the others, by AOPC."""
        order = ranked_among(scores, self.places)
        left = self.watched.left([order[:count] for count in self.counts])
        own = float((self.before - left).mean())
        share, beaten = _rank(own, self.means, among=self.every_order)
        return {
            "aopc": own,
            "percentile": 100 * share,
            "orders": len(self.means) - self.every_order,
            "all_orders": self.every_order,
            "beaten": 100 * beaten,
            "random": float(self.means.mean()),
        }

    def of_words_taken(self, scores: np.ndarray) -> dict[str, Any]:
        """What removing the top words does, and how many other choices do less."""
        sums = np.array([scores[group].sum() for group in self.words])
        ranked = ranking(sums)[: self.top].tolist()
        (after,) = self.watched.left([self.of_words(ranked)])
        own = tuple(sorted(ranked))
        others = self.falls[[choice != own for choice in self.choices]]
        share, less = _rank(self.before - after, others, among=False)
        return {
            "ties": float(np.ptp(sums)) == 0.0,
            "top_words": [self.watched.original.row.written(self.words[i].tolist()).strip()
                          for i in ranked],
            "before": self.before,
            "after": float(after),
            "choices_less": less,
            "choices": len(others),
            "choices_percentile": 100 * share,
        }  # fmt: skip


def _rank(own: float, others: np.ndarray, *, among: bool) -> tuple[float, float]:
    """Its mid-rank among the others and itself (``among``: the others hold it), from 0 to 1, which for
    a random draw is even whatever their number; and the share of the others that lie below it."""
    below, same = others < own - SAME, np.abs(others - own) <= SAME
    points = float(below.sum() + 0.5 * same.sum())
    count = len(others) - among
    beaten = (points - 0.5 * among) / count if count else 0.0
    return (points + 0.5 * (not among)) / (count + 1), beaten
