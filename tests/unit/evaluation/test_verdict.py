"""Verdicts of the removal test: each sentence, from numbers."""

from __future__ import annotations

import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tokenlight.evaluation.grade import NoticeableFalls, PointsByTest
from tokenlight.evaluation.removal_test import RemovalTest
from tokenlight.evaluation.verdict import (
    RemovedUnits,
    describe_insensitive_target,
    describe_result,
    describe_sign_mismatch,
    describe_unlikely_target,
    list_findings,
)

WORDS = RemovedUnits("word", "words", "positive")
PATCHES = RemovedUnits("patch", "patches", "cat")
ALL_FALL = NoticeableFalls(of_top_or_half=True, of_top=True)
ONLY_HALF_FALLS = NoticeableFalls(of_top_or_half=True, of_top=False)
POINTS = PointsByTest(halves=1.5, sums=2.3, top_words=0.9)
NOTHING_FALLS = NoticeableFalls(of_top_or_half=False, of_top=False)
NUM_ORDERS = 6
# One removal of six orders as it is recorded: of 8 words, 2 count as top words.
REMOVAL = {
    "removal": "delete",
    "action": "deleted",
    "share_beaten": 0.97,
    "num_stronger": 1,
    "half_contrast": 1.5,
    "rest_contrast": 0.4,
    "correlation": 0.83,
    "correlation_rank": 0.99,
    "counts": [0, 2, 4, 8],
    "curve": [0.9, 0.4, 0.2, 0.1],
    "other_half": 0.8,
    "random_low": [0.85, 0.6],
    "random_high": [0.95, 0.9],
    "log_odds_fall": 2.6,
    "log_odds_random": [-0.5, 0.3],
    "partial_texts": {
        "sums": [0.0] * 3 * NUM_ORDERS,
        "log_odds": [0.0] * 3 * NUM_ORDERS,
        "removed": [2, 4, 4] * NUM_ORDERS,
    },
}
PARTICIPLES = ("deleted", "masked", "replaced by likely words")
EFFECT = "with the 2 top words (warm, funny) deleted, the probability of positive falls from 90.0 % to 40.0 %"
# 6 tries of each removal
RIVALS = "removing 2 random words instead lowers it as much or more in 3 of 18 tries"


SUM = "all tests together give 4.8 points (chance gives 0, {needed})"
FAITHFUL = SUM.format(needed="“faithful” needs 4.5")
BETTER = SUM.format(needed="a good grade needs 3.5")


def make_result(grade, *, curves=None, **changes):
    """Make recorded results of three removals, each with a curve of its own if ``curves`` are given."""
    removals = []
    for i, participle in enumerate(PARTICIPLES):
        removal = REMOVAL | {"action": participle} | changes
        if curves is not None:
            removal["curve"] = curves[i]
        removals.append(removal)
    return {
        "grade": grade,
        "judgments": ["better than chance"] * 3,
        "weakness": "",
        "top_words": ["warm", "funny"],
        "num_words": 8,
        "num_orders": NUM_ORDERS,
        "before": 0.9,
        "after": 0.4,
        "evidence": 4.8,
        "joint_rank": 0.99,
        "has_signs": True,
        "zero_shift": 0.25,
        "rest_contrast": 0.4,
        "rest_effect": 0.6,
        "position_rank": 0.95,
        "special_share": 0.1,
        "max_change": 0.8,
        "removals": removals,
    }


def describe(grade, judgments=("faithful",) * 3, weakness="", units=WORDS, **changes):
    result = make_result(grade, **changes) | {"judgments": judgments, "weakness": weakness}
    return describe_result(result, units, ALL_FALL)


def test_made_results_have_the_keys_of_recorded_ones():
    words = list(range(10, 18))
    attribution = make_attribution(make_planted_explainer(), words, range(8))
    recorded = RemovalTest(make_planted_explainer())(attribution)
    made = make_result("faithful")
    assert made.keys() == recorded.keys() - {"verdict", "findings"}
    for removal in recorded["removals"]:
        assert removal.keys() == REMOVAL.keys()
        assert removal["partial_texts"].keys() == REMOVAL["partial_texts"].keys()
        assert removal["partial_texts"]["removed"] == [2, 4, 4] * recorded["num_orders"]


def test_a_good_grade_states_the_effect_and_that_every_removal_agrees():
    same = "it also falls when they are masked or replaced by likely words"
    assert describe("faithful") == f"{EFFECT}; {same}; {RIVALS}; {FAITHFUL}"
    weakness = "most of its total score falls on special tokens"
    assert describe("better than chance", weakness=weakness) == (
        f"{weakness}; {EFFECT}; {same}; {RIVALS}; {BETTER}"
    )


