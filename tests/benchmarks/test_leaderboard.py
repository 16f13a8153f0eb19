"""The leaderboard: ranks by hand, equal methods tie, many tasks of one measure weigh as one."""

from __future__ import annotations

import re

import leaderboard
import numpy as np
import pytest
from leaderboard import Board, Column

from tokenlight.bench.suite import load_suite


def make_board():
    good = np.full(50, 0.9)
    middle = np.full(50, 0.5)
    bad = np.full(50, 0.1)
    values = {"A": good, "B": middle, "C": bad}
    turned = {"A": bad, "B": middle, "C": good}
    board = Board(names={"A": "attcat", "B": "cat"}, provenance=["x on cpu"])
    board.columns = [
        Column("AOPC", "one", values, 1),
        *(Column("Planted words", f"task {n}", turned, 1) for n in range(3)),
        Column("Soft erasure", "one", values, -1),
    ]
    return board


def test_ranks_are_means_over_measures_of_means_over_tasks():
    ranks = make_board().ranks()
    assert [ranks[name]["AOPC"][0] for name in "ABC"] == [1, 2, 3]
    assert [ranks[name]["Planted words"][0] for name in "ABC"] == [3, 2, 1]
    assert [ranks[name]["Soft erasure"][0] for name in "ABC"] == [3, 2, 1]  # lower is better there
    assert [ranks[name][""][0] for name in "ABC"] == pytest.approx([7 / 3, 2, 5 / 3])
    assert ranks["A"][""] == pytest.approx((7 / 3, 7 / 3, 7 / 3))  # every resample says the same


def test_equal_methods_share_a_rank_and_chance_widens_the_interval():
    generator = np.random.default_rng(0)
    same = generator.normal(size=40)
    values = {"A": same, "B": same.copy(), "C": same + generator.normal(0, 1, 40)}
    ranks = Board(columns=[Column("AOPC", "one", values, 1)]).ranks()
    assert ranks["A"][""] == ranks["B"][""]
    _, low, high = ranks["C"][""]
    assert (low, high) == (1.0, 3.0)


def test_a_method_without_a_number_somewhere_is_ranked_by_the_others():
    board = make_board()
    board.columns.append(Column("Signs", "one", {"A": np.ones(9), "B": np.zeros(9)}, 1))
    ranks = board.ranks()
    assert "Signs" not in ranks["C"]
    assert ranks["C"][""][0] == pytest.approx(5 / 3)


def test_pages_have_a_row_for_every_method_and_a_table_for_every_measure():
    board = make_board()
    board.cost = {"A": (2.0, 10.0), "B": (1.0, 5.0), "C": (9.0, 90.0)}
    content = leaderboard.build_content(board, "abc")
    pages = leaderboard.leaderboard_page.render_files(content)
    text = pages["leaderboard.md"]
    for title in ("AOPC", "Planted words", "Soft erasure"):
        assert f"<summary><strong>{title}</strong>: " in text
    assert text.count("\n| A |") == 4
    assert "at commit `abc`" in text
    html = pages["leaderboard.html"]
    assert html.count("<table>") == 5  # with that of the leaders
    assert not re.search(r'(src|href)="', html), "nothing from outside"


def test_the_charts_place_the_best_rank_left_and_the_most_faithful_on_top():
    board = make_board()
    board.cost = {"A": (2.0, 10.0), "B": (1.0, 5.0), "C": (9.0, 90.0)}
    content = leaderboard.build_content(board, "abc")
    pages = leaderboard.leaderboard_page.render_files(content)
    dots = r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>(\w)'
    ranks = {name: float(x) for x, _, name in re.findall(dots, pages["leaderboard_ranks.svg"])}
    assert ranks["C"] < ranks["B"] < ranks["A"]  # mean ranks 5/3, 2, 7/3
    points = re.findall(dots, pages["leaderboard_cost.svg"])
    cost = {name: float(x) for x, _, name in points}
    height = {name: float(y) for _, y, name in points}
    assert cost["B"] < cost["A"] < cost["C"]
    assert height["A"] < height["B"] < height["C"]  # AOPC 0.9, 0.5, 0.1; y grows downwards


def test_the_package_shows_methods_without_options_by_their_own_names():
    table = leaderboard.build_table(make_board(), "abc")
    assert table["means"] == {"attcat": 0.9, "cat": 0.5}
    assert table["ranks"]["attcat"] == [2.3, 2.3, 2.3]
    assert table["texts"] == 50


def test_every_measure_is_a_metric_of_its_suite():
    for _, suite, label, _ in leaderboard.MEASURES:
        assert label in {metric.label for metric in load_suite(suite).metrics}
