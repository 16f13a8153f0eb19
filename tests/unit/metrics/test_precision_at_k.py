"""Precision at k, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.handmade_attributions import make_attribution, split_words
from tests.helpers.handmade_attributions import make_row as text_row
from tests.helpers.planted_model import MASK, PAD
from tokenlight import registry
from tokenlight.data.head import Head
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds


def make_qa_case(scores, spans, *, cut=0, context="red blue green cat"):
    row = text_row(["who", context], [split_words("who"), split_words(context)], cut=cut)
    attribution = make_attribution(row, scores)
    return Case(
        attribution,
        Perturber(row, ReplacementIds(PAD, MASK)),
        Head("question-answering"),
        spans=spans,
    )


def test_precision_at_k_equals_the_value_by_hand():
    # [CLS] who [SEP] red blue green cat [SEP]; the answer is "blue green": tokens 4 and 5
    scores = [0, 9, 8, 1, 7, 0.5, 2, 3]
    answer = ((1, 4, 14),)
    for k, count in ((1, 0), (2, 0), (3, 1), (6, 1), (7, 2), (20, 2)):
        metric = registry.build("metrics", "precision_at_k", {"k": k})
        measurement = metric.measure(make_qa_case(scores, answer), [])
        assert (measurement.value, measurement.detail["length"]) == (count, 2)
    ratio = registry.build("metrics", "precision_at_k", {"k": 3, "preset": "mask_lrp"})
    other = make_qa_case(scores, ((1, 0, 3),))  # "red", one token, score 1: not among three
    measurements = [ratio.measure(case, []) for case in (make_qa_case(scores, answer), other)]
    assert ratio.summarize(measurements).interval.mean == pytest.approx(100 * 1 / 3)
    mean = (
        registry.build("metrics", "precision_at_k", {"k": 3}).summarize(measurements).interval.mean
    )
    assert mean == pytest.approx(0.5)


def test_an_answer_that_was_cut_off_counts_as_the_first_token():
    metric = registry.build("metrics", "precision_at_k", {"k": 1})
    truncated = make_qa_case([9, 0, 0, 0, 0, 0, 0, 0], ((1, 30, 36),), cut=5)
    assert metric.measure(truncated, []).value == 1
    dropping = registry.build("metrics", "precision_at_k", {"drop_truncated": True})
    with pytest.raises(Exception, match="it was truncated"):
        dropping.measure(truncated, [])
    with pytest.raises(Exception, match="no answer"):
        metric.measure(make_qa_case([0] * 8, ()), [])
    keeping = registry.build("metrics", "precision_at_k", {"k": 1, "drop_unanswerable": False})
    assert keeping.measure(make_qa_case([9] + [0] * 7, ()), []).value == 1