@pytest.mark.parametrize(
    ("units", "subject"),
    [(WORDS, "the word is"), (RemovedUnits("patch", "patches", "positive"), "the patch is")],
)
def test_one_removed_unit_is_no_plural(units, subject):
    result = make_result("faithful") | {"top_words": ["warm"]}
    verdict = describe_result(result, units, ALL_FALL)
    assert f"it also falls when {subject} masked or replaced by likely words; " in verdict
    assert "they" not in verdict


@pytest.mark.parametrize(
    ("curve", "stronger", "rivals"),
    [
        ([0.9, 0.4, 0.2, 0.1], 0, "lowers it as much or more in none of 18 tries"),
        ([0.9, 0.4, 0.2, 0.1], 6, "lowers it as much or more in all 18 tries"),
        ([0.9, 0.9, 0.2, 0.1], 2, "leaves it as low or lower in 6 of 18 tries"),
        ([0.9, 0.95, 0.2, 0.1], 0, "leaves it as low or lower in none of 18 tries"),
    ],
)
def test_random_choices_are_counted_over_all_removals(curve, stronger, rivals):
    verdict = describe("better than chance", curve=curve, num_stronger=stronger)
    assert f"; removing 2 random words instead {rivals}; " in verdict


@pytest.mark.parametrize(
    ("judgments", "reason"),
    [
        (
            ("better than chance", "no better than chance", "better than chance"),
            "clearly better than chance when words are deleted or replaced by likely words, but not "
            "when they are masked",
        ),
        (
            ("better than chance", "sums alone", "worse than chance"),
            "clearly better than chance when words are deleted, but not when they are masked or "
            "replaced by likely words",
        ),
        (
            ("top words alone", "no better than chance", "top words alone"),
            "its top words matter more than random ones when they are deleted or replaced by likely words, "
            "but its scores do not predict how the model answers without random words",
        ),
        (
            ("sums alone",) * 3,
            "its scores predict how the model answers when random words are deleted, masked or replaced by "
            "likely words, but its top words matter no more than random ones",
        ),
        (
            ("sums alone", "top words alone", "sums alone"),
            "the tests lean in its favor, but not far enough for a good grade",
        ),
    ],
)
def test_a_disagreement_of_removals_is_stated(judgments, reason):
    assert describe("cannot tell", judgments) == f"{reason}; {EFFECT}; {RIVALS}"


def test_a_missing_good_grade_says_how_much_evidence_it_lacks():
    result = make_result("cannot tell") | {"evidence": 3.04}
    verdict = describe_result(result, WORDS, ALL_FALL)
    assert verdict.endswith(
        f"; {RIVALS}; all tests together give 3.0 points (chance gives 0, a good grade needs 3.5)"
    )
    assert "give 2.9 points (" in describe_result(result | {"evidence": 2.99}, WORDS, ALL_FALL)


@pytest.mark.parametrize(
    ("grade", "compared"),
    [("no better than chance", "no more than"), ("worse than chance", "less than")],
)
def test_a_poor_grade_names_every_removal(grade, compared):
    assert describe(grade, share_beaten=0.3).startswith(
        f"its top words matter {compared} random ones, whether they are deleted, masked or replaced by "
        "likely words; "
    )


@pytest.mark.parametrize(
    ("changes", "joint_rank", "falls", "reason"),
    [
        (
            {"curve": [0.9, 0.898, 0.899, 0.1]},
            0.99,
            NOTHING_FALLS,
            "neither its top words nor the half that it scores higher visibly lower the probability",
        ),
        (
            {"half_contrast": -0.1},
            0.99,
            ALL_FALL,
            "the half of the words that it scores higher matters no more than the other half",
        ),
        ({}, 0.5, ALL_FALL, "its scores do not predict how the model answers without random words"),
        (
            {},
            0.8,
            ALL_FALL,
            "its words matter hardly more than random ones, whether they are deleted, masked or "
            "replaced by likely words",
        ),
    ],
)
def test_top_words_that_beat_random_ones_are_not_blamed(changes, joint_rank, falls, reason):
    result = make_result("no better than chance", **changes) | {"joint_rank": joint_rank}
    assert describe_result(result, WORDS, falls).startswith(f"{reason}; ")


