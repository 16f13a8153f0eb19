"""Grade one explanation from what each removal says about it, and say what is weak in the evidence.

A good grade needs every removal in favor by both tests, the top words and the sums over random subtexts,
and the sums under all removals together beyond what shuffled scores reach.
``benchmarks/trust_calibration.py`` chooses the thresholds on one half of its texts; ``docs/results/trust``
says what they do on the other half.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenlight.evaluation.random_subtexts import RemovalEvidence

# These words are written to files; do not change them.
FAITHFUL = "faithful"
BETTER_THAN_CHANCE = "better than chance"
NO_BETTER_THAN_CHANCE = "no better than chance"
WORSE_THAN_CHANCE = "worse than chance"
INCONCLUSIVE = "cannot tell"
UNTESTED = "untested"

GOOD_GRADES = (FAITHFUL, BETTER_THAN_CHANCE)
# Judgment of a single removal if only one of its two tests is passed.
TOP_WORDS_ALONE = "top words alone"
SUMS_ALONE = "sums alone"


@dataclass(frozen=True, slots=True)
class GradeThresholds:
    """Thresholds of the grades; every value runs from 0 (worst) to 1 (best).

    Attributes:
        share: Share of random removals that the top words must beat, under every removal.
        rank: Rank of the sums among shuffled scores, under every removal.
        joint_rank: Rank of the sums under all removals together, for "better than chance".
        faithful_share: The share, for "faithful".
        faithful_rank: The rank, for "faithful".
        faithful_joint_rank: The joint rank, for "faithful".
        alone_share: Share at which a removal counts as good by this test only.
        alone_rank: Rank at which a removal counts as good by this test only.
        hopeless_rank: Joint rank up to which no more subtexts are tried.
        max_special_share: Share of the total absolute score that may fall on special tokens.
        min_words: Words that a text needs for a grade.
    """

    share: float = 0.6
    rank: float = 0.6
    joint_rank: float = 0.93
    faithful_share: float = 0.7
    faithful_rank: float = 0.7
    faithful_joint_rank: float = 0.97
    alone_share: float = 0.85
    alone_rank: float = 0.95
    hopeless_rank: float = 0.8
    max_special_share: float = 0.5
    min_words: int = 5


DEFAULT_THRESHOLDS = GradeThresholds()


class RemovalResult(NamedTuple):
    """Measured results of one removal, from which it is graded.

    Attributes:
        share_beaten: Share of random removals with a smaller effect.
        correlation_rank: Rank of the sums of scores among shuffled ones.
        has_effect: Whether the top words lower the probability enough to see, and more than most random
            choices do.
    """

    share_beaten: float
    correlation_rank: float
    has_effect: bool

    @classmethod
    def of_evidence(cls, evidence: RemovalEvidence, min_change: float) -> "RemovalResult":
        """Read the numbers from the evidence of a removal."""
        has_effect = evidence.lowers_probability and evidence.largest_fall >= min_change
        return cls(evidence.share_beaten, evidence.correlation_rank, has_effect)


def judge_removal(result: RemovalResult, thresholds: GradeThresholds = DEFAULT_THRESHOLDS) -> str:
    """Return the judgment of one removal: a grade, or the only one of its two tests that is passed."""
    share = result.share_beaten
    rank = result.correlation_rank
    if share <= 1 - thresholds.alone_share and rank <= 1 - thresholds.alone_rank:
        return WORSE_THAN_CHANCE
    if not result.has_effect:
        return NO_BETTER_THAN_CHANCE
    beats_words = share >= thresholds.alone_share
    beats_shuffles = rank >= thresholds.alone_rank
    if beats_words and beats_shuffles:
        return BETTER_THAN_CHANCE
    if beats_words:
        return TOP_WORDS_ALONE
    if beats_shuffles:
        return SUMS_ALONE
    return NO_BETTER_THAN_CHANCE


def is_decided(
    results: Sequence[RemovalResult],
    joint_rank: float,
    thresholds: GradeThresholds = DEFAULT_THRESHOLDS,
) -> bool:
    """Return whether more random subtexts would hardly change the grade."""
    is_hopeless = (
        joint_rank <= thresholds.hopeless_rank
        and min(result.share_beaten for result in results) < thresholds.share
    )
    return is_hopeless or _is_faithful(results, joint_rank, thresholds)


def assign_grade(
    results: Sequence[RemovalResult],
    joint_rank: float,
    special_share: float,
    num_words: int,
    thresholds: GradeThresholds = DEFAULT_THRESHOLDS,
) -> tuple[str, list[str]]:
    """Grade an explanation.

    Args:
        results: The results of each removal.
        joint_rank: Rank of the sums of scores among shuffled ones, under all removals together.
        special_share: Share of the total absolute score on special tokens.
        num_words: Words of the text.
        thresholds: Thresholds of the grades.

    Returns:
        The grade, and the judgment of each removal (see :func:`judge_removal`).
    """
    judgments = [judge_removal(result, thresholds) for result in results]
    if num_words < thresholds.min_words:
        return INCONCLUSIVE, judgments
    if _is_faithful(results, joint_rank, thresholds):
        has_words = special_share <= thresholds.max_special_share
        return (FAITHFUL if has_words else BETTER_THAN_CHANCE), judgments
    is_in_favor = all(
        result.has_effect
        and result.share_beaten >= thresholds.share
        and result.correlation_rank >= thresholds.rank
        for result in results
    )
    if is_in_favor and joint_rank >= thresholds.joint_rank:
        return BETTER_THAN_CHANCE, judgments
    is_against = all(
        result.share_beaten <= 1 - thresholds.share
        and result.correlation_rank <= 1 - thresholds.rank
        for result in results
    )
    if is_against and joint_rank <= 1 - thresholds.joint_rank:
        return WORSE_THAN_CHANCE, judgments
    promising = {BETTER_THAN_CHANCE, TOP_WORDS_ALONE, SUMS_ALONE}
    if is_in_favor or promising.intersection(judgments):
        return INCONCLUSIVE, judgments
    return NO_BETTER_THAN_CHANCE, judgments


def _is_faithful(
    results: Sequence[RemovalResult], joint_rank: float, thresholds: GradeThresholds
) -> bool:
    """Return whether both tests are passed with a margin under every removal."""
    return joint_rank >= thresholds.faithful_joint_rank and all(
        result.has_effect
        and result.share_beaten >= thresholds.faithful_share
        and result.correlation_rank >= thresholds.faithful_rank
        for result in results
    )
