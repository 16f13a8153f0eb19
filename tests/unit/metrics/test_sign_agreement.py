"""Sign agreement, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.handmade_attributions import make_attribution, split_words
from tests.helpers.handmade_attributions import make_row as text_row
from tokenlight import registry
from tokenlight.data.head import Head
from tokenlight.errors import BadInput
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds


def test_sign_agreement_equals_the_value_by_hand():
    text = "good bad fine odd"
    row = text_row([text], [split_words(text)])
    head = Head("text-classification", labels=("negative", "positive"))
    metric = registry.build("metrics", "sign_agreement", {})
    attribution = make_attribution(row, [9, 2, -1, -3, 4, 9])  # explains positive
    case = Case(
        attribution,
        Perturber(row, ReplacementIds(0, 0)),
        head,
        label=1,
        spans=((0, 0, 4), (0, 9, 13)),
    )
    measurement = metric.measure(case, [])
    assert measurement.value == 1 / 2  # good has +, fine has −
    assert measurement.parts["chance"] == 2 / 4
    negative = replace(case, label=0, spans=((0, 5, 8),))  # bad has −, as it should
    assert metric.measure(negative, []).value == 1.0
    joined_words = replace(case, spans=((0, 0, 8),))  # one word of two tokens: their sum counts
    assert metric.measure(joined_words, []).value == 1.0
    for signs, right in ((1, 1.0), (-1, 0.0)):  # one sign everywhere is right half of the time
        plain = replace(case, attribution=make_attribution(row, [signs] * 6))
        assert metric.measure(plain, []).value == right
        other_label = replace(plain, label=0, spans=((0, 5, 8),))
        assert metric.measure(other_label, []).value == 1 - right
    for wrong, words in (({"spans": ()}, "marked"), ({"label": None}, "no label")):
        with pytest.raises(BadInput, match=words):
            metric.measure(replace(case, **wrong), [])
