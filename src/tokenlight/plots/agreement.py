"""Say whether the methods that explain one target agree, where they differ, and which the tests support."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.ranks import compute_midranks
from tokenlight.plots import descriptions

NUM_COMPARED_WORDS = 5  # words of each method that are compared
GOOD_GRADES = ("faithful", "better than chance")
UNDECIDED_GRADES = ("cannot tell", "untested")
# Smallest correlation to the word for it.
AGREEMENT_WORDS = (
    (0.7, "agree"),
    (0.4, "agree in part"),
    (0.15, "agree little"),
    (-0.15, "are unrelated"),
    (-1.1, "contradict each other"),
)


class MethodPair(NamedTuple):
    """Two methods: their names, the rank correlation of their top words, and where they differ most."""

    first: str
    second: str
    correlation: float
    word: str


def describe_agreement(attributions: Sequence[Attribution], names: Sequence[str]) -> str:
    """Return one sentence on several explanations of one target; empty if there is nothing to compare.

    Args:
        attributions: Explanations of the same text and target.
        names: The name of each method.
    """
    pairs = compare_methods(attributions, names)
    if not pairs:
        return ""
    least = min(pairs, key=lambda pair: pair.correlation)
    mean = float(np.mean([pair.correlation for pair in pairs]))
    word = _find_agreement_word(mean)
    sentence = f"the methods {word} on their top words (rank correlation {mean:.2f}".replace(
        "-", "−"
    )
    if len(pairs) > 1:
        sentence += f"; least {least.first} and {least.second}, {least.correlation:.2f}".replace(
            "-", "−"
        )
    sentence += ")"
    if least.correlation < AGREEMENT_WORDS[0][0]:
        sentence += f", most apart on ‘{least.word}’"
    support = describe_support(attributions, names)
    return f"{sentence}; {support}" if support else sentence


def compare_methods(attributions: Sequence[Attribution], names: Sequence[str]) -> list[MethodPair]:
    """Compare every two methods on the words that either ranks among its first five."""
    first_row = attributions[0].row
    is_comparable = first_row.image is None and len(set(names)) == len(names)
    if not is_comparable or any(a.row.ids != first_row.ids for a in attributions):
        return []
    words = [[word for word, _ in a.words()] for a in attributions]
    scores = [np.array([score for _, score in a.words()]) for a in attributions]
    pairs = []
    for i, j in combinations(range(len(attributions)), 2):
        top = np.union1d(_top_words(scores[i]), _top_words(scores[j]))
        ranks = [compute_midranks(scores[k][top]) for k in (i, j)]
        if len(top) < 2 or any(np.ptp(row) == 0 for row in ranks):
            continue
        correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
        farthest = int(np.abs(ranks[0] - ranks[1]).argmax())
        pairs.append(MethodPair(names[i], names[j], correlation, words[i][top[farthest]].strip()))
    return pairs


def _top_words(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, kind="stable")[:NUM_COMPARED_WORDS]


def _find_agreement_word(correlation: float) -> str:
    return next(word for least, word in AGREEMENT_WORDS if correlation >= least)


def describe_support(attributions: Sequence[Attribution], names: Sequence[str]) -> str:
    """Say which methods the trust tests support; empty if some method was not tested."""
    grades = [descriptions.get_grade(attribution) for attribution in attributions]
    if not all(grades):
        return ""
    supported = [name for name, grade in zip(names, grades, strict=True) if grade in GOOD_GRADES]
    if not supported:
        return "the tests support none of them, so they cannot tell which is right"
    support = "the tests support all of them"
    if len(supported) < len(names):
        support = f"the tests support {', '.join(supported)}"
    return f"{support}{_describe_rest(attributions, names, supported)}"


def _describe_rest(
    attributions: Sequence[Attribution], names: Sequence[str], supported: Sequence[str]
) -> str:
    """Say that supported methods differ, or of which other methods the tests cannot tell."""
    pairs = compare_methods(attributions, names)
    rivals = [pair for pair in pairs if {pair.first, pair.second} <= set(supported)]
    if rivals and min(pair.correlation for pair in rivals) < AGREEMENT_WORDS[1][0]:
        return ", though these differ: they cannot tell which of them is right"
    undecided = []
    for attribution, name in zip(attributions, names, strict=True):
        if descriptions.get_grade(attribution) in UNDECIDED_GRADES:
            undecided.append(name)
    if undecided:
        return f"; they cannot tell about {', '.join(undecided)}"
    return ""
