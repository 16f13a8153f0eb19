"""Trust: can one explanation be believed? Its removal test against chance, and its health.

The order of the scores is tested as AOPC tests it, against random orders of the same text and against
leave-one-out; the verdict says in plain words how it did, and what removing the top words does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, islice, permutations
from math import comb, factorial, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenlight.capture.live import LiveModel
from tokenlight.capture.perturbation import Original, StandIns, Variant, key_of, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.health import health
from tokenlight.evaluation.measure import needs_one_piece, refuse_other_model
from tokenlight.metrics._chance import chance, needs_probabilities
from tokenlight.metrics._metric import Case
from tokenlight.metrics._ranking import PAPER_GRID, ranked_among, ranking, shares_to_counts

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

CHANCE = "no better than chance"
UNMOVED = 0.01  # a probability that no removal moves this far has nothing to say of an order
ORDERS, CHOICES, TOP = 50, 100, 3
Ask = Callable[[Sequence[Variant]], np.ndarray]


def trusted(  # noqa: PLR0913 - the keywords users set, each by name
    explainer: Explainer,
    attribution: Attribution,
    *,
    orders: int = ORDERS,
    choices: int = CHOICES,
    top: int = TOP,
    seed: int = 0,
    repeat: bool = True,
) -> Attribution:
    """The same explanation with ``extras["trust"]``: verdict, grade, percentile and health.

    ``orders``: random orders its AOPC is compared with; ``choices``: random choices of ``top`` words
    the verdict compares with; ``repeat``: explain once more in a batch, to see that neighbours do
    not change it. Where the model has no probability to watch, or the text is longer than it reads,
    the verdict says so.
    """
    sizes = orders, choices, top
    return _trusted(explainer, attribution, _Asked(explainer.live), sizes, seed, repeat)


def all_trusted(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    *,
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[Attribution]:
    """:func:`trusted` for each. Explanations of one text are held against the same random orders and
    choices, so what the model says to those is asked once for all of them."""
    found: list[Attribution] = []
    asked, text = _Asked(explainer.live), ""
    for attribution in attributions:
        if attribution.row.fingerprint != text:
            asked, text = _Asked(explainer.live), attribution.row.fingerprint
        found.append(_trusted(explainer, attribution, asked, (ORDERS, CHOICES, TOP), seed, True))
        if advance is not None:
            advance(1)
    return found


class _Asked:
    """What a model has said to changed texts; each is asked once."""

    def __init__(self, live: LiveModel) -> None:
        self.live = live
        self.answers: dict[bytes, np.ndarray] = {}

    def logits(self, variants: Sequence[Variant]) -> list[np.ndarray]:
        """The logits of each, in order."""
        keys = [key_of(variant) for variant in variants]
        new = {
            key: variant
            for key, variant in zip(keys, variants, strict=True)
            if key not in self.answers
        }
        said = stream_logits(self.live, new.values(), progress=False)
        self.answers |= zip(new, said, strict=True)
        return [self.answers[key] for key in keys]


def _trusted(
    explainer: Explainer,
    attribution: Attribution,
    asked: _Asked,
    sizes: tuple[int, int, int],
    seed: int,
    repeat: bool,
) -> Attribution:
    refuse_other_model(explainer, attribution)
    checks = health(explainer, attribution, repeat=repeat)
    try:
        found = _tested(explainer, attribution, asked, sizes, seed)
    except TokenlightError as refused:
        found = {"verdict": f"not tested: {refused}", "grade": "untested"}
    trust = {**found, "health": checks, "health_line": " · ".join(c["says"] for c in checks)}
    return replace(attribution, extras={**attribution.extras, "trust": trust})


def _tested(
    explainer: Explainer,
    attribution: Attribution,
    asked: _Asked,
    sizes: tuple[int, int, int],
    seed: int,
) -> dict[str, Any]:
    head = explainer.live.head
    needs_probabilities(head, "the removal test")
    if any(step.startswith("merge_words") for step in attribution.steps):
        raise BadInput("these are scores of words; test the token scores, before merge_words.")
    needs_one_piece(explainer, attribution, "the removal test")
    original = Original(attribution.row, StandIns.of(explainer.live, explainer.tokenizer))
    case = Case(attribution, original, head)
    generator = np.random.default_rng([seed, len(original), *attribution.row.ids])

    def ask(variants: Sequence[Variant]) -> np.ndarray:
        pairs = zip(variants, asked.logits(variants), strict=True)
        return np.array([chance(head, attribution.target, v, values) for v, values in pairs])

    orders, choices, top = sizes
    by_order = _against_orders(case, ask, orders, generator)
    by_words = _in_words(case, ask, (choices, top), generator)
    moved = max(by_order["moved"], by_words.get("moved", 0.0))
    found = by_order | by_words | {"moved": moved}
    things = "words" if attribution.row.image is None else "patches"
    if moved < UNMOVED:
        what = watched(attribution.target)
        verdict = f"no choice of {things} moves {what} by {UNMOVED}, so there is nothing to test"
        return found | {"verdict": verdict, "grade": "untested"}
    if "top_words" not in by_words:
        return found | {"grade": "untested"}
    if by_words["ties"]:
        verdict = f"all {things} have the same score, so the explanation ranks nothing"
        return found | {"verdict": verdict, "grade": "untested"}
    # What the grade was given for comes first; the top words alone may do otherwise.
    beaten = _beaten(int(found["beaten"]), found["orders"], found["all_orders"])
    return found | {"verdict": f"its order beats {beaten}; {found['verdict']}"}


def _beaten(share: int, tried: int, all_of_them: bool) -> str:
    """Never a certainty that a sample does not give."""
    if all_of_them and tried == 1:
        return "the only other one" if share == 100 else "no other"
    if all_of_them:
        return f"all {tried} others" if share == 100 else f"{share} % of the {tried} others"
    return f"all {tried} random orders tried" if share == 100 else f"{share} % of random orders"


def _against_orders(
    case: Case, ask: Ask, orders: int, generator: np.random.Generator
) -> dict[str, Any]:
    """Where the explanation's AOPC stands among random orders, and beside leave-one-out."""
    original, scores = case.original, case.attribution.scores
    places = original.rankable
    single = ask([original.unchanged(), *(original.taken([place]) for place in places)])
    falls = single[0] - single[1:]
    own_order = ranked_among(scores, places)
    others, all_of_them = _other_orders(places, own_order, orders, generator)
    tried = [own_order, places[ranking(falls)], *others]
    counts = shares_to_counts(PAPER_GRID, len(places))
    asked = ask([original.taken(order[:count]) for order in tried for count in counts])
    own, alone, *means = (single[0] - asked.reshape(len(tried), len(counts))).mean(axis=1)
    beaten = [1.0 if o < own - 1e-9 else 0.5 if o <= own + 1e-9 else 0.0 for o in means]
    if all_of_them:
        # Its rank among all orders, itself one of them: of two tokens either rank is chance.
        below = low = high = (sum(beaten) + 0.5) / (len(beaten) + 1)
    else:
        below = float(np.mean(beaten))
        low, high = wilson(below, len(means))
    return {
        "aopc": float(own),
        "percentile": 100 * below,
        "low": 100 * low,
        "high": 100 * high,
        "orders": len(means),
        "all_orders": all_of_them,
        "beaten": 100 * float(np.mean(beaten)) if beaten else 0.0,
        "leave_one_out": float(alone),
        "random": float(np.mean(means)) if means else float(own),
        "moved": float(np.abs(single[0] - np.concatenate([asked, single])).max()),
        "grade": _grade(len(places), below, low, 0.95 if all_of_them else 0.85),
    }


