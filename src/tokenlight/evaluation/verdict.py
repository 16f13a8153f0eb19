"""Verdicts in plain English: one sentence per grade, and the findings behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.trust import (
    GOOD_GRADES,
    INCONCLUSIVE,
    NO_BETTER_THAN_CHANCE,
    WORSE_THAN_CHANCE,
)
from tokenlight.evaluation.grade import (
    DEFAULT_THRESHOLDS,
    MIN_VISIBLE_CHANGE,
    SUMS_ALONE,
    TOP_WORDS_ALONE,
)
from tokenlight.plots.descriptions import format_percent

MAX_NAMED_WORDS = 5  # top words that a sentence lists
# Below this contrast of the words after the top words, their order is called unconfirmed.
MIN_CONFIRMED_REST_CONTRAST = 0.25


@dataclass(frozen=True)
class RemovedUnits:
    """Names of the removed units and of the measured probability, for a verdict.

    Attributes:
        noun: One unit: ``word``, ``patch``, or ``patch or word``.
        plural: Several of them.
        outcome: The target, such as ``positive``.
    """

    noun: str
    plural: str
    outcome: str

    @classmethod
    def of_attribution(cls, attribution: Attribution) -> "RemovedUnits":
        """Return the words for a text, an image, or an image beside a text."""
        is_answer = attribution.target.kind == "span"
        outcome = "answer" if is_answer else attribution.target.name
        image = attribution.row.image
        if image is None:
            return cls("word", "words", outcome)
        if image.token_positions:
            return cls("patch or word", "patches and words", outcome)
        return cls("patch", "patches", outcome)

    @property
    def probability(self) -> str:
        """The probability, such as ``P(positive)``."""
        return f"P({self.outcome})"

    @property
    def separator(self) -> str:
        """Names of patches contain commas."""
        return ", " if self.noun == "word" else "; "

    def count(self, num_units: int) -> str:
        """Return "the top word" or "the 3 top words"."""
        return f"the top {self.noun}" if num_units == 1 else f"the {num_units} top {self.plural}"

    def count_random(self, num_units: int) -> str:
        """Return "one word" or "3 words"."""
        return f"one {self.noun}" if num_units == 1 else f"{num_units} {self.plural}"


def describe_floor(units: RemovedUnits, before: float) -> str:
    """Say that a target which the model does not believe in cannot lose probability."""
    return f"the model gives {units.outcome} {format_percent(before)}; there is nothing to remove"


def describe_ceiling(units: RemovedUnits, before: float, max_change: float) -> str:
    """Say that the model answers the same whatever is removed."""
    change = format_percent(max_change).replace(" %", " points")
    return (
        f"whatever {units.plural} are removed, {units.probability} stays within {change} of "
        f"{format_percent(before)}; there is nothing to test"
    )


def describe_ties(units: RemovedUnits, num_tied: int, num_tokens: int) -> str:
    """Say that equal scores rank nothing."""
    if num_tied == num_tokens:
        return f"all {units.plural} have the same score, so the explanation ranks nothing"
    return f"{num_tied} of {num_tokens} tokens have the same score, so there is hardly an order to test"


def describe_cancellation(units: RemovedUnits) -> str:
    """Say that most scores lie where the removal of whole words does not see them."""
    return (
        f"most of its scores cancel each other within a {units.noun}, and only whole {units.plural} "
        "are removed"
    )


def describe_few_orders(num_orders: int, num_needed: int) -> str:
    """Say that too little chance was tried for a grade."""
    plural = "order was" if num_orders == 1 else "orders were"
    return f"only {num_orders} random {plural} tried, and a grade needs {num_needed}"


def describe_zero(units: RemovedUnits, zero_shift: float) -> str:
    """Say that the signs, or the sizes, of the scores are not those of the model."""
    if isinf(zero_shift):
        return (
            f"the order of its {units.plural} holds, but its signs and sizes do not: over subtexts of "
            f"different lengths its scores predict no more than the number of {units.plural} does"
        )
    direction = "low" if zero_shift > 0 else "high"
    return (
        f"the order of its {units.plural} holds, but its signs and sizes do not: all scores are too "
        f"{direction}, by {abs(zero_shift):.1f} of their standard deviations"
    )


def describe_rest(units: RemovedUnits) -> str:
    """Say that the order of the words after the top words is the wrong way round."""
    return (
        f"its top {units.plural} hold, but not the order of the others: the model loses more without the "
        f"{units.plural} that it scores lowest than without the next best ones"
    )


def describe_result(
    result: Mapping[str, Any],
    judgments: Sequence[str],
    units: RemovedUnits,
    weakness: str,
) -> str:
    """Return the verdict: why this grade, then what removing the top words does.

    Args:
        result: The results as they are saved.
        judgments: The judgment of each removal.
        units: The removed units.
        weakness: A weakness of the evidence; may be empty.
    """
    participles = [removal["words_are"] for removal in result["removals"]]
    grade = result["grade"]
    parts = [weakness, describe_effect(result, units)]
    if grade in GOOD_GRADES:
        parts += _describe_falls(result, units)
    elif grade == INCONCLUSIVE:
        parts[0] = weakness or _describe_disagreement(participles, judgments, units)
    else:
        compared = {NO_BETTER_THAN_CHANCE: "no more than", WORSE_THAN_CHANCE: "less than"}[grade]
        parts[0] = (
            f"its top {units.plural} do {compared} random ones, whether they are "
            f"{_join(participles, 'or')}"
        )
    parts.append(describe_rivals(result, units))
    if grade in GOOD_GRADES and result["rest_contrast"] < MIN_CONFIRMED_REST_CONTRAST:
        parts.append(f"the order of its other {units.plural} is not confirmed")
    return "; ".join(filter(None, parts))


def _describe_falls(result: Mapping[str, Any], units: RemovedUnits) -> list[str]:
    """Say under which other removals the top words lower the probability; else what the better half does."""
    first, *others = result["removals"]
    falling = [other["words_are"] for other in others if _falls(other)]
    if len(falling) == len(others) and _falls(first):
        return [f"it also falls when they are {_join(falling, 'or')}"] if others else []
    parts = []
    if falling and _falls(first):
        parts.append(f"it also falls when they are {_join(falling, 'or')}")
    elif falling:
        parts.append(f"it falls when they are {_join(falling, 'or')}")
    halves = [removal["curve"][2] for removal in result["removals"]]
    low, high = format_percent(min(halves)), format_percent(max(halves))
    value = low if low == high else f"{low} to {high}"
    parts.append(f"without the better half of its {units.plural} it is {value}")
    return parts


def _falls(removal: Mapping[str, Any]) -> bool:
    """Return whether the probability falls visibly without the top words."""
    before, after = removal["curve"][:2]
    return bool(before - after >= MIN_VISIBLE_CHANGE)


def describe_effect(result: Mapping[str, Any], units: RemovedUnits) -> str:
    """Say what the first removal of the top words does to the probability."""
    first = result["removals"][0]
    top_words = result["top_words"]
    names = units.separator.join(top_words[:MAX_NAMED_WORDS])
    if len(top_words) > MAX_NAMED_WORDS:
        names += " …"
    before, after = first["curve"][:2]
    change = f"falls from {format_percent(before)} to {format_percent(after)}"
    if abs(before - after) < MIN_VISIBLE_CHANGE:
        change = f"stays at {format_percent(after)}"
    elif after > before:
        change = f"rises from {format_percent(before)} to {format_percent(after)}"
    return f"with {units.count(len(top_words))} ({names}) {first['words_are']}, {units.probability} {change}"


def describe_rivals(result: Mapping[str, Any], units: RemovedUnits) -> str:
    """Say how many random choices of as many words, over all removals, lower the probability as much."""
    removals = result["removals"]
    num_stronger = sum(removal["stronger"] for removal in removals)
    num_random = len(removals) * result["orders"]  # one choice of every order
    unit_count = units.count_random(len(result["top_words"]))
    choices = f"{num_random} random choices of {unit_count}"
    if not _falls(removals[0]):
        if not num_stronger:
            return f"none of {choices} leaves it lower"
        verb = "leaves" if num_stronger == 1 else "leave"
        return f"{num_stronger} of {choices} {verb} it as low or lower"
    if not num_stronger:
        return f"none of {choices} does as much"
    if num_stronger == num_random:
        return f"all of {choices} do as much or more"
    verb = "does" if num_stronger == 1 else "do"
    return f"{num_stronger} of {choices} {verb} as much or more"


def _describe_disagreement(
    participles: Sequence[str], judgments: Sequence[str], units: RemovedUnits
) -> str:
    """Say which removals, or which of the two tests, are not in favor."""
    good: list[str] = []
    other: list[str] = []
    for participle, judgment in zip(participles, judgments, strict=True):
        (good if judgment in GOOD_GRADES else other).append(participle)
    if good and other:
        return (
            f"better than chance when {units.plural} are {_join(good, 'or')}, not clearly so when they are "
            f"{_join(other, 'or')}"
        )
    by_words = _select(participles, judgments, TOP_WORDS_ALONE)
    by_sums = _select(participles, judgments, SUMS_ALONE)
    if by_words and not by_sums:
        return (
            f"its top {units.plural} do more than random ones when they are {_join(by_words, 'or')}, but its "
            f"scores do not predict what other combinations of {units.plural} do"
        )
    if by_sums and not by_words:
        return (
            f"its scores predict what random combinations of {units.plural} do when others are "
            f"{_join(by_sums, 'or')}, but its top {units.plural} do no more than random ones"
        )
    return "the tests point in its favor, but one text is not enough"


def _select(participles: Sequence[str], judgments: Sequence[str], judgment: str) -> list[str]:
    """Return the removals with one judgment."""
    return [p for p, given in zip(participles, judgments, strict=True) if given == judgment]


def list_findings(result: Mapping[str, Any], units: RemovedUnits) -> list[str]:
    """Return the findings behind the grade, one sentence per removal: "why this grade?"."""
    findings = []
    num_top = len(result["top_words"])
    verb = "moves" if num_top == 1 else "move"
    for removal in result["removals"]:
        before, after = removal["curve"][:2]
        low, high = removal["log_odds_random"]
        num_subtexts = len(removal["subtexts"]["sums"])
        findings.append(
            f"{units.plural} {removal['words_are']}: {units.count(num_top)} {verb} {units.probability} "
            f"from {format_percent(before)} to {format_percent(after)}, "
            f"{_format_change(-removal['log_odds_fall'])} in log-odds ({num_top} random: "
            f"{_format_change(-high)} to {_format_change(-low)}), more than "
            f"{_format_share(removal['beaten'])} random choices of equal size; the sums of its scores "
            f"follow {num_subtexts} random subtexts with r = {_format_correlation(removal['correlation'])}, "
            f"better than {_format_share(removal['correlation_rank'])} shuffled scores; without the better "
            f"half {units.probability} is {format_percent(removal['curve'][2])}, without the other half "
            f"{format_percent(removal['other_half'])}"
        )
    findings.append(
        f"evidence of all tests: {_format_change(result['evidence'])} (chance: 0; better than chance from "
        f"{DEFAULT_THRESHOLDS.evidence}, faithful from {DEFAULT_THRESHOLDS.faithful_evidence})"
    )
    findings.append(_describe_rest_contrast(result, units))
    findings.append(_describe_signs(result, units))
    return findings


def _describe_rest_contrast(result: Mapping[str, Any], units: RemovedUnits) -> str:
    """Say what the order of the words after the top words is worth."""
    contrast = result["rest_contrast"]
    state = "confirmed"
    if contrast < MIN_CONFIRMED_REST_CONTRAST:
        state = "not confirmed" if contrast >= 0 else "contradicted"
    return (
        f"after the top {units.plural}: the next best {units.plural} outweigh the lowest by "
        f"{_format_change(contrast)} (unit: what random halves differ by), so that their order is {state}"
    )


def _describe_signs(result: Mapping[str, Any], units: RemovedUnits) -> str:
    """Say where the zero of the scores is, by subtexts of different sizes."""
    if not result["signed"]:
        return "signs: the method has none, so only the order and the differences of its scores are judged"
    zero_shift = result["zero_shift"]
    if zero_shift is None:
        return f"signs: its scores predict nothing beside the number of removed {units.plural}"
    return (
        f"signs: the sums follow subtexts of all sizes best with {_format_change(zero_shift)} standard "
        f"deviations added to every {units.noun} (right signs need 0)"
    )


def _format_change(value: float) -> str:
    """Format a change of the log-odds, with a minus as wide as the plus."""
    return f"{value:+z.1f}".replace("-", "−")


def _format_share(share: float) -> str:
    """Format a share of other choices: "97 % of" or "all"."""
    percent = f"{100 * share:.0f}"
    return "all" if percent == "100" else f"{percent} % of"


def _format_correlation(value: float) -> str:
    """Format a correlation, with the same minus as the changes beside it."""
    return f"{value:z.2f}".replace("-", "−")


def _join(parts: Sequence[str], word: str) -> str:
    """Join to "deleted, masked or replaced"."""
    if not parts:
        return ""
    *others, last = parts
    return f"{', '.join(others)} {word} {last}" if others else last
