"""The grade of one explanation, and what is weak in the evidence for it.

``benchmarks/trust_calibration.py`` chose the limits on 1,813 held-out texts. On 1,812 others 2.3 % of random
orders are graded better than chance or faithful, and of 3,624 inverted ones two faithful, which are.
"""

from dataclasses import dataclass

FAITHFUL, BETTER = "faithful", "better than chance"
CHANCE, WORSE = "no better than chance", "worse than chance"
UNSURE, UNTESTED = "cannot tell", "untested"


@dataclass(frozen=True, slots=True)
class GradeLimits:
    """What both tests must reach for each grade; ``alone``: where one test by itself says much;
    ``leaning``: where both say too much to be called chance."""

    order: float = 0.9
    words: float = 0.9
    faithful_order: float = 0.9
    faithful_words: float = 0.97
    alone: float = 0.95
    leaning: float = 0.8
    special: float = 0.5
    shortest: int = 5


LIMITS = GradeLimits()


def graded(
    order: float, words: float, special: float, length: int, limits: GradeLimits = LIMITS
) -> tuple[str, str]:
    """A grade, and in words what is weak (empty: nothing).

    ``order``: rank of its order among random ones, ``words``: of its top words among random choices,
    both from 0 to 1; ``special``: share of Σ|score| on special tokens; ``length``: words of the text.
    """
    if length < limits.shortest:
        return UNSURE, f"one text of {length} words is too short to tell"
    if order <= 1 - limits.order and words <= 1 - limits.words:
        return WORSE, ""
    if order >= limits.order and words >= limits.words:
        astray = "most of its weight lies on special tokens, which are not words"
        weak = astray if special > limits.special else ""
        strong = order >= limits.faithful_order and words >= limits.faithful_words
        return (FAITHFUL if strong and not weak else BETTER), weak
    if max(order, words) >= limits.alone:
        one = "its order beats chance, its top words do not"
        other = "its top words beat chance, its order does not"
        return UNSURE, one if order > words else other
    if min(order, words) >= limits.leaning:
        return UNSURE, "both tests lean its way, but not so far that one text can tell"
    return CHANCE, ""
