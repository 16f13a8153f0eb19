"""Say whether the methods that explain one target agree, where they differ, and which the tests support."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.ranks import compute_midranks
from tokenlight.data.trust import GOOD_GRADES, UNDECIDED_GRADES
from tokenlight.plots import descriptions

NUM_COMPARED_WORDS = 5  # words of each method that are compared
# From the smallest correlation on: the phrase for it.
AGREEMENT_PHRASES = (
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
    least_similar_pair = min(pairs, key=lambda pair: pair.correlation)
    mean = float(np.mean([pair.correlation for pair in pairs]))
    phrase = _find_agreement_phrase(mean)
    figures = f"rank correlation {descriptions.format_correlation(mean)}"
    if len(pairs) > 1:
        first, second, correlation, _ = least_similar_pair
        figures += (
            f"; lowest for {first} and {second}: {descriptions.format_correlation(correlation)}"
        )
    sentence = f"the methods {phrase} on their top words ({figures})"
    if least_similar_pair.correlation < AGREEMENT_PHRASES[0][0]:
        sentence += f"; they differ most on ‘{least_similar_pair.word}’"
    support = describe_support(attributions, names)
    return f"{sentence}; {support}" if support else sentence


def compare_methods(attributions: Sequence[Attribution], names: Sequence[str]) -> list[MethodPair]:
    """Compare every two methods on the words that either ranks among its first five.

    Args:
        attributions: Explanations of one text, one per method.
        names: The name of each method.
    """
    first_row = attributions[0].row
    is_comparable = first_row.image is None and len(set(names)) == len(names)
    if not is_comparable or any(item.row.ids != first_row.ids for item in attributions):
        return []
    methods = []
    for name, attribution in zip(names, attributions, strict=True):
        scored_words = attribution.words()
        words = [word for word, _ in scored_words]
        scores = np.array([score for _, score in scored_words])
        methods.append(_MethodWords(name, words, scores))
    pairs = []
    for first, second in combinations(methods, 2):
        pair = _compare_pair(first, second)
        if pair is not None:
            pairs.append(pair)
    return pairs


class _MethodWords(NamedTuple):
    """A method with the words of the text and its scores for them."""

    name: str
    words: list[str]
    scores: np.ndarray


def _compare_pair(first: _MethodWords, second: _MethodWords) -> MethodPair | None:
    """Compare two methods on their top words; None where one of them ranks all of these alike."""
    top = np.union1d(_top_words(first.scores), _top_words(second.scores))
    first_ranks = compute_midranks(first.scores[top])
    second_ranks = compute_midranks(second.scores[top])
    # A constant has no correlation.
    if len(top) < 2 or np.ptp(first_ranks) == 0 or np.ptp(second_ranks) == 0:
        return None
    correlation = float(np.corrcoef(first_ranks, second_ranks)[0, 1])
    farthest = int(np.abs(first_ranks - second_ranks).argmax())
    return MethodPair(first.name, second.name, correlation, first.words[top[farthest]].strip())


def _top_words(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, kind="stable")[:NUM_COMPARED_WORDS]


def _find_agreement_phrase(correlation: float) -> str:
    return next(phrase for lowest, phrase in AGREEMENT_PHRASES if correlation >= lowest)


def describe_support(attributions: Sequence[Attribution], names: Sequence[str]) -> str:
    """Say which methods the trust tests support; empty if some method was not tested.

    Args:
        attributions: Explanations of one text, one per method.
        names: The name of each method.
    """
    grades = [descriptions.get_grade(attribution) for attribution in attributions]
    if not all(grades):
        return ""
    supported = [name for name, grade in zip(names, grades, strict=True) if grade in GOOD_GRADES]
    if not supported:
        return "none of them has a good grade, so the tests cannot tell which is right"
    support = "the tests support all of them"
    if len(supported) < len(names):
        support = f"the tests support {', '.join(supported)}"
    return f"{support}{_describe_open_questions(attributions, names, supported)}"


def _describe_open_questions(
    attributions: Sequence[Attribution], names: Sequence[str], supported: Sequence[str]
) -> str:
    """Say that supported methods differ, or of which other methods the tests cannot tell."""
    pairs = compare_methods(attributions, names)
    rivals = [pair for pair in pairs if {pair.first, pair.second} <= set(supported)]
    if rivals and min(pair.correlation for pair in rivals) < AGREEMENT_PHRASES[1][0]:
        return ", though these differ: they cannot tell which of them is right"
    undecided = []
    for attribution, name in zip(attributions, names, strict=True):
        if descriptions.get_grade(attribution) in UNDECIDED_GRADES:
            undecided.append(name)
    if undecided:
        return f"; they cannot tell about {', '.join(undecided)}"
    return ""
