"""Explanations that earlier versions saved have the present keys once they are read."""

import pytest

from tokenlight.data.attribution import Attribution
from tokenlight.data.old_names import rename_old_extras, rename_old_target
from tokenlight.data.trust import read_trust


def test_the_trust_result_of_an_earlier_version_is_read():
    attribution = Attribution.from_arrays([0.1, 0.7], [5, 6], [0.2, 1.3])
    values = attribution.to_dict()
    values["extras"] = {
        "place": "row 3 of reviews.csv",
        "trust": {
            "grade": "faithful",
            "verdict": "v",
            "words": 7,
            "orders": 3,
            "judgements": ["faithful"],
            "weak": "",
            "moved": 0.4,
            "special": 0.1,
            "signed": True,
            "removals": [
                {"words_are": "deleted", "beaten": 0.9, "stronger": 1, "subtexts": {"sums": [0.1]}}
            ],
            "health": [{"check": "ties", "state": "good", "says": "no ties"}],
        },
    }
    read = Attribution.from_dict(values)
    assert read.extras == {
        "location": "row 3 of reviews.csv",
        "trust": {
            "grade": "faithful",
            "verdict": "v",
            "num_words": 7,
            "num_orders": 3,
            "judgments": ["faithful"],
            "weakness": "",
            "max_change": 0.4,
            "special_share": 0.1,
            "has_signs": True,
            "removals": [
                {
                    "action": "deleted",
                    "share_beaten": 0.9,
                    "num_stronger": 1,
                    "partial_texts": {"sums": [0.1]},
                }
            ],
            "health": [{"check": "ties", "state": "good", "finding": "no ties"}],
        },
    }
    trust = read_trust(read)
    assert trust is not None
    assert (trust.num_words, trust.num_orders) == (7, 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"likeness": {"border": 4}}, {"similarity": {"num_first_tokens": 4}}),
        ({"kept": {"id": "r7"}}, {"input_columns": {"id": "r7"}}),
        (
            {"difference": {"border": 2, "behind": 5}},
            {"difference": {"num_shared_tokens": 2, "num_first_tokens": 5}},
        ),
        ({"trust": "no object", "place": 3}, {"trust": "no object", "location": 3}),
        ({"trust": {"removals": 4, "health": [1]}}, {"trust": {"removals": 4, "health": [1]}}),
        ([], []),
        (None, None),
    ],
)
def test_keys_are_renamed_and_other_values_left_as_they_are(old, new):
    assert rename_old_extras(old) == new
    assert rename_old_extras(new) == new


def test_a_saved_continuation_opens_under_its_earlier_kind():
    target = {"kind": "answer", "name": "‘a b’", "terms": [[[0, 0], 1.0], [[0, 1], -1.0]]}
    assert rename_old_target(target) == {**target, "kind": "continuation"}
    values = Attribution.from_arrays([0.1, 0.7], [5, 6], [0.2, 1.3]).to_dict()
    values["target"] = {**values["target"], **target}
    values["logits"] = [0.2, 1.3]
    assert Attribution.from_dict(values).target.kind == "continuation"


@pytest.mark.parametrize("target", [None, [], {"kind": 3}, {"kind": "span", "name": "x"}])
def test_other_targets_are_left_as_they_are(target):
    assert rename_old_target(target) == target
