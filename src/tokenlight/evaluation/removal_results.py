"""The results of a removal test as JSON values: the keys of ``extras["trust"]``, with their types."""

from typing import NotRequired, TypedDict


class SavedPartialTexts(TypedDict):
    """What is saved of every random partial text under one removal, for the page's charts.

    Attributes:
        sums: The sum of the scores of the words that are left.
        log_odds: The log-odds of the target.
        removed: How many words are removed.
    """

    sums: list[float]
    log_odds: list[float]
    removed: list[int]


class SavedRemoval(TypedDict):
    """What is saved of :class:`~tokenlight.evaluation.removal_evidence.RemovalEvidence`.

    Attributes:
        removal: The name of the removal.
        action: What it does to words, as a sentence says it.
        share_beaten: Share of random choices that lower the log-odds less than the top words.
        num_stronger: How many random choices lower them as much.
        half_contrast: How much the better half of the words outweighs the other half.
        rest_contrast: The same for the words after the top words.
        correlation: That of sums of scores with the log-odds of random partial texts.
        correlation_rank: Share of shuffled scores with a lower correlation.
        counts: How many words are removed at each point of ``curve``.
        curve: The probability of the target as more and more words are removed, best first.
        other_half: The probability without the lower-scored half.
        random_low: The 5th percentile of the probability without as many random words, at two points.
        random_high: The 95th percentile.
        log_odds_fall: The fall of the log-odds without the top words.
        log_odds_random: The 5th and the 95th percentile of the fall without random words.
        partial_texts: Every random partial text.
    """

    removal: str
    action: str
    share_beaten: float
    num_stronger: int
    half_contrast: float
    rest_contrast: float
    correlation: float
    correlation_rank: float
    counts: list[int]
    curve: list[float]
    other_half: float
    random_low: list[float]
    random_high: list[float]
    log_odds_fall: float
    log_odds_random: list[float]
    partial_texts: SavedPartialTexts


class SavedRemovalTest(TypedDict):
    """What is saved of all removals, graded or not.

    Attributes:
        removals: Those of each removal.
        top_words: The words with the highest scores, best first.
        num_words: How many words can be removed.
        num_orders: How many random orders were tried.
        before: The probability of the target in the whole text.
        after: The probability without the top words, under the first removal.
        evidence: All tests added up, in about their standard deviations.
        joint_rank: Share of shuffled scores that predict the partial texts less well.
        has_signs: Whether positive and negative scores claim different things.
        zero_shift: What must be added to every word for sums to follow texts of all sizes best; None for
            scores without signs.
        rest_contrast: The contrast of the words after the top words, over all removals.
        rest_effect: The most that the words after the top words do, as a share of what the top words do;
            None where removing the top words lowers nothing.
        position_rank: The joint rank beyond the positions of the words.
        special_share: Share of the total absolute score on special tokens.
        max_change: The largest change of the probability by any removal.
    """

    removals: list[SavedRemoval]
    top_words: list[str]
    num_words: int
    num_orders: int
    before: float
    after: float
    evidence: float
    joint_rank: float
    has_signs: bool
    zero_shift: float | None
    rest_contrast: float
    rest_effect: float | None
    position_rank: float
    special_share: float
    max_change: float


class GradedRemovalTest(SavedRemovalTest):
    """The numbers of all removals with what they mean.

    Attributes:
        grade: One of :data:`tokenlight.data.trust.GRADES`.
        judgments: The judgment of each removal.
        weakness: Why the grade is not better; empty if the tests themselves say it.
        verdict: One sentence.
        findings: The findings behind the grade, a sentence each.
    """

    grade: str
    judgments: list[str]
    weakness: str
    verdict: str
    findings: list[str]


class UngradedRemovalTest(SavedRemovalTest):
    """The numbers of removals that hardly change the output, whatever they remove.

    Attributes:
        verdict: One sentence that says so.
        grade: ``untested``.
    """

    verdict: str
    grade: str


class UntestedExplanation(TypedDict):
    """Why an explanation was not tested.

    Attributes:
        grade: ``untested``.
        verdict: The reason.
        before: The probability of the target, if that is the reason.
    """

    grade: str
    verdict: str
    before: NotRequired[float]


RemovalTestResult = GradedRemovalTest | UngradedRemovalTest | UntestedExplanation
