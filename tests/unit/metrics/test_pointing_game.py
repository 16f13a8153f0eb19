"""The pointing game, computed by hand."""

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


def test_the_pointing_game_counts_top_tokens_inside_a_span():
    text = "one two three four five six"
    row = text_row([text], [split_words(text)])
    head = Head("text-classification", labels=("negative", "positive"))
    metric = registry.build("metrics", "pointing_game", {})
    for scores, hit in (([9, 1, 2, 5, 4, 3, 0, 9], 1.0), ([9, 6, 2, 5, 4, 3, 0, 9], 0.0)):
        # [CLS] and [SEP] have the highest score, and never count.
        attribution = make_attribution(row, scores)
        case = Case(
            attribution, Perturber(row, ReplacementIds(0, 0)), head, spans=((0, 8, 18),)
        )  # three four
        measurement = metric.measure(case, [])
        assert measurement.value == hit
        assert measurement.parts["chance"] == pytest.approx(2 / 6)
    with pytest.raises(BadInput, match="marked"):
        metric.measure(replace(case, spans=()), [])
