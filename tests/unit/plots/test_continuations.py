"""A continuation's rows show what was there when each token was written, and how likely it was."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.handmade_attributions import make_attribution, make_row
from tests.helpers.html_reader import PageReader
from tests.helpers.terminal import render_terminal
from tokenlight.data.postprocess import merge_words
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.inputs.prompt import CONTINUATION_SEGMENT
from tokenlight.plots.continuations import align_continuations, find_unread_tokens
from tokenlight.plots.html import render_page
from tokenlight.plots.score_tables import build_class_table

PROMPT = "a girl named"
WROTE = " Lily She ran"
SPANS = [[(0, 1), (2, 6), (7, 12)], [(1, 2), (2, 5), (6, 9), (10, 13)]]
WORDS = [0, 1, 2, 3, 3, 4, 5]
LIKELIEST = [("L", 0.9), ("ily", 0.8), ("He", 0.6), ("ran", 0.5)]


def explain_token(position: int, text: str, index: int):
    """What explains the token at ``place`` from those before it; ``index`` is its label."""
    row = replace(
        make_row([PROMPT, WROTE], SPANS, words=WORDS, special=False),
        segment_names=("prompt", CONTINUATION_SEGMENT),
    )
    label, chance = LIKELIEST[position - 3]
    likeliest = index if label == text else 7
    prediction = Prediction(label, likeliest, (label, "x"), (chance, 0.05), ids=(likeliest, 9))
    scores = np.linspace(1, 2, position)
    logits = np.log([1e-9] * 5 + [0.3, 0.1, 0.6])
    attribution = make_attribution(
        row.take(range(position)), scores, prediction=prediction, logits=logits
    )
    return replace(attribution, target=ResolvedTarget("class", f"‘{text}’", (((index,), 1.0),)))


@pytest.fixture
def rows():
    return [explain_token(3 + n, text, 3 + n) for n, text in enumerate(["L", "ily", "She", "ran"])]


def list_marks_by_text(source, kind="tokens"):
    """For each row the looks of the written line's stretches, by their text."""
    lines = [line for line in PageReader(source).lines if line.kind == kind][1::2]
    return [{text: (look.split(), title) for look, title, text in line.marks} for line in lines]


def test_tokens_generated_later_are_shown_as_unread(rows):
    aligned = align_continuations(rows)
    assert [int(find_unread_tokens(attribution).sum()) for attribution in aligned] == [3, 2, 1, 0]
    assert not any(find_unread_tokens(attribution).any() for attribution in rows)


def test_later_tokens_are_faint_with_a_reason(rows):
    first, second, third, last = list_marks_by_text(render_page(rows))
    assert first["L"][0] == ["token", "explained"]
    for text in ("ily", "She", "ran"):
        assert "later" in first[text][0]
        assert first[text][1] == "not yet written"
    assert "later" not in second["L"][0]
    assert "explained" in second["ily"][0]
    assert "explained" in third["She"][0]
    assert last["ran"] == (["explained"], "explained here: 50.0 % likely")
    assert not any(
        "masked" in look for row in (first, second, third, last) for look, _ in row.values()
    )


def test_a_word_half_written_is_both_read_and_explained(rows):
    first, second, third, _ = list_marks_by_text(render_page(rows), "words")
    assert "explained" in first["Lily"][0]
    assert second["Lily"][0][-1] == "explained"
    assert re.search(r"Lily  \+\d.* · explained here", second["Lily"][1])
    assert "explained" not in third["Lily"][0]
    assert "later" in first["She"][0]


def test_a_single_row_marks_its_token_and_the_later_ones(rows):
    [row] = list_marks_by_text(render_page(rows[2]))
    assert row["She"][0] == ["explained"]
    assert row[" ran"][0] == ["later"]


def test_every_row_has_its_probability_and_the_bars_name_their_token(rows):
    source = render_page(rows)
    assert "The bars are for 1. ‘L’; each row below has its own probability" in source
    assert "<small>90.0 % likely</small>" in source
    assert "<small>80.0 % likely</small>" in source
    # Not among the likeliest that are kept: read off the logits, where they are still known.
    assert "<small>30.0 % likely; most likely: ‘He’ 60.0 %</small>" in source
    loaded = [replace(attribution, logits=np.array([])) for attribution in rows]
    assert "<small>not among the 2 most likely; most likely: ‘He’ 60.0 %</small>" in render_page(
        loaded
    )


