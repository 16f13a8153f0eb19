"""The pairs differ in one word and no answer; the numbers are those of a slow second writing."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.copy_model import make_copy_explainer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import counterfactual_pairs as bench
from pair_data import HELD_OUT, SUITE_DATA, Pair, build_pairs, build_suite_rows, dump_rows, fill
from pair_report import write_page

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
            assert answers.setdefault((prompt.text, prompt.start), prompt.answers) == prompt.answers


def test_the_suite_has_every_prompt_once_and_is_what_the_templates_give():
    rows = build_suite_rows()
    assert SUITE_DATA.read_text("utf-8") == dump_rows(rows)
    assert len({(row["text"], *row["spans"][0]) for row in rows}) == len(rows)
    pairs = {frozenset((row["text"], row["counterfactual"])) for row in rows}
    assert len(pairs) > 500
    assert {row["templates"] for row in rows} == {"first", "held out"}


def test_held_out_templates_share_no_prompt_with_the_first():
    texts = {row["text"]: row["templates"] for row in build_suite_rows()}
    for pair in build_pairs(HELD_OUT):
        assert texts[pair.first.text] == texts[pair.second.text] == "held out"


def test_scores_are_summed_by_word_and_special_tokens_left_out():
    spans = [None, (0, 3), (3, 6), (6, 8), (8, 12), (12, 13)]
    words = bench.sum_by_word("The cats sat.", spans, np.array([100.0, 1, 2, 3, 4, 5]))
    # The blank before a word belongs to it, and so does the full stop behind it.
    assert words.tolist() == [1, 5, 9]


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
    prompt = fill("capital of {} is", "France", "Paris")
    reading = bench.read_scores("capitals", prompt, np.array(scores))
    assert (reading.is_top, reading.rank, reading.share) == expected


def test_a_prefix_of_an_answer_counts_from_two_letters():
    prompt = fill("The capital of {} is", "Portugal", "Lisbon")
    assert bench.is_right(prompt, " Lisbon")
    assert bench.is_right(prompt, " Lis")
    assert not bench.is_right(prompt, " L")
    assert not bench.is_right(prompt, " Paris")
    assert not bench.is_right(prompt, " ")


def test_every_prompt_is_measured_once_and_families_are_capped():
    predicted = {prompt.text: 0 for pair in PAIRS for prompt in (pair.first, pair.second)}
    prompts_to_measure = bench.choose_prompts(PAIRS, predicted, per_family=3)
    counts = Counter(family for family, _, _ in prompts_to_measure)
    assert len({prompt.text for _, prompt, _ in prompts_to_measure}) == len(prompts_to_measure)
    assert max(counts.values()) == 3


def test_the_wilson_interval_contains_the_observed_share():
    low, high = bench.wilson(0.85, 100)
    assert low < 0.85 < high
    assert bench.wilson(1.0, 10)[1] == 1.0


def test_a_copied_word_is_found_by_a_model_that_copies():
    """The model answers with the word that once followed the last one: that word is known to decide."""
    explainer = make_copy_explainer()
    template = "word1 name3 {} word2 word4 name3"
    pair = Pair("copies", fill(template, "value5", "value5"), fill(template, "value9", "value9"))
    wrong = Pair("copies", fill(template, "value5", "value7"), fill(template, "value9", "value9"))
    answered_pairs, predicted = bench.keep_answered(explainer, [pair, wrong])
    assert answered_pairs == [pair]
    prompts = bench.choose_prompts(answered_pairs, predicted, per_family=None)
    for label in ("grad_x_input", "occlusion"):
        readings, _ = bench.measure(
            prompts,
            lambda prompt, token, label=label: bench.score_words(explainer, prompt, token, label),
        )
        assert [reading.rank for reading in readings] == [1.0, 1.0]


def test_cached_answers_are_reused(tmp_path):
    template = "word1 name3 {} word2 name3"
    pair = Pair("copies", fill(template, "value5", "value5"), fill(template, "value9", "value9"))
    answers = tmp_path / "answers.json"
    explainer = make_copy_explainer()
    answered_pairs, predicted = bench.keep_answered(explainer, [pair], str(answers))
    explainer.model.forward = None  # any further pass would fail
    assert bench.keep_answered(explainer, [pair], str(answers)) == (answered_pairs, predicted)


def test_the_page_has_a_table_of_every_model_best_method_first(tmp_path):
    reading = {"low": 0.1, "high": 0.9, "rank": 1.5, "share": 0.4, "prompts": 9, "cost": 1.2}
    rows = {
        "first": reading | {"top": 0.25, "families": {"dates": 0.25}},
        "second": reading | {"top": 0.75, "families": {"dates": 0.5, "gender": 1.0}},
    }
    result = {
        "model": "tiny",
        "written": 900,
        "pairs": 70,
        "answered": 30,
        "prompts": 9,
        "words": 6.2,
    }
    (tmp_path / "tiny.json").write_text(json.dumps(result | {"rows": rows}))
    conclusion = tmp_path / "conclusion.txt"
    conclusion.write_text("## What follows\n")
    write_page(tmp_path, conclusion)
    page = (tmp_path / "README.md").read_text()
    assert page.index("| second | 9 | 0.75 |") < page.index("| first | 9 | 0.25 |")
    assert "| gender | 1.00 | – |" in page
    assert page.endswith("## What follows\n")


def test_the_published_page_is_what_the_report_writes(tmp_path):
    for path in bench.OUT.glob("*.json"):
        shutil.copy(path, tmp_path)
    write_page(tmp_path)
    assert (tmp_path / "README.md").read_text() == (bench.OUT / "README.md").read_text()
