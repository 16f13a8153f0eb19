"""Steps after an explanation: merged words, normalized scores, differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.data.postprocess import (
    absolute,
    difference,
    l1_normalise,
    max_normalise,
    merge_words,
    without_special,
)
from tokenlight.errors import BadInput, UnknownName

COVERED_MODULES = ("postprocess",)
EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())

ATTRIBUTION = EXPLAINER.explain("Charming film , but slower", "attcat")

PAIR = EXPLAINER.explain(("good film", "bad film"), "attcat")


@pytest.mark.parametrize(("options", "expected"), [("sum", -1.0), ("mean", -0.5), ("max", -3.0)])
def test_words_merge_by_the_chosen_reduction(options, expected):
    from dataclasses import replace

    scores = np.zeros(len(ATTRIBUTION))
    scores[1:3] = 2.0, -3.0  # Charm, ing
    merged = merge_words(replace(ATTRIBUTION, scores=scores, layers=None), reduction=options)
    assert merged.scores[1] == expected
    with pytest.raises(UnknownName, match="way to merge words"):
        merge_words(ATTRIBUTION, reduction="median")


def test_merging_keeps_segments_apart():
    merged = merge_words(PAIR)
    assert [s for s in merged.row.segments if s is not None] == [0, 0, 1, 1]


def test_postprocessing_keeps_the_raw_scores_and_records_its_steps():
    before = ATTRIBUTION.scores.copy()
    created = l1_normalise(absolute(ATTRIBUTION))
    assert created.steps == ("absolute", "l1_normalise")
    assert created.scores.sum() == pytest.approx(1.0)
    assert np.abs(max_normalise(ATTRIBUTION).scores).max() == pytest.approx(1.0)
    assert without_special(ATTRIBUTION).scores[0] == 0
    np.testing.assert_array_equal(ATTRIBUTION.scores, before)


def test_a_difference_needs_one_text():
    other = EXPLAINER.explain("Charming film , but slower", "gae")
    assert difference(ATTRIBUTION, other).method == "attcat − gae"
    with expect_error(BadInput, "difference-of-texts"):
        difference(ATTRIBUTION, PAIR)


@pytest.mark.parametrize("step", [absolute, l1_normalise, merge_words])
def test_error_bars_are_dropped_when_their_scores_change(step):
    sampled = EXPLAINER.explain("Charming film , but slower", "subset_relevance")
    assert len(sampled.extras["standard_errors"]) == len(sampled)
    changed = step(sampled)
    assert "standard_errors" not in changed.extras
    assert changed.extras["sampling"] == sampled.extras["sampling"]
