"""A continuation's rows show what was there when each token was written, and how likely it was."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.unit.hand_made import attribution_of, row_of
from tests.unit.reading_html import Reader
from tokenlight.data.postprocess import merge_words
from tokenlight.data.target import Prediction, ResolvedTarget
from tokenlight.inputs.prompt import WRITTEN
from tokenlight.plots.html import page
from tokenlight.plots.passages import laid_over, unread
from tokenlight.plots.terminal import show
from tokenlight.plots.views import class_table

PROMPT, WROTE = "a girl named", " Lily She ran"
SPANS = [[(0, 1), (2, 6), (7, 12)], [(1, 2), (2, 5), (6, 9), (10, 13)]]
WORDS = [0, 1, 2, 3, 3, 4, 5]
LIKELIEST = [("L", 0.9), ("ily", 0.8), ("He", 0.6), ("ran", 0.5)]


def explained(place: int, text: str, index: int):
    """What explains the token at ``place`` from those before it; ``index`` is its label."""
    whole = replace(
        row_of([PROMPT, WROTE], SPANS, words=WORDS, special=False), names=("prompt", WRITTEN)
    )
    label, chance = LIKELIEST[place - 3]
    likeliest = index if label == text else 7
    said = Prediction(label, likeliest, (label, "x"), (chance, 0.05), ids=(likeliest, 9))
    scores, logits = np.linspace(1, 2, place), np.log([1e-9] * 5 + [0.3, 0.1, 0.6])
    made = attribution_of(whole.take(range(place)), scores, prediction=said, logits=logits)
    return replace(made, target=ResolvedTarget("class", f"‘{text}’", (((index,), 1.0),)))


@pytest.fixture
def rows():
    return [explained(3 + n, text, 3 + n) for n, text in enumerate(["L", "ily", "She", "ran"])]


def printed(attributions, *, colours=None, **how):
    stream = io.StringIO()
    terminal = colours is not None
    console = Console(file=stream, width=100, color_system=colours, force_terminal=terminal)
    show(attributions, console=console, **how)
    return stream.getvalue()


def shown(source, kind="tokens"):
    """For each row the looks of the written line's stretches, by their text."""
    lines = [line for line in Reader(source).lines if line.kind == kind][1::2]
    return [{text: (look.split(), title) for look, title, text in line.marks} for line in lines]


def test_what_is_written_later_is_unread(rows):
    found = laid_over(rows)
    assert [int(unread(a).sum()) for a in found] == [3, 2, 1, 0]
    assert not any(unread(a).any() for a in rows)


def test_later_tokens_are_faint_and_say_why(rows):
    first, second, third, last = shown(page(rows))
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
    first, second, third, _ = shown(page(rows), "words")
    assert "explained" in first["Lily"][0]
    assert second["Lily"][0][-1] == "explained"
    assert re.search(r"Lily  \+\d.* · explained here", second["Lily"][1])
    assert "explained" not in third["Lily"][0]
    assert "later" in first["She"][0]


def test_one_row_alone_marks_its_token_and_those_behind_it(rows):
    [row] = shown(page(rows[2]))
    assert row["She"][0] == ["explained"]
    assert row[" ran"][0] == ["later"]


def test_every_row_has_its_probability_and_the_bars_name_their_token(rows):
    source = page(rows)
    assert "The bars are for 1. ‘L’; each row below has its own probability" in source
    assert "<small>90.0 % likely</small>" in source
    assert "<small>80.0 % likely</small>" in source
    # Not among the likeliest that are kept: read off the logits, where they are still known.
    assert "<small>30.0 % likely; likeliest: ‘He’ 60.0 %</small>" in source
    loaded = [replace(a, logits=np.array([])) for a in rows]
    assert "<small>not among the 2 likeliest; likeliest: ‘He’ 60.0 %</small>" in page(loaded)


def test_the_table_leaves_cells_of_later_tokens_empty(rows):
    found = laid_over(rows)
    assert class_table(found).unread.sum() == 6
    assert class_table([merge_words(a) for a in found]).unread.sum() == 2 + 1 + 1
    table = re.search(r'<table class="heat">.*?</table>', page(rows), re.S)[0]
    cells = re.findall(r'<td class="later" title="(.*?)"></td>', table)
    assert len(cells) == 6
    assert cells[0] == "L  1. ‘L’  not yet written"


def test_the_terminal_ends_a_row_with_its_token(rows):
    text = printed(rows, words=False)
    assert "prediction  at 1. ‘L’:  ‘L’ 0.900  ‘x’ 0.050" in text
    assert re.search(r"for 1\. ‘L’  90\.0 % likely", text)
    assert re.search(r"written 0 % .*»L«\n", text)
    assert re.search(r"written .* L\(\+2\)»ily«\n", text)
    assert re.search(r"»She«\n", text)
    assert re.search(r"»ran«\n", text)
    assert "empty: not yet written" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("ily "))
    assert len(line.split()) == 3  # its name and the two tokens written after it


def test_what_a_model_writes_is_read_by_tokens_unless_words_are_asked_for(rows):
    assert printed(rows) == printed(rows, words=False) != printed(rows, words=True)
    assert page(rows) == page(rows, words=False) != page(rows, words=True)
    plain = [replace(one, row=replace(one.row, names=())) for one in rows[:1]]
    assert page(plain) == page(plain, words=True)


def test_the_terminal_marks_the_word_that_is_being_written(rows):
    text = printed(rows, words=True)
    assert re.search(r"written 0 % .*»Lily«\n", text)
    assert text.count("»Lily«") == 2


def test_brackets_hold_the_scored_piece_alone(rows):
    text = printed(rows, words=False)
    assert "[L]ily" in text
    assert "[ily]\n" not in text


def test_targets_are_numbered_in_order(rows):
    text = printed(rows)
    for name in ("1. ‘L’", "2. ‘ily’", "3. ‘She’", "4. ‘ran’"):
        assert f"for {name}  " in text


def test_blank_tokens_of_a_prediction_are_seen(rows):
    said = Prediction(" three", 7, (" three", " ", "\n"), (0.4, 0.06, 0.05), ids=(7, 8, 9))
    blank = replace(rows[0], prediction=said)
    assert "‘three’ 0.400  ‘ ’ 0.060  ‘␊’ 0.050" in printed(blank)
    for name in ("‘three’", "‘ ’", "‘␊’"):
        assert f">{name}</span>" in page(blank)


def test_with_colours_the_explained_token_is_underlined(rows):
    text = printed(rows, colours="truecolor", words=False)
    assert re.search(r"\x1b\[4mL\x1b\[0m\s*\n", text)


def test_other_rows_have_no_unread_tokens():
    masked = row_of(["never dull"], [[(0, 5), (6, 10)]]).masked([False, False, False, True])
    a = attribution_of(masked, [0, 1, 2, 0])
    assert not unread(a).any()
    [line] = Reader(page(a)).lines
    assert line.marks[-1][0] == "chip masked"
    assert "masked out" in line.marks[-1][1]
