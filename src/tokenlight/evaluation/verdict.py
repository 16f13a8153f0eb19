"""Verdicts in plain English: one sentence per grade, and the findings behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isinf
from statistics import fmean
from typing import NamedTuple

from tokenlight.data.attribution import Attribution
from tokenlight.data.trust import (
    BETTER_THAN_CHANCE,
    FAITHFUL,
    GOOD_GRADES,
    INCONCLUSIVE,
    WORSE_THAN_CHANCE,
)
from tokenlight.evaluation.grade import (
    DEFAULT_THRESHOLDS,
    MIN_VISIBLE_CHANGE,
    SUMS_ALONE,
    TOP_WORDS_ALONE,
    NoticeableFalls,
    PointsByTest,
)
from tokenlight.evaluation.removal_results import GradedRemovalTest, SavedRemoval
from tokenlight.plots.descriptions import format_correlation, format_percent

# Up to this share of what the top words do, the others "hardly matter".
MAX_MINOR_REST_EFFECT = 0.25
REPLACED = "replaced "
REPLACED_BY = "replaced by "
MAX_NAMED_WORDS = 5  # top words that a sentence lists


@dataclass(frozen=True)
class RemovedUnits:
    """Names of the removed units and of the measured probability, for a verdict.

    Attributes:
        noun: One unit: ``word``, ``patch``, or ``patch or word``.
        plural: Several of them.
        outcome: What the probability is of, such as ``positive`` or ``the answer``.
    """

    noun: str
    plural: str
    outcome: str

    @classmethod
    def from_attribution(cls, attribution: Attribution) -> "RemovedUnits":
        """Return the words for a text, an image, or an image with a text."""
        is_answer = attribution.target.kind == "span"
        outcome = "the answer" if is_answer else attribution.target.name
        image = attribution.row.image
        if image is None:
            return cls("word", "words", outcome)
        if image.token_positions:
            return cls("patch or word", "patches and words", outcome)
        return cls("patch", "patches", outcome)

    @property
    def probability(self) -> str:
        """The probability, such as "the probability of positive"."""
        return f"the probability of {self.outcome}"

    @property
    def separator(self) -> str:
        """Names of patches contain commas."""
        return ", " if self.noun == "word" else "; "

    def format_top_units(self, num_units: int) -> str:
        """Return "the top word" or "the 3 top words"."""
        return f"the top {self.noun}" if num_units == 1 else f"the {num_units} top {self.plural}"

    def format_random_units(self, num_units: int) -> str:
        """Return "a random word" or "3 random words"."""
        return f"a random {self.noun}" if num_units == 1 else f"{num_units} random {self.plural}"


class CurvePoints(NamedTuple):
    """The probability of the target as one removal changes it, in the order of a saved ``curve``.

    A curve may end with the probability of the empty text, which no sentence names.

    Attributes:
        whole_probability: With nothing removed.
        without_top: Without the top units.
        without_half: Without the higher-scored half of the units.
    """

    whole_probability: float
    without_top: float
    without_half: float


def _read_probabilities(removal: SavedRemoval) -> CurvePoints:
    """Return the probabilities of a removal, as its results are saved."""
    whole_probability, without_top, without_half, *_ = removal["curve"]
    return CurvePoints(whole_probability, without_top, without_half)


def _is_rest_confirmed(result: GradedRemovalTest) -> bool:
    """Return whether the order after the top words is as good as "faithful" asks for."""
    return bool(result["rest_contrast"] >= DEFAULT_THRESHOLDS.faithful_rest_contrast)


def describe_unlikely_target(units: RemovedUnits, whole_probability: float) -> str:
    """Say that a target which the model does not believe in cannot lose probability."""
    return (
        f"the model gives {units.outcome} a probability of only {format_percent(whole_probability)}, too low "
        "for a fall to be measured"
    )


def describe_insensitive_target(
    units: RemovedUnits, whole_probability: float, max_change: float
) -> str:
    """Say that the model answers the same whatever is removed."""
    change = format_percent(max_change).replace(" %", " percentage points")
    return (
        f"whatever {units.plural} are removed, {units.probability} stays within {change} of "
        f"{format_percent(whole_probability)}, so there is no effect to test"
    )


def describe_ties(units: RemovedUnits, num_tied: int, num_tokens: int) -> str:
    """Say that equal scores rank nothing."""
    if num_tied == num_tokens:
        return f"all {units.plural} have the same score, so the explanation ranks nothing"
    return f"{num_tied} of {num_tokens} tokens have the same score, so there is hardly any order to test"


def describe_cancellation(units: RemovedUnits) -> str:
    """Say that most scores lie where the removal of whole words does not see them."""
    return f"most of its scores cancel out within {units.plural}, and only whole {units.plural} are removed"


def describe_few_orders(num_orders: int, num_needed: int) -> str:
    """Say that too little chance was tried for a grade."""
    plural = "order was" if num_orders == 1 else "orders were"
    return f"only {num_orders} random {plural} tried, but a grade needs {num_needed}"


def describe_sign_mismatch(units: RemovedUnits, zero_shift: float) -> str:
    """Say that the signs, or the sizes, of the scores are not those of the model."""
    if isinf(zero_shift):
        return (
            f"the order of its {units.plural} is right, but the signs and sizes of its scores are not: for "
            f"partial texts of different lengths they predict no more than the number of {units.plural} does"
        )
    direction = "low" if zero_shift > 0 else "high"
    return (
        f"the order of its {units.plural} is right, but the signs and sizes of its scores are not: all "
        f"scores are too {direction} by {abs(zero_shift):.1f} of their standard deviations"
    )


def describe_rest(units: RemovedUnits) -> str:
    """Say that the order of the words after the top words is the wrong way round."""
    return (
        f"its top {units.plural} are confirmed, but the order of the others is not: removing the "
        f"lowest-scored {units.plural} lowers the probability more than removing the next best ones"
    )


def describe_position(units: RemovedUnits) -> str:
    """Say that the scores follow the positions of the words, and nothing else is confirmed."""
    return (
        f"what its scores get right follows from where the {units.plural} stand in the text: an order from "
        "first to last, or from last to first, does as well"
    )


def describe_result(
    result: GradedRemovalTest,
    units: RemovedUnits,
    falls: NoticeableFalls,
) -> str:
    """Return the verdict: why this grade, then what removing the top words does.

    Args:
        result: The results as they are saved.
        units: The removed units.
        falls: What lowers the probability enough, as the grade decided it.
    """
    is_good = result["grade"] in GOOD_GRADES
    parts = [_describe_reason(result, units, falls), describe_effect(result, units)]
    if is_good:
        parts += _describe_falls(result, units)
    parts.append(describe_random_choices(result, units))
    if is_good and not _is_rest_confirmed(result):
        parts.append(_describe_unconfirmed_rest(result, units))
    if is_good and not falls.of_top:
        parts.append(f"the top {units.plural} alone hardly lower the probability")
    parts.append(_describe_points(result))
    return "; ".join(filter(None, parts))


def _describe_reason(result: GradedRemovalTest, units: RemovedUnits, falls: NoticeableFalls) -> str:
    """Say what a good grade lacks; of a good one only its weakness, if it has one."""
    grade = result["grade"]
    actions = [removal["action"] for removal in result["removals"]]
    if result["weakness"] or grade in GOOD_GRADES:
        return result["weakness"]
    if grade == INCONCLUSIVE:
        return _describe_disagreement(actions, result["judgments"], units)
    if grade == WORSE_THAN_CHANCE:
        return (
            f"its top {units.plural} matter less than random ones, whether they are "
            f"{_join(actions, 'or')}"
        )
    return _describe_failed_test(result, actions, units, falls)


def _describe_failed_test(
    result: GradedRemovalTest,
    actions: Sequence[str],
    units: RemovedUnits,
    falls: NoticeableFalls,
) -> str:
    """Name the first test that an explanation fails which is no better than chance."""
    removals = result["removals"]
    if not falls.of_top_or_half:
        return (
            f"neither its top {units.plural} nor the half that it scores higher visibly lower the "
            "probability"
        )
    when_removed = f"whether they are {_join(actions, 'or')}"
    if fmean(removal["share_beaten"] for removal in removals) < DEFAULT_THRESHOLDS.share:
        return f"its top {units.plural} matter no more than random ones, {when_removed}"
    if min(removal["half_contrast"] for removal in removals) <= 0:
        return f"the half of the {units.plural} that it scores higher matters no more than the other half"
    if result["joint_rank"] < DEFAULT_THRESHOLDS.joint_rank:
        return f"its scores do not predict how the model answers without random {units.plural}"
    return f"its {units.plural} matter hardly more than random ones, {when_removed}"


def _describe_unconfirmed_rest(result: GradedRemovalTest, units: RemovedUnits) -> str:
    """Say that the order after the top words is not confirmed, and where this is no fault of the scores."""
    if _has_minor_rest(result):
        return (
            f"beside these, the other {units.plural} hardly matter, so their order cannot be tested"
        )
    return f"the order of its other {units.plural} is not confirmed"


def _has_minor_rest(result: GradedRemovalTest) -> bool:
    """Return whether the words after the top words do little, beside what the top words do."""
    rest_effect = result["rest_effect"]
    return rest_effect is not None and rest_effect <= MAX_MINOR_REST_EFFECT


def _describe_points(result: GradedRemovalTest) -> str:
    """Say what all tests add up to, beside what the next better grade needs; empty where that is reached."""
    points = result["evidence"]
    thresholds = DEFAULT_THRESHOLDS
    needed = f"a good grade needs {thresholds.min_points}"
    if result["grade"] == FAITHFUL:
        needed = f"“{FAITHFUL}” needs {thresholds.min_faithful_points}"
    elif result["grade"] == BETTER_THAN_CHANCE:
        # With enough points for it, "faithful" fails for another reason, which the verdict has named.
        if points < thresholds.min_faithful_points:
            needed += f", “{FAITHFUL}” {thresholds.min_faithful_points}"
    elif points >= thresholds.min_points:
        return ""  # it is not for want of points
    return f"all tests together give {_format_points(points)} (chance gives 0, {needed})"


def _describe_falls(result: GradedRemovalTest, units: RemovedUnits) -> list[str]:
    """Say under which other removals the probability falls; where not under all, what the half does."""
    first, *others = result["removals"]
    falling = [other["action"] for other in others if _is_top_fall_visible(other)]
    falls_first = _is_top_fall_visible(first)
    parts = []
    if falling:
        they_are = f"the {units.noun} is" if len(result["top_words"]) == 1 else "they are"
        verb = "also falls" if falls_first else "falls"
        parts.append(f"it {verb} when {they_are} {_join(falling, 'or')}")
    if falls_first and len(falling) == len(others):
        return parts
    halves = [_read_probabilities(removal).without_half for removal in result["removals"]]
    low, high = format_percent(min(halves)), format_percent(max(halves))
    value = low if low == high else f"{low} to {high}"
    parts.append(f"without the higher-scored half of the {units.plural} it is {value}")
    return parts


def _is_top_fall_visible(removal: SavedRemoval) -> bool:
    """Return whether the probability falls visibly without the top words."""
    probabilities = _read_probabilities(removal)
    fall = probabilities.whole_probability - probabilities.without_top
    return bool(fall >= MIN_VISIBLE_CHANGE)


def describe_effect(result: GradedRemovalTest, units: RemovedUnits) -> str:
    """Say what the first removal of the top words does to the probability."""
    first = result["removals"][0]
    top_words = result["top_words"]
    names = units.separator.join(map(_quote_punctuation, top_words[:MAX_NAMED_WORDS]))
    if len(top_words) > MAX_NAMED_WORDS:
        names += " …"
    whole_probability, without_top, _ = _read_probabilities(first)
    change = f"falls from {format_percent(whole_probability)} to {format_percent(without_top)}"
    if abs(whole_probability - without_top) < MIN_VISIBLE_CHANGE:
        change = f"stays at {format_percent(without_top)}"
    elif without_top > whole_probability:
        change = f"rises from {format_percent(whole_probability)} to {format_percent(without_top)}"
    removed = f"{units.format_top_units(len(top_words))} ({names})"
    return f"with {removed} {first['action']}, {units.probability} {change}"


def _quote_punctuation(word: str) -> str:
    """Quote a word without letters and digits, such as a comma, which a list would swallow."""
    has_letters = any(map(str.isalnum, word))
    return word if has_letters else f"‘{word}’"


def describe_random_choices(result: GradedRemovalTest, units: RemovedUnits) -> str:
    """Say how many random choices of as many words, over all removals, lower the probability as much."""
    removals = result["removals"]
    num_stronger = sum(removal["num_stronger"] for removal in removals)
    num_random = len(removals) * result["num_orders"]  # one choice of every order
    tries = f"{num_stronger} of {num_random} tries"
    if not num_stronger:
        tries = f"none of {num_random} tries"
    elif num_stronger == num_random:
        tries = f"all {num_random} tries"
    removing = f"removing {units.format_random_units(len(result['top_words']))} instead"
    if not _is_top_fall_visible(removals[0]):
        return f"{removing} leaves it as low or lower in {tries}"
    return f"{removing} lowers it as much or more in {tries}"


def _describe_disagreement(
    actions: Sequence[str], judgments: Sequence[str], units: RemovedUnits
) -> str:
    """Say which removals, or which of the two tests, are not in favor."""
    good: list[str] = []
    other: list[str] = []
    for action, judgment in zip(actions, judgments, strict=True):
        (good if judgment in GOOD_GRADES else other).append(action)
    if good and other:
        return (
            f"clearly better than chance when {units.plural} are {_join(good, 'or')}, but not when they are "
            f"{_join(other, 'or')}"
        )
    by_words = _select(actions, judgments, TOP_WORDS_ALONE)
    by_sums = _select(actions, judgments, SUMS_ALONE)
    if by_words and not by_sums:
        return (
            f"its top {units.plural} matter more than random ones when they are {_join(by_words, 'or')}, but "
            f"its scores do not predict how the model answers without random {units.plural}"
        )
    if by_sums and not by_words:
        return (
            f"its scores predict how the model answers when random {units.plural} are "
            f"{_join(by_sums, 'or')}, but its top {units.plural} matter no more than random ones"
        )
    return "the tests lean in its favor, but not far enough for a good grade"


def _select(actions: Sequence[str], judgments: Sequence[str], judgment: str) -> list[str]:
    """Return the removals with one judgment."""
    selected = []
    for action, removal_judgment in zip(actions, judgments, strict=True):
        if removal_judgment == judgment:
            selected.append(action)
    return selected


def list_findings(
    result: GradedRemovalTest,
    units: RemovedUnits,
    falls: NoticeableFalls,
    points: PointsByTest,
) -> list[str]:
    """Return the findings behind the grade, one sentence per removal: "why this grade?"."""
    findings = [_describe_grade(result, units, falls, points)]
    for removal in result["removals"]:
        findings.append(_describe_removal(removal, units, len(result["top_words"])))
    findings.append(_describe_rest_contrast(result, units))
    findings.append(_describe_signs(result, units))
    return findings


def _describe_removal(removal: SavedRemoval, units: RemovedUnits, num_top: int) -> str:
    """Say what each test found under one removal."""
    whole, without_top, without_half = map(format_percent, _read_probabilities(removal))
    fall = _format_change(-removal["log_odds_fall"])
    low, high = removal["log_odds_random"]
    random_fall = f"{num_top} random: {_format_change(-high)} to {_format_change(-low)}"
    share_beaten = _format_share(removal["share_beaten"])
    top_words = (
        f"without {units.format_top_units(num_top)}, {units.probability} changes from {whole} to "
        f"{without_top}, {fall} in log-odds ({random_fall}), a larger fall than with {share_beaten} random "
        "choices of equal size"
    )
    num_partial_texts = len(removal["partial_texts"]["sums"])
    correlation = format_correlation(removal["correlation"])
    shuffles_beaten = _format_share(removal["correlation_rank"])
    sums = (
        f"over {num_partial_texts} random partial texts, the sums of scores follow the log-odds with r = "
        f"{correlation}, better than {shuffles_beaten} shuffled scores"
    )
    other_half = format_percent(removal["other_half"])
    halves = (
        f"without the higher-scored half the probability is {without_half}, without the other half "
        f"{other_half}"
    )
    return f"{units.plural} {removal['action']}: {top_words}; {sums}; {halves}"


def _describe_grade(
    result: GradedRemovalTest,
    units: RemovedUnits,
    falls: NoticeableFalls,
    points: PointsByTest,
) -> str:
    """Say how many points each test gives, how many a grade needs, and what else is missing."""
    finding = (
        f"{result['grade']}: all tests together give {_format_points(result['evidence'])}, where chance "
        f"gives 0 (the halves {_format_change(points.halves)}, the sums over random partial texts "
        f"{_format_change(points.sums)}, the top {units.plural} {_format_change(points.top_words)}); "
        f"“{BETTER_THAN_CHANCE}” needs {DEFAULT_THRESHOLDS.min_points}, “{FAITHFUL}” "
        f"{DEFAULT_THRESHOLDS.min_faithful_points}"
    )
    reason = _describe_reason(result, units, falls)
    if reason:
        finding += f"; {reason}"
    if result["grade"] == BETTER_THAN_CHANCE:
        missing = _list_missing_for_faithful(result, units, falls)
        if missing:
            finding += f"; for “{FAITHFUL}” {_join(missing, 'and')}"
    return finding


def _list_missing_for_faithful(
    result: GradedRemovalTest, units: RemovedUnits, falls: NoticeableFalls
) -> list[str]:
    """Return what else an explanation that is better than chance would need to be called faithful."""
    missing = []
    if result["evidence"] < DEFAULT_THRESHOLDS.min_faithful_points:
        missing.append("there are too few points")
    if not _is_rest_confirmed(result):
        missing.append(f"the order after the top {units.plural} is not confirmed")
    if not falls.of_top:
        missing.append(f"the top {units.plural} alone hardly lower the probability")
    return missing


def _describe_rest_contrast(result: GradedRemovalTest, units: RemovedUnits) -> str:
    """Say what the order of the words after the top words is worth."""
    contrast = result["rest_contrast"]
    state = "confirmed"
    if not _is_rest_confirmed(result):
        state = "not confirmed"
        if contrast < DEFAULT_THRESHOLDS.rest_contrast:
            state = "contradicted"
    effect = ""
    if _has_minor_rest(result):
        effect = (
            f"; removing other {units.plural} changes the log-odds at most {result['rest_effect']:.0%} as "
            f"much as removing the top {units.plural}"
        ).replace("%", " %")
    return (
        f"order after the top {units.plural}: {state}; the next best {units.plural} outweigh the lowest by "
        f"{_format_change(contrast)} (unit: the usual difference between random halves){effect}"
    )


def _describe_signs(result: GradedRemovalTest, units: RemovedUnits) -> str:
    """Say where the zero of the scores is, by partial texts of different sizes."""
    if not result["has_signs"]:
        return "signs: the method has none, so only the order and the differences of its scores are judged"
    zero_shift = result["zero_shift"]
    if zero_shift is None:
        return f"signs: its scores predict nothing beyond the number of removed {units.plural}"
    return (
        f"signs: the scores predict partial texts of all sizes best with {_format_change(zero_shift)} "
        f"standard deviations added to every {units.noun} (0 if the signs are right)"
    )


def _format_change(value: float) -> str:
    """Format a change of the log-odds, with a minus as wide as the plus."""
    return f"{value:+z.1f}".replace("-", "−")


def _format_points(value: float) -> str:
    """Format the sum of all tests, such as "5.4 points".

    It is rounded down, so that it never seems to reach what a grade needs when it does not.
    """
    points = _format_change(floor(10 * value) / 10).removeprefix("+")
    return "1.0 point" if points == "1.0" else f"{points} points"


def _format_share(share: float) -> str:
    """Format a share of other choices: "97 % of" or "all"."""
    percent = f"{100 * share:.0f}"
    return "all" if percent == "100" else f"{percent} % of"


def _join(parts: Sequence[str], word: str) -> str:
    """Join to "deleted, masked or replaced"."""
    if not parts:
        return ""
    *others, last = parts
    if not others:
        return last
    # "masked or replaced by A or by B"
    previous = others[-1]
    if last.startswith(REPLACED_BY) and previous.startswith(REPLACED_BY):
        last = last.removeprefix(REPLACED)
    return f"{', '.join(others)} {word} {last}"