def test_two_replacements_are_named_with_one_verb():
    result = make_result("worse than chance")
    result["removals"][1]["action"] = "replaced by the unknown token"
    assert describe_result(result, WORDS, ALL_FALL).startswith(
        "its top words matter less than random ones, whether they are deleted, replaced by the unknown "
        "token or by likely words; "
    )


FALL = [0.9, 0.4, 0.2, 0.1]
STILL = [0.9, 0.897, 0.3, 0.1]
RISE = [0.9, 0.95, 0.4, 0.1]


@pytest.mark.parametrize(
    ("curves", "sentences"),
    [
        (
            [FALL, STILL, FALL],
            [
                "falls from 90.0 % to 40.0 %",
                "it also falls when they are replaced by likely words",
                "without the higher-scored half of the words it is 20.0 % to 30.0 %",
            ],
        ),
        (
            [FALL, STILL, RISE],
            [
                "falls from 90.0 % to 40.0 %",
                "without the higher-scored half of the words it is 20.0 % to 40.0 %",
            ],
        ),
        (
            [STILL, FALL, FALL],
            [
                "stays at 89.7 %",
                "it falls when they are masked or replaced by likely words",
                "without the higher-scored half of the words it is 20.0 % to 30.0 %",
            ],
        ),
        (
            [RISE, FALL, STILL],
            [
                "rises from 90.0 % to 95.0 %",
                "it falls when they are masked",
                "without the higher-scored half of the words it is 20.0 % to 40.0 %",
            ],
        ),
        (
            [STILL, STILL, STILL],
            ["stays at 89.7 %", "without the higher-scored half of the words it is 30.0 %"],
        ),
    ],
)
def test_a_good_grade_names_only_removals_under_which_the_probability_falls(curves, sentences):
    """A change too small to show is no change; where the top words do nothing, the better half does."""
    effect = "with the 2 top words (warm, funny) deleted, the probability of positive "
    verdict = describe("better than chance", curves=curves)
    assert verdict.startswith(effect + "; ".join(sentences) + "; removing 2 random words instead ")


def test_patches_are_separated_by_semicolons():
    result = make_result("faithful") | {"top_words": ["1,2", "3,4"]}
    verdict = describe_result(result, PATCHES, ALL_FALL)
    assert verdict.startswith(
        "with the 2 top patches (1,2; 3,4) deleted, the probability of cat falls "
    )
    result["top_words"] = ["1,2"]
    verdict = describe_result(result, PATCHES, ALL_FALL)
    assert "with the top patch (1,2) deleted" in verdict
    assert verdict.endswith(
        f"; removing a random patch instead lowers it as much or more in 3 of 18 tries; {FAITHFUL}"
    )


def test_probabilities_near_zero_and_one_are_stated_as_bounds():
    assert describe_unlikely_target(WORDS, 0.0105) == (
        "the model gives positive a probability of only 1.1 %, too low for a fall to be measured"
    )
    assert describe_insensitive_target(WORDS, 0.97, 0.02) == (
        "whatever words are removed, the probability of positive stays within 2.0 percentage points of "
        "97.0 %, so there is no effect to test"
    )


@pytest.mark.parametrize(
    ("zero_shift", "reason"),
    [
        (1.52, "all scores are too low by 1.5 of their standard deviations"),
        (-3.0, "all scores are too high by 3.0 of their standard deviations"),
        (
            float("inf"),
            "for partial texts of different lengths they predict no more than the number of words does",
        ),
    ],
)
def test_a_wrong_zero_says_in_which_direction(zero_shift, reason):
    assert describe_sign_mismatch(WORDS, zero_shift) == (
        f"the order of its words is right, but the signs and sizes of its scores are not: {reason}"
    )


def test_punctuation_among_the_top_words_is_quoted():
    result = make_result("faithful") | {"top_words": ["never", ",", "..."]}
    verdict = describe_result(result, WORDS, ALL_FALL)
    assert "the 3 top words (never, ‘,’, ‘...’) deleted" in verdict


def test_many_top_words_are_not_all_listed():
    result = make_result("faithful") | {"top_words": list("abcdefg")}
    verdict = describe_result(result, WORDS, ALL_FALL)
    assert verdict.startswith("with the 7 top words (a, b, c, d, e …) deleted, ")


FINDING = (
    "the probability of positive changes from 90.0 % to 40.0 %, −2.6 in log-odds ({num} random: −0.3 to "
    "+0.5), a larger fall than with 97 % of random choices of equal size; over 18 random partial texts, the "
    "sums of scores follow the log-odds with r = 0.83, better than 99 % of shuffled scores; without the "
    "higher-scored half the probability is 20.0 %, without the other half 80.0 %"
)


