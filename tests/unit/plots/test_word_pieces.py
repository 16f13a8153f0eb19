"""The strongest lists show a word piece inside its word, in page, terminal and figure."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.handmade_attributions import make_attribution, make_row, make_sample
from tests.helpers.terminal import render_terminal
from tokenlight.plots.figures import draw_token_bars
from tokenlight.plots.html import render_page
from tokenlight.plots.word_pieces import TokenInWord, find_strongest_tokens, locate_in_word

THRILLER = make_row(["a thriller"], [[(0, 1), (2, 6), (6, 10)]], words=[0, 1, 1])


def test_a_piece_is_shown_with_the_rest_of_its_word():
    assert locate_in_word(THRILLER, 3) == TokenInWord("thri", "ller", "")
    assert locate_in_word(THRILLER, 2) == TokenInWord("", "thri", "ller")
    assert locate_in_word(THRILLER, 3).bracketed == "thri[ller]"
    assert locate_in_word(THRILLER, 1) == TokenInWord("", THRILLER.surface_forms[1], "")
    assert locate_in_word(THRILLER, 1).bracketed == "a"


@pytest.mark.parametrize(
    ("text", "spans", "at", "expected"),
    [
        ("time,", [(0, 4), (4, 5)], 0, TokenInWord("", "time", "")),
        ("time,", [(0, 4), (4, 5)], 1, TokenInWord("", ",", "")),
        ("don't,", [(0, 2), (2, 6)], 0, TokenInWord("", "do", "n't")),
        (" Lily", [(0, 2), (2, 5)], 0, TokenInWord("", "L", "ily")),
        ("naïveté", [(0, 3), (3, 7)], 1, TokenInWord("naï", "veté", "")),
        ("😀", [(0, 1), (0, 1)], 0, TokenInWord("", "😀", "")),
    ],
)
def test_punctuation_and_white_space_are_no_rest_of_a_word(text, spans, at, expected):
    row = make_row([text], [spans], words=[0] * len(spans), special=False)
    assert locate_in_word(row, at) == expected


def test_a_very_long_word_shows_what_is_next_to_the_piece():
    row = make_row(["abcdefghijklmnopqrstuvwxyz"], [[(0, 12), (12, 14), (14, 26)]], words=[0, 0, 0])
    assert locate_in_word(row, 2) == TokenInWord("…ghijkl", "mn", "opqrst…")


def test_a_row_from_ids_shows_only_its_pieces():
    bare = replace(THRILLER, texts=(), spans=(None,) * 5, segments=(None,) * 5)
    assert locate_in_word(bare, 3) == TokenInWord("", bare.surface_forms[3], "")


def test_the_strongest_pieces_have_the_order_of_top():
    attribution = make_sample()
    assert [(p.text, s) for p, s in find_strongest_tokens(attribution, 4)] == attribution.top(4)


def test_zeros_are_no_strongest_unless_there_are_no_others():
    row = make_row(["a b"], [[(0, 1), (2, 3)]])
    assert len(find_strongest_tokens(make_attribution(row, [0, 1, 0, 0]))) == 1
    assert len(find_strongest_tokens(make_attribution(row, [0, 0, 0, 0]))) == 2
    assert re.search(
        r"b\s+0", render_terminal(make_attribution(row, [0, 0, 0, 0]), width=90, words=False)
    )


def test_page_terminal_and_figure_show_the_piece_in_its_word():
    attribution = make_attribution(THRILLER, [0, 0.1, 0.2, -1, 0])
    source = render_page(attribution)
    assert re.search(r'title="thri\[ller\]"><i>thri</i>ller</span>', source)
    assert re.search(r'title="\[thri\]ller">thri<i>ller</i></span>', source)
    assert re.search(
        r"thri\[ller\]\s+-1\s+-{12}", render_terminal(attribution, width=90, words=False)
    )
    assert re.search(
        r"\x1b\[2mthri\x1b\[0mller",
        render_terminal(attribution, colours="truecolor", width=90, words=False),
    )
    labels = [tick.get_text() for tick in draw_token_bars(attribution).axes[0].get_yticklabels()]
    assert labels == ["a", "[thri]ller", "thri[ller]"]


def test_hostile_words_stay_text():
    row = make_row(["<b>x\x1b[1m"], [[(0, 4), (4, 8)]], words=[0, 0])
    attribution = make_attribution(row, np.array([0, 1, 2, 0]))
    assert "<b>x" not in render_page(attribution)
    assert "\x1b" not in render_terminal(attribution, width=90, words=False)
