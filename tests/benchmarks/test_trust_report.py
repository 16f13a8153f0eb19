"""Counts of the trust calibration: further texts are added to those of an earlier page."""

from __future__ import annotations

import pytest
from trust_report import add_counts

THRESHOLDS = {"evidence": 3.5}


def make_counts(num_texts, num_good, words):
    """Make the counts of one task with as many texts."""
    counts = {"random": {"faithful": num_good, "cannot tell": num_texts - num_good}}
    pairs = {"attnlrp": {"pairs": num_texts, "another grade": num_good}}
    point = {
        "words": words,
        "texts": num_texts,
        "near-best": num_good / num_texts,
        "attnlrp": 0.5,
        "random": 0.0,
    }
    return {
        "thresholds": THRESHOLDS,
        "texts": {"text": num_texts},
        "single_removals": {"delete": [num_good, num_texts]},
        "seeds": {"text": pairs},
        "grades": {"text": counts},
        "power": {"text": [point]},
        "facts": {"device": f"machine of {num_texts}"},
    }


def test_counts_of_further_texts_are_added_and_shares_are_means_over_texts():
    total = add_counts(make_counts(100, 20, 11.0), make_counts(300, 20, 9.0))
    assert total["texts"] == {"text": 400}
    assert total["grades"]["text"]["random"] == {"faithful": 40, "cannot tell": 360}
    assert total["single_removals"] == {"delete": [40, 400]}
    assert total["seeds"]["text"]["attnlrp"] == {"pairs": 400, "another grade": 40}
    (point,) = total["power"]["text"]
    assert point["texts"] == 400
    assert point["words"] == pytest.approx(9.5)
    assert point["near-best"] == pytest.approx(0.1)
    assert total["facts"] == {"device": "machine of 300"}
    assert total["further"] == {"texts": {"text": 100}, "facts": {"device": "machine of 100"}}


def test_texts_of_another_length_are_points_of_their_own():
    total = add_counts(make_counts(100, 20, 33.0), make_counts(300, 20, 9.0))
    assert [point["words"] for point in total["power"]["text"]] == [9.0, 33.0]


def test_a_task_that_was_not_measured_again_keeps_its_counts():
    earlier = make_counts(300, 30, 9.0)
    earlier["grades"]["next"] = {"random": {"faithful": 3}}
    earlier["power"]["next"] = earlier["power"]["text"]
    total = add_counts(make_counts(100, 20, 9.0), earlier)
    assert total["grades"]["next"] == {"random": {"faithful": 3}}
    assert total["power"]["next"] == earlier["power"]["next"]


def test_counts_of_another_rule_are_refused():
    content = make_counts(100, 20, 9.0) | {"thresholds": {"evidence": 3.0}}
    with pytest.raises(SystemExit, match="another rule"):
        add_counts(content, make_counts(300, 20, 9.0))
