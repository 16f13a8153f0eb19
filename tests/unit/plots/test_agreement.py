"""One sentence on several methods: whether they agree, where not, and which the tests support."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.plots.agreement import compare_methods, describe_agreement

TEXT = "the film is not very good"


def make_attributions(tokenizer, *score_rows, grades=()):
    attribution = Explainer(tiny_bert(), tokenizer).explain(TEXT, "random")
    attributions = []
    for i, scores in enumerate(score_rows):
        extras = {"trust": {"grade": grades[i], "verdict": ""}} if grades else {}
        row = np.array([0.0, *scores, 0.0])
        attributions.append(replace(attribution, scores=row, layers=None, extras=extras))
    return attributions


def test_equal_orders_agree_and_opposite_ones_contradict(tokenizer):
    up = [1, 2, 3, 4, 5, 6]
    same = make_attributions(tokenizer, up, [2 * score for score in up])
    assert describe_agreement(same, ["a", "b"]) == (
        "the methods agree on their top words (rank correlation 1.00)"
    )
    opposite = make_attributions(tokenizer, up, up[::-1])
    assert describe_agreement(opposite, ["a", "b"]) == (
        "the methods contradict each other on their top words (rank correlation −1.00); "
        "they differ most on ‘the’"
    )


def test_the_sentence_names_the_methods_that_the_trust_tests_support(tokenizer):
    rows = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5])
    for grades, support in (
        (("faithful", "no better than chance"), "the tests support a"),
        (("faithful", "better than chance"), "the tests support all of them"),
        (
            ("cannot tell", "no better than chance"),
            "none of them has a good grade, so the tests cannot tell which is right",
        ),
    ):
        attributions = make_attributions(tokenizer, *rows, grades=grades)
        assert describe_agreement(attributions, ["a", "b"]).endswith(f"; {support}")


def test_supported_methods_that_differ_leave_it_open(tokenizer):
    up = [1, 2, 3, 4, 5, 6]
    attributions = make_attributions(tokenizer, up, up[::-1], grades=("faithful", "faithful"))
    assert describe_agreement(attributions, ["a", "b"]).endswith(
        "; the tests support all of them, though these differ: they cannot tell which of them is right"
    )


def test_methods_with_inconclusive_tests_are_named(tokenizer):
    up = [1, 2, 3, 4, 5, 6]
    attributions = make_attributions(tokenizer, up, up[::-1], grades=("faithful", "cannot tell"))
    assert describe_agreement(attributions, ["a", "b"]).endswith(
        "; the tests support a; they cannot tell about b"
    )


def test_one_method_and_equal_scores_are_not_compared(tokenizer):
    (attribution,) = make_attributions(tokenizer, [1, 2, 3, 4, 5, 6])
    assert describe_agreement([attribution], ["a"]) == ""
    flat = make_attributions(tokenizer, [1, 2, 3, 4, 5, 6], [1] * 6)
    assert compare_methods(flat, ["a", "b"]) == []


def test_the_least_alike_pair_is_named(tokenizer):
    up = [1, 2, 3, 4, 5, 6]
    attributions = make_attributions(tokenizer, up, up, up[::-1])
    sentence = describe_agreement(attributions, ["a", "b", "c"])
    assert "; lowest for a and c: −1.00)" in sentence
