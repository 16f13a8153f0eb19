"""Verdicts of the removal test: each sentence, from numbers."""

from __future__ import annotations

import pytest

from tokenlight.evaluation.verdict import (
    RemovedUnits,
    describe_ceiling,
    describe_floor,
    describe_result,
    list_findings,
)

WORDS = RemovedUnits("word", "words", "positive")
PATCHES = RemovedUnits("patch", "patches", "cat")
REMOVAL = {
    "removal": "delete",
    "words_are": "deleted",
    "beaten": 0.97,
    "stronger": 1,
    "correlation": 0.83,
    "correlation_rank": 0.99,
    "curve": [0.9, 0.4, 0.2, 0.1],
    "random_low": [0.85, 0.6],
    "random_high": [0.95, 0.9],
    "log_odds_fall": 2.6,
    "log_odds_random": [-0.5, 0.3],
    "subtexts": {"sums": [0.0] * 12, "log_odds": [0.0] * 12},
}
EFFECT = "with the 2 top words (warm, funny) deleted, P(positive) falls from 90.0 % to 40.0 %"
RIVALS = "3 of 18 random choices of 2 words do as much or more"  # 6 of each removal


def make_result(grade, **changes):
    removals = []
    for participle in ("deleted", "masked", "replaced by likely words"):
        removals.append(REMOVAL | {"words_are": participle} | changes)
    return {"grade": grade, "top_words": ["warm", "funny"], "removals": removals}


def describe(grade, judgments=("faithful",) * 3, weakness="", units=WORDS, **changes):
    return describe_result(make_result(grade, **changes), judgments, units, weakness)


def test_a_good_grade_states_the_effect_and_that_every_removal_agrees():
    same = "it also falls when they are masked or replaced by likely words"
    assert describe("faithful") == f"{EFFECT}; {same}; {RIVALS}"
    weakness = "most of its total score falls on special tokens"
    assert describe("better than chance", weakness=weakness) == (
        f"{weakness}; {EFFECT}; {same}; {RIVALS}"
    )


@pytest.mark.parametrize(
    ("curve", "stronger", "rivals"),
    [
        ([0.9, 0.4, 0.2, 0.1], 0, "none of 18 random choices of 2 words does as much"),
        ([0.9, 0.4, 0.2, 0.1], 6, "all of 18 random choices of 2 words do as much or more"),
        ([0.9, 0.9, 0.2, 0.1], 2, "6 of 18 random choices of 2 words lower it more"),
        ([0.9, 0.95, 0.2, 0.1], 0, "none of 18 random choices of 2 words lowers it more"),
    ],
)
def test_random_choices_are_counted_over_all_removals(curve, stronger, rivals):
    assert describe("faithful", curve=curve, stronger=stronger).endswith(f"; {rivals}")


@pytest.mark.parametrize(
    ("judgments", "reason"),
    [
        (
            ("better than chance", "no better than chance", "better than chance"),
            "better than chance when words are deleted or replaced by likely words, not clearly so "
            "when they are masked",
        ),
        (
            ("better than chance", "sums alone", "worse than chance"),
            "better than chance when words are deleted, not clearly so when they are masked or "
            "replaced by likely words",
        ),
        (
            ("top words alone", "no better than chance", "top words alone"),
            "its top words do more than random ones when they are deleted or replaced by likely words, "
            "but its scores do not predict what other combinations of words do",
        ),
        (
            ("sums alone",) * 3,
            "its scores predict what random combinations of words do when others are deleted, masked or "
            "replaced by likely words, but its top words do no more than random ones",
        ),
        (
            ("sums alone", "top words alone", "sums alone"),
            "the tests point in its favor, but one text is not enough",
        ),
    ],
)
def test_a_disagreement_of_removals_is_stated(judgments, reason):
    assert describe("cannot tell", judgments) == f"{reason}; {EFFECT}; {RIVALS}"


@pytest.mark.parametrize(
    ("grade", "compared"),
    [("no better than chance", "no more than"), ("worse than chance", "less than")],
)
def test_a_poor_grade_names_every_removal(grade, compared):
    assert describe(grade).startswith(
        f"its top words do {compared} random ones, whether they are deleted, masked or replaced by "
        "likely words; "
    )


def test_a_change_too_small_to_show_is_no_change():
    assert " P(positive) stays at 89.7 %; " in describe("faithful", curve=[0.9, 0.897, 0.8, 0.7])
    assert " P(positive) rises from 90.0 % to 95.0 %; " in describe(
        "faithful", curve=[0.9, 0.95, 0.8, 0.7]
    )


def test_patches_are_separated_by_semicolons():
    result = make_result("faithful") | {"top_words": ["1,2", "3,4"]}
    verdict = describe_result(result, ["faithful"] * 3, PATCHES, "")
    assert verdict.startswith("with the 2 top patches (1,2; 3,4) deleted, P(cat) falls ")
    result["top_words"] = ["1,2"]
    verdict = describe_result(result, ["faithful"] * 3, PATCHES, "")
    assert "with the top patch (1,2) deleted" in verdict
    assert verdict.endswith(" random choices of one patch do as much or more")


def test_probabilities_near_zero_and_one_are_stated_as_bounds():
    assert describe_floor(WORDS, 0.0105) == (
        "the model gives positive 1.1 %; there is nothing to remove"
    )
    assert describe_ceiling(WORDS, 0.97, 0.02) == (
        "whatever words are removed, P(positive) stays within 2.0 points of 97.0 %; there is nothing "
        "to test"
    )


def test_findings_give_probabilities_log_odds_and_both_tests():
    first, *_ = list_findings(make_result("faithful"), WORDS)
    assert first == (
        "words deleted: the 2 top words move P(positive) from 90.0 % to 40.0 %, −2.6 in log-odds "
        "(2 random: −0.3 to +0.5), more than 97 % of random choices of equal size; the sums of its "
        "scores follow 12 random subtexts with r = 0.83, better than 99 % of shuffled scores"
    )
