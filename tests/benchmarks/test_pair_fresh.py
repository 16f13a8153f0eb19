"""Fresh pairs share nothing with the suite, and the rule that was written before they were measured."""

from __future__ import annotations

import json
from typing import Any

import pair_data
import pair_fresh
import pytest


def make_records(default: list[int], candidate: list[int]) -> list[dict[str, Any]]:
    """Return records of two words each, of which the first decides; 1 where a method names it."""
    records = []
    for index, (default_is_right, candidate_is_right) in enumerate(
        zip(default, candidate, strict=True)
    ):
        record: dict[str, Any] = {"template": f"template {index}", "marked": [True, False]}
        for label in pair_fresh.METHODS:
            is_right = candidate_is_right if label == pair_fresh.CANDIDATE else default_is_right
            record[label] = [1.0, 0.0] if is_right else [0.0, 1.0]
        records.append(record)
    return records


def test_fresh_prompts_are_not_in_the_suite_and_name_their_deciding_word():
    lines = pair_data.SUITE_DATA.read_text("utf-8").splitlines()
    texts = {json.loads(line)["text"] for line in lines}
    prompts = pair_fresh.build_examples()
    assert len({template for template, _ in prompts}) == 26
    for _, example in prompts:
        assert example.text not in texts
        assert len(example.spans) == len(example.extra_columns["counterfactuals"])


@pytest.mark.parametrize(
    ("second", "is_better"),
    [([1] * 20, True), ([0] * 3 + [1] * 17, False)],
    ids=["level", "worse on one model"],
)
def test_a_candidate_is_better_only_if_it_is_worse_on_no_model(second, is_better):
    ahead = make_records([0] * 20, [1] * 20)
    summary = pair_fresh.summarize({"a": ahead, "b": make_records([1] * 20, second)})
    assert summary["pooled"][pair_fresh.CANDIDATE]["low"] > 0
    assert summary["candidate is better"] is is_better
    assert "is better" in pair_fresh.format_report(summary) or not is_better


def test_intervals_resample_templates():
    records = make_records([0, 1] * 10, [1, 1] * 10)
    alone = pair_fresh.summarize({"a": records})["models"]["a"]["rows"][pair_fresh.CANDIDATE]
    for record in records[:10]:
        record["template"] = "the same"
    together = pair_fresh.summarize({"a": records})["models"]["a"]["rows"][pair_fresh.CANDIDATE]
    assert alone["difference"]["mean"] == together["difference"]["mean"] == 0.5
    assert alone["difference"] != together["difference"]
