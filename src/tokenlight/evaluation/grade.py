"""Grade one explanation from what each removal says about it, and say what is weak in the evidence.

A good grade needs every removal in favor, and enough points over all of them: how far the better half of
its words outweighs the other half, how well its sums follow random partial texts, and how many random choices
its top words beat are added up, so that one test that random partial texts happen to make weak is outweighed.
Signed scores also need their zero where the model has it. The thresholds were chosen on one half of recorded
texts; ``benchmarks/trust_report.py`` counts what they do on the other half.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np

from tokenlight.data.trust import (
    BETTER_THAN_CHANCE,
    FAITHFUL,
    GOOD_GRADES,
    INCONCLUSIVE,
    NO_BETTER_THAN_CHANCE,
    WORSE_THAN_CHANCE,
)
from tokenlight.evaluation.partial_text_statistics import compute_zero_shift
from tokenlight.evaluation.removal_evidence import (
    RemovalEvidence,
    rank_all_removals,
    rank_beyond_position,
)

# Judgment of a single removal if only one of its two tests is passed.
TOP_WORDS_ALONE = "top words alone"
SUMS_ALONE = "sums alone"

# A change of the probability below this is not called a change.
MIN_VISIBLE_CHANGE = 0.005
# A change that a person would notice; half of the probability, if that is less.
MIN_PROBABILITY_CHANGE = 0.05
# One test gives at most this many points, so that none decides alone.
MAX_CONTRAST_POINTS = 3.0
MAX_RANK = 0.995  # whose normal deviate is 2.6
SHARE_WEIGHT = 2.0  # of the share of random choices beaten: all of them add 1


@dataclass(frozen=True, slots=True)
class GradeThresholds:
    """Thresholds of the grades; shares and ranks run from 0 (worst) to 1 (best).

    Attributes:
        min_points: The points over all removals; see :func:`give_points`.
        min_faithful_points: The points, for "faithful".
        min_undecided_points: The points from which on scores without a good grade are "cannot tell".
        min_removal_points: The points under every single removal.
        share: Share of random choices that the top words must beat, over all removals.
        joint_rank: Rank of the sums among shuffled scores, under all removals together.
        contrast: Contrast of the better half with the other half over all removals, in units of the same
            contrast of random halves. It must be positive under every removal.
        rest_contrast: Contrast of the words after the top words, over all removals. Less means that their
            order is the wrong way round.
        faithful_rest_contrast: The same contrast, for "faithful".
        position_rank: Rank of the sums among shuffled ones beyond what the positions of the words say.
        zero_shift: How far the zero of signed scores may be off, in standard deviations of the scores.
        alone_share: Share at which a removal counts as good by this test only.
        alone_rank: Rank at which a removal counts as good by this test only.
        clear_margin: How far beyond their threshold the points must be to stop early.
        max_special_share: Share of the total absolute score that may fall on special tokens.
        min_words: Words that a text needs for a grade.
    """

    min_points: float = 3.5
    min_faithful_points: float = 4.5
    min_undecided_points: float = 2.0
    min_removal_points: float = 1.0
    share: float = 0.6
    joint_rank: float = 0.7
    contrast: float = 0.5
    rest_contrast: float = -0.25
    faithful_rest_contrast: float = 0.25
    position_rank: float = 0.8
    zero_shift: float = 1.0
    alone_share: float = 0.85
    alone_rank: float = 0.95
    clear_margin: float = 0.5
    max_special_share: float = 0.5
    min_words: int = 5


DEFAULT_THRESHOLDS = GradeThresholds()


def compute_min_change(whole_probability: float) -> float:
    """Return the smallest change that counts, from the probability in the whole text."""
    return min(MIN_PROBABILITY_CHANGE, whole_probability / 2)


class PointsByTest(NamedTuple):
    """The points of each test, in about its standard deviations: 0 for chance.

    Attributes:
        halves: Of the better half against the other half.
        sums: Of the sums of scores over random partial texts.
        top_words: Of the top words against random choices.
    """

    halves: float
    sums: float
    top_words: float

    @property
    def total(self) -> float:
        """All points; at most 6.6."""
        return self.halves + self.sums + self.top_words


def give_points(contrast: float, rank: float, share: float) -> PointsByTest:
    """Return the points of the three tests.

    Args:
        contrast: The contrast of the halves.
        rank: The rank of the sums among shuffled scores; its normal deviate counts.
        share: The share of random choices that the top words beat.
    """
    limited = float(np.clip(contrast, -MAX_CONTRAST_POINTS, MAX_CONTRAST_POINTS))
    deviate = NormalDist().inv_cdf(float(np.clip(rank, 1 - MAX_RANK, MAX_RANK)))
    return PointsByTest(limited, deviate, SHARE_WEIGHT * (share - 0.5))


class JudgedRemoval(Protocol):
    """What a removal is judged by; :class:`RemovalEvidence` measures it.

    Attributes:
        share_beaten: Share of random choices of as many words as the top words with a smaller effect.
        correlation_rank: Rank of the sums of scores among shuffled ones.
        top_fall: Fall of the probability without the top words.
        half_fall: Fall of the probability without the better half.
        half_contrast: Contrast of the better half with the other half.
        rest_contrast: The same contrast among the words after the top words.
        half_unit: What both contrasts are divided by: how much random halves differ, in log-odds.
    """

    @property
    def share_beaten(self) -> float: ...
    @property
    def correlation_rank(self) -> float: ...
    @property
    def top_fall(self) -> float: ...
    @property
    def half_fall(self) -> float: ...
    @property
    def half_contrast(self) -> float: ...
    @property
    def rest_contrast(self) -> float: ...
    @property
    def half_unit(self) -> float: ...


def count_removal_points(removal: JudgedRemoval) -> float:
    """Add up the points of the tests under one removal."""
    points = give_points(removal.half_contrast, removal.correlation_rank, removal.share_beaten)
    return points.total


def is_any_fall_visible(removal: JudgedRemoval) -> bool:
    """Return whether the probability falls visibly without the top words, or without the better half."""
    return max(removal.top_fall, removal.half_fall) >= MIN_VISIBLE_CHANGE


class NoticeableFalls(NamedTuple):
    """Whether the probability falls visibly under every removal, and noticeably on the mean.

    Attributes:
        of_top_or_half: Without the top words or the better half, whichever lowers it more.
        of_top: Without only the top words.
    """

    of_top_or_half: bool
    of_top: bool


class JointEvidence(NamedTuple):
    """What an explanation is judged by: the evidence of all removals together.

    Attributes:
        removals: The evidence of each removal.
        joint_rank: Rank of the sums of scores among shuffled ones, under all removals together.
        zero_shift: What would have to be added to every word for the sums to follow partial texts of all
            sizes best, in standard deviations of the scores; None for scores without signs.
        min_change: The smallest change of the probability that a person would notice.
        num_words: Number of words in the text.
        special_share: Share of the total absolute score on special tokens.
        position_rank: Rank of the sums among shuffled ones beyond what the positions of the words say.
    """

    removals: tuple[JudgedRemoval, ...]
    joint_rank: float
    zero_shift: float | None
    min_change: float
    num_words: int
    special_share: float = 0.0
    position_rank: float = 1.0

    @classmethod
    def from_removals(
        cls,
        evidence_by_removal: Sequence[RemovalEvidence],
        *,
        is_signed: bool,
        min_change: float,
        special_share: float,
    ) -> "JointEvidence":
        """Read the numbers from the evidence of all removals."""
        zero_shift = None
        if is_signed:
            zero_shift = compute_zero_shift(
                np.concatenate([item.removed_score_sums for item in evidence_by_removal]),
                np.concatenate([item.num_removed for item in evidence_by_removal]),
                np.concatenate([item.log_odds_falls for item in evidence_by_removal]),
            )
            zero_shift /= evidence_by_removal[0].spread
        return cls(
            removals=tuple(evidence_by_removal),
            joint_rank=rank_all_removals(evidence_by_removal),
            zero_shift=zero_shift,
            min_change=min_change,
            num_words=evidence_by_removal[0].num_words,
            special_share=special_share,
            position_rank=rank_beyond_position(evidence_by_removal),
        )

    @property
    def share_beaten(self) -> float:
        """Share of random choices that the top words beat, over all removals."""
        return float(np.mean([removal.share_beaten for removal in self.removals]))

    @property
    def half_contrast(self) -> float:
        """Contrast of the better half with the other half, over all removals."""
        return self._join_contrasts([removal.half_contrast for removal in self.removals])

    @property
    def rest_contrast(self) -> float:
        """Contrast of the words after the top words, over all removals."""
        return self._join_contrasts([removal.rest_contrast for removal in self.removals])

    def _join_contrasts(self, contrasts: Sequence[float]) -> float:
        """Divide the sum of the differences by the sum of their units: a unit of few halves may be tiny."""
        units = [removal.half_unit for removal in self.removals]
        return float(np.average(contrasts, weights=units))

    @property
    def points_by_test(self) -> PointsByTest:
        """The points of each test over all removals."""
        return give_points(self.half_contrast, self.joint_rank, self.share_beaten)

    @property
    def points(self) -> float:
        """The points of all tests over all removals."""
        return self.points_by_test.total

    def find_noticeable_falls(self) -> NoticeableFalls:
        """Return what lowers the probability enough for a good grade, and for "faithful"."""
        top_falls = [removal.top_fall for removal in self.removals]
        largest_falls = [max(removal.top_fall, removal.half_fall) for removal in self.removals]
        return NoticeableFalls(self._is_noticeable(largest_falls), self._is_noticeable(top_falls))

    def _is_noticeable(self, falls: Sequence[float]) -> bool:
        """Return whether all falls are visible, and their mean noticeable."""
        return min(falls) >= MIN_VISIBLE_CHANGE and float(np.mean(falls)) >= self.min_change


def judge_removal(removal: JudgedRemoval, thresholds: GradeThresholds = DEFAULT_THRESHOLDS) -> str:
    """Return the judgment of one removal: a grade, or the only one of its two tests that is passed."""
    share = removal.share_beaten
    rank = removal.correlation_rank
    if share <= 1 - thresholds.alone_share and rank <= 1 - thresholds.alone_rank:
        return WORSE_THAN_CHANCE
    if not is_any_fall_visible(removal) or removal.half_contrast <= 0:
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


def has_plausible_signs(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Return whether the signs may be right; scores without signs claim nothing."""
    return joint.zero_shift is None or abs(joint.zero_shift) <= thresholds.zero_shift


