"""The pairs differ in one word and no answer; the numbers are those of a slow second writing."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pair_peers
import pair_report
import pytest
from pair_data import HELD_OUT, SUITE_DATA, build_pairs, build_suite_rows, dump_rows
from pair_records import wilson

from tests.helpers.copy_model import make_copy_explainer

PAIRS = [*build_pairs(), *build_pairs(HELD_OUT)]


def test_there_are_more_than_500_pairs_of_every_family():
    counts = Counter(pair.family for pair in PAIRS)
    assert len(PAIRS) > 500
    assert {
        "capitals", "opposites", "professions", "number", "gender", "who gives", "dates",
        "facts in the prompt", "two-hop",
    } <= set(counts)  # fmt: skip


def test_the_prompts_of_a_pair_differ_only_in_the_deciding_word():
    for pair in PAIRS:
        first, second = pair.first, pair.second
        assert first.text[: first.start] == second.text[: second.start]
        assert first.text[first.end :] == second.text[second.end :]
        assert first.word != second.word


def test_the_answers_of_a_pair_have_nothing_in_common():
    for pair in PAIRS:
        assert pair.first.answers
        assert not set(pair.first.answers) & set(pair.second.answers)


def test_no_prompt_contradicts_itself():
    answers = {}
    for pair in PAIRS:
        for prompt in (pair.first, pair.second):
            assert answers.setdefault(prompt.text, prompt.answers) == prompt.answers


def test_giver_and_receiver_both_decide_who_receives():
    rows = [row for row in build_suite_rows() if row["family"] == "who gives"]
    assert rows
    for row in rows:
        giver_span, receiver_span = row["spans"]
        giver, receiver = (row["text"][start:end] for start, end in (giver_span, receiver_span))
        assert row["text"].count(giver) == 2
        assert row["completions"] == [receiver]
        assert row["text"].count(receiver) == 1


def test_the_suite_has_every_prompt_once_and_is_what_the_templates_give():
    rows = build_suite_rows()
    assert SUITE_DATA.read_text("utf-8") == dump_rows(rows)
    assert len({row["text"] for row in rows}) == len(rows)
    pairs = {frozenset((row["text"], other)) for row in rows for other in row["counterfactuals"]}
    assert len(pairs) > 500
    assert {row["templates"] for row in rows} == {"first", "held out"}


def test_held_out_templates_share_no_prompt_with_the_first():
    texts = {row["text"]: row["templates"] for row in build_suite_rows()}
    for pair in build_pairs(HELD_OUT):
        assert texts[pair.first.text] == texts[pair.second.text] == "held out"


def test_scores_are_summed_by_word_and_special_tokens_left_out():
    row = make_copy_explainer().explain("word1 name3 word2", "random", progress=False).row
    spans = [None, (0, 3), (3, 5), (5, 11), (11, 17), (17, 17)]
    sums = pair_peers.sum_by_word(row, spans, np.array([100.0, 1, 2, 3, 4, 5]))
    # The blank before a word belongs to it.
    assert sums == [3, 3, 4]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.0, 1.0, 5.0, 2.0], (1.0, 1.0, 5 / 8)),
        ([9.0, 1.0, 5.0, 5.0], (0.0, 2.5, 5 / 20)),
        ([1.0, 1.0, 1.0, 1.0], (1 / 4, 2.5, 1 / 4)),
        ([0.0, 0.0, -5.0, 0.0], (0.0, 4.0, 1.0)),
    ],
)
def test_rank_and_share_equal_the_values_by_hand(scores, expected):
    record = {"marked": [False, False, True, False], "scores": scores}
    record |= {"family": "capitals", "templates": "first"}
    (reading,) = pair_report.read_word_scores([record], "scores")
    assert (reading["top"], reading["rank"], reading["share"]) == expected


def test_the_wilson_interval_contains_the_observed_share():
    low, high = wilson(0.85, 100)
    assert low < 0.85 < high
    assert wilson(1.0, 10)[1] == 1.0


def test_a_paired_difference_of_equal_methods_is_zero():
    difference = pair_report.compare([1.0, 0.0, 1.0], [1.0, 0.0, 1.0])
    assert (difference["mean"], difference["low"], difference["high"]) == (0, 0, 0)
    assert pair_report.compare([1.0] * 5, [0.0] * 5)["better"] == 5


def test_the_published_page_is_what_the_report_writes(tmp_path):
    for path in pair_report.PAGES.glob("*.json"):
        shutil.copy(path, tmp_path)
    pair_report.write_page(tmp_path)
    assert (tmp_path / "README.md").read_text() == (pair_report.PAGES / "README.md").read_text()