def test_the_table_leaves_cells_of_later_tokens_empty(rows):
    aligned = align_continuations(rows)
    assert build_class_table(aligned).unread_mask.sum() == 6
    assert (
        build_class_table([merge_words(attribution) for attribution in aligned]).unread_mask.sum()
        == 2 + 1 + 1
    )
    table = re.search(r'<table class="heat">.*?</table>', render_page(rows), re.S)[0]
    cells = re.findall(r'<td class="later" title="(.*?)"></td>', table)
    assert len(cells) == 6
    assert cells[0] == "L  1. ‘L’  not yet written"


def test_the_terminal_ends_a_row_with_its_token(rows):
    text = render_terminal(rows, words=False)
    assert "prediction  at 1. ‘L’:  ‘L’ 90.0 %  ‘x’ 5.0 %" in text
    assert re.search(r"for 1\. ‘L’, its logit alone  90\.0 % likely", text)
    assert re.search(r"written 0 % .*»L«\n", text)
    assert re.search(r"written .* L\(\+2\)»ily«\n", text)
    assert re.search(r"»She«\n", text)
    assert re.search(r"»ran«\n", text)
    assert "empty: not yet written" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("ily "))
    assert len(line.split()) == 3  # its name and the two tokens written after it


def test_generated_text_is_shown_by_tokens_unless_words_are_requested(rows):
    assert (
        render_terminal(rows)
        == render_terminal(rows, words=False)
        != render_terminal(rows, words=True)
    )
    assert render_page(rows) == render_page(rows, words=False) != render_page(rows, words=True)
    plain = [
        replace(attribution, row=replace(attribution.row, segment_names=()))
        for attribution in rows[:1]
    ]
    assert render_page(plain) == render_page(plain, words=True)


def test_the_terminal_marks_the_word_that_is_being_written(rows):
    text = render_terminal(rows, words=True)
    assert re.search(r"written 0 % .*»Lily«\n", text)
    assert text.count("»Lily«") == 2


def test_brackets_hold_only_the_scored_piece(rows):
    text = render_terminal(rows, words=False)
    assert "[L]ily" in text
    assert "[ily]\n" not in text


def test_targets_are_numbered_in_order(rows):
    text = render_terminal(rows)
    for name in ("1. ‘L’", "2. ‘ily’", "3. ‘She’", "4. ‘ran’"):
        assert f"for {name}, its logit alone  " in text


def test_blank_tokens_of_a_prediction_are_seen(rows):
    prediction = Prediction(" three", 7, (" three", " ", "\n"), (0.4, 0.06, 0.05), ids=(7, 8, 9))
    blank = replace(rows[0], prediction=prediction)
    assert "‘three’ 40.0 %  ‘ ’ 6.0 %  ‘↵’ 5.0 %" in render_terminal(blank)
    for name in ("‘three’", "‘ ’", "‘↵’"):
        assert f">{name}</span>" in render_page(blank)


def test_with_colours_the_explained_token_is_underlined(rows):
    text = render_terminal(rows, colours="truecolor", words=False)
    assert re.search(r"\x1b\[4mL\x1b\[0m\s*\n", text)


def test_other_rows_have_no_unread_tokens():
    masked = make_row(["never dull"], [[(0, 5), (6, 10)]]).mask_positions(
        [False, False, False, True]
    )
    attribution = make_attribution(masked, [0, 1, 2, 0])
    assert not find_unread_tokens(attribution).any()
    [line] = PageReader(render_page(attribution)).lines
    assert line.marks[-1][0] == "chip masked"
    assert "masked out" in line.marks[-1][1]


def test_each_word_of_the_answer_is_followed_by_the_text_in_its_colours(rows):
    page = render_page(rows)
    reader = re.search(r'<div class="reader">.*?</div>\n</div>', page, re.S)[0]
    words = re.findall(
        r'<span class="word" tabindex="0".*?aria-label="(.*?)".*?>(.*?)</span>', reader
    )
    assert [text for _, text in words] == ["L", "ily", "She", "ran"]
    # From the keyboard and to a screen reader: the strongest words behind it.
    assert words[1][0] == "ily, because of [L]ily +2, named +1.67, girl +1.33"
    copies = re.split(r'<span class="copy" aria-hidden="true">', reader)[1:]
    assert len(copies) == 4
    for copy in copies:
        assert re.sub("<.*?>", "", copy).startswith(f"{PROMPT}{WROTE}")
    assert 'class="token explained"' in copies[0]


def test_one_token_and_a_huge_text_have_no_reader(rows, monkeypatch):
    assert 'class="reader"' not in render_page(rows[:1])
    monkeypatch.setattr("tokenlight.plots.answer_reader.MAX_MARKS", 10)
    assert 'class="reader"' not in render_page(rows)