def test_findings_give_probabilities_log_odds_and_every_test():
    grade, *findings, rest, signs = list_findings(make_result("faithful"), WORDS, ALL_FALL, POINTS)
    assert grade == (
        "faithful: all tests together give 4.8 points, where chance gives 0 (the halves +1.5, the sums over "
        "random partial texts +2.3, the top words +0.9); “better than chance” needs 3.5, “faithful” 4.5"
    )
    assert findings == [
        f"words {participle}: without the 2 top words, {FINDING.format(num=2)}"
        for participle in PARTICIPLES
    ]
    assert rest == (
        "order after the top words: confirmed; the next best words outweigh the lowest by +0.4 (unit: the "
        "usual difference between random halves)"
    )
    assert signs == (
        "signs: the scores predict partial texts of all sizes best with +0.2 standard deviations added to "
        "every word (0 if the signs are right)"
    )


@pytest.mark.parametrize(
    ("contrast", "state", "closing"),
    [
        (0.4, "confirmed", RIVALS),
        (0.1, "not confirmed", f"{RIVALS}; the order of its other words is not confirmed"),
        (-0.1, "not confirmed", f"{RIVALS}; the order of its other words is not confirmed"),
        (-0.4, "contradicted", f"{RIVALS}; the order of its other words is not confirmed"),
    ],
)
def test_a_good_grade_says_where_only_its_top_words_are_confirmed(contrast, state, closing):
    result = make_result("better than chance") | {"rest_contrast": contrast}
    verdict = describe_result(result, WORDS, ALL_FALL)
    assert verdict.endswith(f"; {closing}; {BETTER}")
    *_, rest, _ = list_findings(result, WORDS, ALL_FALL, POINTS)
    assert rest.startswith(f"order after the top words: {state}; ")


def test_words_that_hardly_matter_are_no_fault_of_the_scores():
    result = make_result("better than chance") | {"rest_contrast": 0.1, "rest_effect": 0.12}
    verdict = describe_result(result, WORDS, ALL_FALL)
    closing = "beside these, the other words hardly matter, so their order cannot be tested"
    assert verdict.endswith(f"; {RIVALS}; {closing}; {BETTER}")
    *_, rest, _ = list_findings(result, WORDS, ALL_FALL, POINTS)
    assert rest.endswith(
        "; removing other words changes the log-odds at most 12 % as much as removing the top words"
    )


def test_the_limit_of_faithful_is_named_only_where_points_are_missing():
    result = make_result("better than chance") | {"evidence": 4.2}
    verdict = describe_result(result, WORDS, ALL_FALL)
    assert verdict.endswith(
        "give 4.2 points (chance gives 0, a good grade needs 3.5, “faithful” 4.5)"
    )


def test_the_first_finding_says_what_is_missing_for_faithful():
    result = make_result("better than chance", curve=STILL)
    result |= {"evidence": 4.2, "rest_contrast": 0.1}
    first, *_ = list_findings(result, WORDS, ONLY_HALF_FALLS, POINTS)
    assert first.endswith(
        "; for “faithful” there are too few points, the order after the top words is not confirmed and "
        "the top words alone hardly lower the probability"
    )


def test_the_finding_about_a_single_top_word_is_in_the_singular():
    _, first, *_ = list_findings(
        make_result("faithful") | {"top_words": ["warm"]}, WORDS, ALL_FALL, POINTS
    )
    assert first == f"words deleted: without the top word, {FINDING.format(num=1)}"


def test_findings_say_all_in_place_of_100_percent_and_use_one_minus():
    changes = {"share_beaten": 1.0, "correlation_rank": 0.999, "correlation": -0.12}
    _, first, *_ = list_findings(make_result("faithful", **changes), WORDS, ALL_FALL, POINTS)
    assert ", a larger fall than with all random choices of equal size; " in first
    assert " with r = −0.12, better than all shuffled scores; " in first


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (
            {"has_signs": False, "zero_shift": None},
            "signs: the method has none, so only the order and the differences of its scores are judged",
        ),
        (
            {"zero_shift": None},
            "signs: its scores predict nothing beyond the number of removed words",
        ),
    ],
)
def test_the_finding_about_signs_says_where_there_is_no_zero(changes, finding):
    assert list_findings(make_result("faithful") | changes, WORDS, ALL_FALL, POINTS)[-1] == finding