def has_plausible_rest_order(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Return whether the order of the words after the top words may be right."""
    return joint.rest_contrast >= thresholds.rest_contrast


def says_more_than_positions(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Return whether the scores say more than the positions of the words."""
    return joint.position_rank >= thresholds.position_rank


def would_pass_without_signs(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Return whether the grade would be good if the scores had no signs."""
    if has_plausible_signs(joint, thresholds):
        return False
    grade, _ = assign_grade(joint._replace(zero_shift=None), thresholds)
    return grade in GOOD_GRADES


def would_pass_with_top_words_alone(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Return whether the grade would be good if only the top words had an order."""
    if has_plausible_rest_order(joint, thresholds):
        return False
    grade, _ = assign_grade(joint, replace(thresholds, rest_contrast=-np.inf))
    return grade in GOOD_GRADES


def would_pass_by_positions(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> bool:
    """Return whether the grade is not good only because positions explain the scores as well."""
    if says_more_than_positions(joint, thresholds):
        return False
    grade, _ = assign_grade(joint, replace(thresholds, position_rank=0.0))
    return grade in GOOD_GRADES


def is_decided(joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS) -> bool:
    """Return whether more random partial texts would hardly change the grade, for better or worse."""
    if joint.num_words < thresholds.min_words:
        return True
    margin = thresholds.clear_margin
    # What the explanation chooses does not depend on chance: if its better half is the wrong one under every
    # removal, no number of orders helps.
    has_no_contrast = max(removal.half_contrast for removal in joint.removals) <= 0
    is_clearly_bad = has_no_contrast or joint.points < thresholds.min_undecided_points - margin
    stricter_thresholds = replace(
        thresholds,
        min_faithful_points=thresholds.min_faithful_points + margin,
        faithful_rest_contrast=thresholds.faithful_rest_contrast + margin,
        zero_shift=thresholds.zero_shift / 2,
    )
    return is_clearly_bad or _is_faithful(joint, stricter_thresholds)


def assign_grade(
    joint: JointEvidence, thresholds: GradeThresholds = DEFAULT_THRESHOLDS
) -> tuple[str, list[str]]:
    """Grade an explanation.

    Args:
        joint: The evidence of all removals.
        thresholds: Thresholds of the grades.

    Returns:
        The grade, and the judgment of each removal (see :func:`judge_removal`).
    """
    judgments = [judge_removal(removal, thresholds) for removal in joint.removals]
    # A short text has too few words to tell an order from chance.
    if joint.num_words < thresholds.min_words:
        return INCONCLUSIVE, judgments
    grade = _find_good_grade(joint, thresholds)
    if grade is not None:
        return grade, judgments
    if _all_tests_oppose(joint, thresholds):
        return WORSE_THAN_CHANCE, judgments
    # Without a good grade, what speaks for the explanation only keeps it from being called chance.
    has_some_points = joint.points >= thresholds.min_undecided_points
    is_undecided = has_some_points and _all_tests_favor(joint, thresholds)
    promising = {BETTER_THAN_CHANCE, TOP_WORDS_ALONE, SUMS_ALONE}
    if is_undecided or promising.intersection(judgments):
        return INCONCLUSIVE, judgments
    return NO_BETTER_THAN_CHANCE, judgments


def _find_good_grade(joint: JointEvidence, thresholds: GradeThresholds) -> str | None:
    """Return the grade of an explanation that all tests clearly favor; None for any other."""
    if _is_faithful(joint, thresholds):
        # Scores that fall mostly on special tokens say little about the words.
        has_words = joint.special_share <= thresholds.max_special_share
        return FAITHFUL if has_words else BETTER_THAN_CHANCE
    if joint.points < thresholds.min_points or not _all_tests_favor(joint, thresholds):
        return None
    # The evidence is there, but signs, the order of the rest or positions may contradict it.
    is_consistent = (
        has_plausible_signs(joint, thresholds)
        and has_plausible_rest_order(joint, thresholds)
        and says_more_than_positions(joint, thresholds)
    )
    return BETTER_THAN_CHANCE if is_consistent else INCONCLUSIVE


def _all_tests_favor(joint: JointEvidence, thresholds: GradeThresholds) -> bool:
    """Return whether every test speaks for the explanation, even if not clearly."""
    return (
        joint.find_noticeable_falls().of_top_or_half
        and joint.share_beaten >= thresholds.share
        and joint.joint_rank >= thresholds.joint_rank
        and joint.half_contrast >= thresholds.contrast
        and all(_removal_favors(removal, thresholds) for removal in joint.removals)
    )


def _removal_favors(removal: JudgedRemoval, thresholds: GradeThresholds) -> bool:
    """Return whether one removal speaks for the explanation, even if not clearly."""
    return (
        removal.half_contrast > 0 and count_removal_points(removal) >= thresholds.min_removal_points
    )


def _all_tests_oppose(joint: JointEvidence, thresholds: GradeThresholds) -> bool:
    """Return whether all tests speak against the explanation, under every removal."""
    return (
        joint.points <= -thresholds.min_points
        and joint.share_beaten <= 1 - thresholds.share
        and joint.joint_rank <= 1 - thresholds.joint_rank
        and all(removal.half_contrast < 0 for removal in joint.removals)
    )


def _is_faithful(joint: JointEvidence, thresholds: GradeThresholds) -> bool:
    """Return whether the evidence is clear, also of the top words alone, of the rest and of the signs."""
    return (
        _all_tests_favor(joint, thresholds)
        and joint.points >= thresholds.min_faithful_points
        and joint.find_noticeable_falls().of_top
        and joint.rest_contrast >= thresholds.faithful_rest_contrast
        and says_more_than_positions(joint, thresholds)
        and has_plausible_signs(joint, thresholds)
    )