def _other_orders(
    places: np.ndarray, own: np.ndarray, count: int, generator: np.random.Generator
) -> tuple[list[np.ndarray], bool]:
    """Other orders of the tokens: all of them where they are few, else random ones."""
    if factorial(len(places)) - 1 <= count:
        every = (np.array(order) for order in permutations(places))
        return [order for order in every if not np.array_equal(order, own)], True
    return [generator.permutation(places) for _ in range(count)], False


def _grade(tokens: int, share: float, low: float, much: float) -> str:
    """One text's percentile is itself a draw: only its ends say more than chance."""
    if tokens < 2:
        return "untested"
    if low >= much:
        return "faithful"
    if share >= 0.8:
        return "better than chance"
    return CHANCE if share > 0.2 else "worse than chance"


def wilson(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share seen in ``count`` draws (Wilson 1927): right near 0 and 1 too."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    reach /= 1 + z * z / count
    # Rounding must not push the share itself out of its interval.
    return min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach))


def _in_words(
    case: Case, ask: Ask, sizes: tuple[int, int], generator: np.random.Generator
) -> dict[str, Any]:
    """The verdict: what removing the top words does, and how many other choices do less."""
    groups = _words(case.original)
    if len(groups) < 2:
        return {"verdict": "the text has one word, so there is nothing to rank"}
    sums = np.array([case.attribution.scores[group].sum() for group in groups])
    top = min(sizes[1], max(1, len(groups) // 2))
    chosen = tuple(sorted(int(i) for i in ranking(sums)[:top]))
    others, all_of_them = _other_choices(len(groups), chosen, sizes[0], generator)

    def gone(choice: Sequence[int]) -> Variant:
        return case.original.taken(np.concatenate([groups[i] for i in choice]))

    before, after, *rest = ask([case.original.unchanged(), gone(chosen), *map(gone, others)])
    less = float(np.mean([before - p < before - after - 1e-9 for p in rest]))
    row = case.attribution.row
    words = [row.written(groups[i].tolist()).strip() for i in ranking(sums)[:top]]
    share = _share(less, all_of_them)
    return {
        "verdict": _verdict(case.attribution, words, (before, after), share),
        "ties": float(np.ptp(sums)) == 0.0,
        "moved": float(np.abs(before - np.array([after, *rest])).max()),
        "top_words": words,
        "before": float(before),
        "after": float(after),
        "choices_less": less,
        "choices": len(rest),
    }


def _verdict(
    attribution: Attribution, named: list[str], moved: tuple[float, float], others: str
) -> str:
    before, after = moved
    what = watched(attribution.target)
    picture = attribution.row.image is not None
    thing = "patch" if picture else "word"
    several = "patches" if picture else "words"
    count = f"the {len(named)} top {several}" if len(named) > 1 else f"the top {thing}"
    words = f"{count} ({('; ' if picture else ', ').join(named)})"
    if abs(before - after) < 0.005:
        change = f"leaves {what} at {after:.2f}, so they alone do not decide"
    else:
        verb = "drops" if after < before else "raises"
        change = f"{verb} {what} from {before:.2f} to {after:.2f}; {others} do less"
    return f"{'hiding' if picture else 'removing'} {words} {change}"


def watched(target: ResolvedTarget) -> str:
    """The probability that the test watches, in words."""
    return "P(answer)" if target.kind == "span" else f"P({target.name})"


def _share(less: float, all_of_them: bool) -> str:
    """Never a certainty that a sample does not give."""
    if all_of_them:
        return "all other choices" if less == 1 else f"{int(100 * less)} % of other choices"
    return ">99 % of random choices" if less == 1 else f"{int(100 * less)} % of random choices"


def _words(original: Original) -> list[np.ndarray]:
    """Positions of each word; a token without a word stands alone."""
    groups: dict[Any, list[int]] = {}
    for place in original.rankable:
        word = original.row.words[place]
        groups.setdefault(("token", place) if word is None else word, []).append(int(place))
    return [np.array(group) for group in groups.values()]


def _other_choices(
    words: int, chosen: tuple[int, ...], count: int, generator: np.random.Generator
) -> tuple[list[tuple[int, ...]], bool]:
    """Other choices of as many words: all of them where they are few, else random ones."""
    if comb(words, len(chosen)) <= count:
        every = islice(combinations(range(words), len(chosen)), count)
        return [choice for choice in every if choice != chosen], True
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < count:
        choice = tuple(sorted(map(int, generator.choice(words, len(chosen), replace=False))))
        if choice != chosen:
            drawn.append(choice)
    return drawn, False
