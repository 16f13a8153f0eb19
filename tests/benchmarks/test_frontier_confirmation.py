"""The rule of ADR 0022 decides as it is written, and the texts are those that no earlier script has read."""

from __future__ import annotations

import gzip
import json

import frontier_confirmation
import frontier_confirmation_page as page
import numpy as np
import pytest

GENERAL = {
    "support": {name: (True, "") for name in ("fullgrad_plus:gradient=libra", "cat:gradient=cp")},
    "cost": {name: (True, "") for name in ("fullgrad_plus:gradient=libra", "cat:gradient=cp")},
}


def make_column(task, metric, *, libra, cat, between=(0.0, -0.1, 0.1), loss=0.05):
    """A column with given intervals of the candidates' differences."""
    primary = metric in page.TASKS[task].metrics[: page.TASKS[task].num_primary]
    return {
        "task": task,
        "metric": metric,
        "is_primary": primary,
        "large_loss": loss,
        "differences": dict(zip(page.NAMES, (libra, cat), strict=True)),
        "between_candidates": between,
    }


AHEAD = [0.03, 0.01, 0.05]
LEVEL = [0.0, -0.01, 0.01]
BEHIND = [-0.03, -0.05, -0.01]
LOST = [-0.1, -0.12, -0.08]


def make_questions(**changes):
    """All columns of questions, on which both candidates are ahead, but for the changes by metric."""
    columns = []
    for metric in page.TASKS["squad_v1"].metrics:
        intervals = {"libra": AHEAD, "cat": AHEAD, **changes.get(metric.replace(":", "_"), {})}
        columns.append(make_column("squad_v1", metric, **intervals))
    return columns


def test_a_candidate_that_meets_all_parts_becomes_the_default():
    columns = make_questions(comprehensiveness={"between": AHEAD})
    assert page.decide_kind("question", columns, GENERAL)["chosen"] == page.PREFERRED
    # Level with the simpler method in every primary measure, it gives way to it.
    assert page.decide_kind("question", make_questions(), GENERAL)["chosen"] == page.SIMPLER


@pytest.mark.parametrize(
    ("metric", "intervals", "part"),
    [
        ("comprehensiveness", LEVEL, "primary"),
        ("comprehensiveness", BEHIND, "primary"),
        ("sufficiency", LOST, "no large loss"),
    ],
)
def test_a_part_that_does_not_hold_keeps_the_default(metric, intervals, part):
    changes = {metric: {"libra": intervals, "cat": intervals}}
    decision = page.decide_kind("question", make_questions(**changes), GENERAL)
    assert decision["chosen"] == "attnlrp"
    for parts in decision["candidates"].values():
        assert [name for name, (holds, _) in parts.items() if not holds] == [part]


def test_more_columns_behind_than_ahead_keep_the_default():
    both_behind = {"libra": BEHIND, "cat": BEHIND}
    changes = {"sufficiency": both_behind, "sufficiency_perturb=mask": both_behind}
    decision = page.decide_kind("question", make_questions(**changes), GENERAL)
    assert decision["chosen"] == "attnlrp"
    changes = {"sufficiency": both_behind}
    decision = page.decide_kind("question", make_questions(**changes), GENERAL)
    assert decision["chosen"] == page.SIMPLER


def test_support_and_cost_may_each_keep_the_default():
    families = {"attnlrp": ["bert", "opt"], page.PREFERRED: ["bert"], page.SIMPLER: ["bert", "opt"]}
    support = page.decide_support(families)
    assert support[page.SIMPLER][0]
    assert not support[page.PREFERRED][0]
    decision = page.decide_kind("question", make_questions(), {**GENERAL, "support": support})
    assert decision["chosen"] == page.SIMPLER
    times = {"rows": [{"method": name, "ratio": 1.0} for name in page.NAMES]}
    memory = {"tables": [{"rows": [{"case": page.PREFERRED, "memory": 1.2},
                                   {"case": page.SIMPLER, "memory": 0.9}]}]}  # fmt: skip
    cost = page.decide_cost(times, memory)
    assert [cost[name][0] for name in page.NAMES] == [False, True]


def test_a_kind_that_was_not_measured_keeps_its_default():
    decision = page.decide_kind("pair", make_questions(), GENERAL)
    assert decision["chosen"] == "attnlrp"
    assert decision["missing"] == ["qqp", "snli"]


def test_a_lower_value_is_ahead_where_lower_is_better():
    values = {name: {"sufficiency": [0.1] * 50} for name in page.NAMES}
    values["attnlrp"] = {"sufficiency": [0.2] * 50}
    values["random"] = {"sufficiency": [0.5] * 40}
    column = page.compare_column("squad_v1", "sufficiency", values)
    assert column["differences"][page.SIMPLER] == pytest.approx([0.1] * 3)
    assert column["large_loss"] == pytest.approx(0.03)


def test_no_text_is_read_that_an_earlier_order_began_with(tmp_path):
    rows = [{"text_a": f"a{i}", "text_b": "b", "label": 0} for i in range(2_500)]
    folder = tmp_path / "qqp"
    folder.mkdir()
    with gzip.open(folder / "test_subset.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(row) for row in rows))
    fresh = {int(row["text_a"][1:]) for row in frontier_confirmation.read_fresh("qqp", tmp_path)}
    early = set()
    for seed in (0, 11):
        early |= set(np.random.default_rng(seed).permutation(2_500)[:1_000].tolist())
    assert fresh == set(range(2_500)) - early
