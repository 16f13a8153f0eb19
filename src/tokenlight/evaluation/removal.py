"""The removal test: how a target's probability falls as tokens go, beside what chance does.

Tokens are taken in the order of their scores, as AOPC takes them, and whole words by their summed scores;
both are held against random orders and random choices of the same text, which are asked once.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, combinations, permutations
from math import comb, factorial
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import Original, StandIns, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.units import word_groups
from tokenlight.evaluation.grade import UNTESTED, graded
from tokenlight.evaluation.measure import needs_one_piece, refuse_words
from tokenlight.explainer import Explainer
from tokenlight.metrics._erasing import chance
from tokenlight.metrics._metric import needs_probabilities
from tokenlight.metrics._ranking import PAPER_GRID, ranked_among, ranking, shares_to_counts

Sizes = tuple[int, int, int]  # how many random orders, how many random choices, of how many words
SIZES = ORDERS, CHOICES, TOP = 50, 100, 3
UNMOVED = 0.01  # a probability that no removal moves this far has nothing to say of an order
SAME = 1e-9  # falls this close are one
Said = dict[Hashable, np.ndarray]  # a model's answers to changed texts, each asked about once


class Watched:
    """The probability of one target of one text while tokens are taken from it.

    A text that was read in windows is read in the same windows again, each without the tokens taken:
    its logits are their weighted mean, as those of the explanation were.
    """

    def __init__(self, explainer: Explainer, attribution: Attribution, said: Said) -> None:
        self.live, self.target, self.said = explainer.live, attribution.target, said
        stand_ins = StandIns.of(explainer.live, explainer.tokenizer)
        self.original = Original(attribution.row, stand_ins)
        self.taken = self.original.taken
        row, places = attribution.row, np.arange(len(attribution))
        whole = {"weight": 1.0, "first": 0, "last": len(row)}
        windows: Any = attribution.extras.get("windows") or [whole]
        # Special tokens and the first of two texts stand in every window.
        last = max(segment or 0 for segment in row.segments)
        moving = np.array([segment == last for segment in row.segments]) & ~np.array(row.special)
        counted = [one for one in windows if one["weight"]]
        outside = [moving & ((places < one["first"]) | (places > one["last"])) for one in counted]
        weights = (float(one["weight"]) for one in counted)
        self.windows = list(zip(weights, map(np.flatnonzero, outside), strict=True))
        self.places = np.setdiff1d(self.original.rankable, np.flatnonzero(np.all(outside, axis=0)))

    def left(self, removals: Sequence[np.ndarray]) -> np.ndarray:
        """The probability that is left after each removal."""
        outside = [places for _, places in self.windows]
        texts = [[self.taken(np.concatenate([gone, own])) for own in outside] for gone in removals]
        keys = [[variant.key for variant in text] for text in texts]
        asked = dict(zip(chain(*keys), chain(*texts), strict=True))
        new = {key: asked[key] for key in asked if key not in self.said}
        self.said |= zip(new, stream_logits(self.live, new.values()), strict=True)
        found = []
        for text, own in zip(texts, keys, strict=True):
            weighed = zip(self.windows, own, strict=True)
            logits = sum(weight * self.said[key] for (weight, _), key in weighed)
            found.append(chance(self.live.head, self.target, text[0], np.asarray(logits)))
        return np.array(found)


class Chance:
    """What chance does to a text: tokens taken in random orders, words in random choices.

    Where few orders or choices exist, all of them are tried.
    """

    def __init__(self, watched: Watched, draw: np.random.Generator, sizes: Sizes = SIZES) -> None:
        orders, choices, top = sizes
        self.watched, self.places = watched, watched.places
        groups = (np.array(group) for group in word_groups(watched.original.row))
        own = (group[np.isin(group, self.places)] for group in groups)
        self.words = [group for group in own if len(group)]  # a token without a word stands alone
        self.counts = shares_to_counts(PAPER_GRID, len(self.places))
        self.every_order = factorial(len(self.places)) <= orders + 1
        every: Iterable[Any] = permutations(self.places)
        if not self.every_order:
            every = (draw.permutation(self.places) for _ in range(orders))
        self.orders = [np.array(order, dtype=int) for order in every]
        words = len(self.words)
        self.top = min(top, max(1, words // 2))
        self.every_choice = comb(words, self.top) <= choices
        every = combinations(range(words), self.top)
        if not self.every_choice:
            every = (draw.choice(words, self.top, replace=False) for _ in range(choices))
        self.choices = [tuple(sorted(map(int, choice))) for choice in every]
        steps = [order[:count] for order in self.orders for count in self.counts]
        left = watched.left([np.empty(0, int), *steps, *map(self.of_words, self.choices)])
        self.before = float(left[0])
        falls = self.before - left[1:]
        self.moved = float(np.abs(falls).max(initial=0.0))
        self.means = falls[: len(steps)].reshape(-1, len(self.counts)).mean(axis=1)
        self.falls = falls[len(steps) :]

    def of_words(self, choice: Sequence[int]) -> np.ndarray:
        """The tokens of some words."""
        return np.concatenate([self.words[i] for i in choice])

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


class RemovalTest:
    """Explanations of a model against chance. What chance does is kept for each target of the text at
    hand; the text before is forgotten."""

    def __init__(self, explainer: Explainer, seed: int = 0, sizes: Sizes = SIZES) -> None:
        self.explainer, self.seed, self.sizes = explainer, seed, sizes
        self.text, self.said = "", Said()
        self.known: dict[ResolvedTarget, Chance] = {}

    def chance(self, attribution: Attribution) -> Chance:
        """What chance does to this text and target."""
        row, target = attribution.row, attribution.target
        if row.fingerprint != self.text:
            self.text, self.said, self.known = row.fingerprint, {}, {}
        if target not in self.known:
            watched = Watched(self.explainer, attribution, self.said)
            generator = np.random.default_rng([self.seed, len(row), *row.ids])
            self.known[target] = Chance(watched, generator, self.sizes)
        return self.known[target]

    def __call__(self, attribution: Attribution) -> dict[str, Any]:
        """The test in numbers and words, and its grade."""
        needs_probabilities(self.explainer.live.head, "the removal test")
        refuse_words(attribution)
        if "windows" not in attribution.extras:
            needs_one_piece(self.explainer, attribution, "the removal test")
        chance = self.chance(attribution)
        if len(chance.words) < 2:
            verdict = "the text has one word, so there is nothing to rank"
            return {"verdict": verdict, "grade": UNTESTED}
        found = chance.of_order(attribution.scores) | chance.of_words_taken(attribution.scores)
        fall = found["before"] - found["after"]
        found["moved"] = max(chance.moved, abs(fall), abs(found["aopc"]))
        what = "answer" if attribution.target.kind == "span" else attribution.target.name
        what, image, nothing = f"P({what})", attribution.row.image, ""
        thing, things = ("word", "words") if image is None else ("patch", "patches")
        if image is not None and image.places:  # beside a text
            thing, things = "patch or word", "patches and words"
        if found["moved"] < UNMOVED:
            unmoved = f"no choice of {things} moves {what} by {UNMOVED}"
            nothing = f"{unmoved}, so there is nothing to test"
        elif found["ties"]:
            nothing = f"all {things} have the same score, so the explanation ranks nothing"
        if nothing:
            return found | {"verdict": nothing, "grade": UNTESTED}
        special = sum(one.share for one in attribution.segment_shares() if one.segment is None)
        ranks = found["percentile"] / 100, found["choices_percentile"] / 100
        grade, weak = graded(*ranks, special, len(chance.words))
        said = [weak, _beaten(found), _in_words(found, what, thing, things, chance.every_choice)]
        verdict = "; ".join(filter(None, said))
        return found | {"grade": grade, "weak": weak, "special": special, "verdict": verdict}


def _beaten(found: Mapping[str, Any]) -> str:
    """What its order beats: never a certainty that a sample does not give."""
    # The share that is graded: of a sample, what it beat and half of itself, among one more.
    share = int(found["beaten"] if found["beaten"] == 100 else found["percentile"])
    if found["all_orders"]:
        return f"its order beats {'every other' if share == 100 else f'{share} % of the others'}"
    every = f"all {found['orders']} random orders tried"
    return f"its order beats {every if share == 100 else f'{share} % of random orders'}"


def _in_words(found: Mapping[str, Any], what: str, thing: str, things: str, every: bool) -> str:
    """What taking the top words does to ``what``; ``every``: whether all other choices were tried."""
    named, before, after = found["top_words"], found["before"], found["after"]
    patches = thing != "word"
    count = f"the {len(named)} top {things}" if len(named) > 1 else f"the top {thing}"
    words = f"{count} ({('; ' if patches else ', ').join(named)})"
    if abs(before - after) < 0.005:
        change = f"leaves {what} at {after:.2f}, so they alone do not decide"
    else:
        less = found["choices_less"]
        most = "all" if every else ">99 % of"  # never a certainty from a sample
        share = most if less == 1 else f"{int(100 * less)} % of"
        others = f"{share} {'other' if every else 'random'} choices do less"
        verb = "drops" if after < before else "raises"
        change = f"{verb} {what} from {before:.2f} to {after:.2f}; {others}"
    return f"{'hiding' if patches else 'removing'} {words} {change}"
