"""Standard errors are saved with the scores, and shown in terminal, page and figures."""

import json
import re

import numpy as np
import pytest

import tokenlight
from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import make_attribution, make_row
from tests.helpers.terminal import render_terminal
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.files.attribution_parquet import (
    attribution_from_row,
    build_table,
    to_columns,
)
from tokenlight.files.saved import to_token_rows
from tokenlight.plots.descriptions import build_badges
from tokenlight.plots.figures import draw_token_bars
from tokenlight.plots.html import render_page

ROW = make_row(["good but slow"], [[(0, 4), (5, 8), (9, 13)]])
SCORES = [0.0, 0.9, 0.1, -0.5, 0.0]
ERRORS = [0.0, 0.2, 0.06, 0.2, 0.0]  # ``but`` lies within two errors of 0
SAMPLED = make_attribution(
    ROW,
    SCORES,
    method="subset_relevance",
    standard_errors=np.array(ERRORS),
    extras={"sampling": {"samples": 8, "top_k": 2, "stability": 0.75, "self_test": None}},
)
EXACT = make_attribution(ROW, SCORES)


def test_a_score_within_two_standard_errors_could_be_zero():
    np.testing.assert_array_equal(SAMPLED.uncertain_mask, [False, False, True, False, False])
    assert not EXACT.uncertain_mask.any()


@pytest.mark.parametrize(
    "errors",
    [[0.1, 0.2], [[0.1] * 5], [0.1, 0.1, -0.1, 0.1, 0.1]],
    ids=["few", "matrix", "negative"],
)
def test_errors_that_fit_no_token_are_refused(errors):
    with expect_error(BadInput, "standard-errors", mentions="5 tokens"):
        make_attribution(ROW, SCORES, standard_errors=np.array(errors))


def test_errors_come_back_from_json_and_older_files_have_none(tmp_path):
    path = SAMPLED.save(tmp_path / "a.json")
    np.testing.assert_array_equal(Attribution.load(path).standard_errors, ERRORS)
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["standard_errors"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert Attribution.load(path).standard_errors is None


def test_errors_come_back_from_parquet_and_older_folders_have_none():
    table = build_table(to_columns([SAMPLED, EXACT], "fingerprint"))
    sampled, exact = table.to_pylist()
    np.testing.assert_allclose(attribution_from_row(sampled).standard_errors, ERRORS, rtol=1e-6)
    assert attribution_from_row(exact).standard_errors is None
    del sampled["standard_errors"]
    assert attribution_from_row(sampled).standard_errors is None


def test_tables_have_a_column_of_errors_where_there_are_any(tmp_path):
    assert [row["standard_error"] for row in to_token_rows([SAMPLED])] == ERRORS
    token_rows = to_token_rows([EXACT, SAMPLED])
    assert [row["standard_error"] for row in token_rows] == [None] * 5 + ERRORS
    assert "standard_error" not in to_token_rows([EXACT])[0]
    path = tokenlight.save([SAMPLED], tmp_path / "a.csv")
    assert path.read_text(encoding="utf-8").splitlines()[2].endswith(",0.9,0.2")


def test_the_terminal_states_which_scores_could_be_zero():
    plain = render_terminal(SAMPLED)
    assert re.search(r"good +\+0.9 +± 0.2 +\+\+", plain)
    assert re.search(r"but +\+0.1 +± 0.06 \?", plain)
    assert "± one standard error over 8 partial texts; 1 of 3 could be 0 (?)" in plain
    assert "75.0 % of the top 2 tokens would be named again by other draws" in plain
    coloured = render_terminal(SAMPLED, colours="truecolor")
    assert re.search(r"\x1b\[3;[0-9;]*mbut", coloured)
    assert not re.search(r"\x1b\[3;[0-9;]*mgood", coloured)
    assert "±" not in render_terminal(EXACT)


def test_the_page_hatches_what_could_be_zero_and_draws_whiskers():
    page = render_page(SAMPLED)
    assert re.search(r'class="token f1 uncertain" title="but  \+0.1 ± 0.06 [^"]*could be 0"', page)
    assert 'title="good  +0.9 ± 0.2  · piece good"' in page
    # The longest bar leaves room for its whisker: 0.9 of 0.9 + 0.2, from 0.7 to 1.1.
    assert 'width="81.8%"' in page
    assert 'x1="63.6%" x2="100.0%" y1="50%"' in page
    assert "± one standard error over 8 partial texts; 1 of 3 could be 0" in build_badges(SAMPLED)
    exact = render_page(EXACT)
    assert "±" not in exact
    assert "uncertain" not in exact.partition("<body")[2]
    assert 'class="whisker"' not in exact


def test_bars_have_error_bars_and_hatches():
    axes = draw_token_bars(SAMPLED, k=3).axes[0]
    (whiskers,) = axes.collections
    ends = sorted(segment[:, 0].tolist() for segment in whiskers.get_segments())
    np.testing.assert_allclose(ends, [[-0.7, -0.3], [0.04, 0.16], [0.7, 1.1]])
    assert [bar.get_hatch() for bar in axes.patches] == ["////", None, None]
    assert not draw_token_bars(EXACT, k=3).axes[0].collections
