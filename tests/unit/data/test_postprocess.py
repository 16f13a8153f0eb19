"""Steps after an explanation: merged words, normalized scores, differences."""

from __future__ import annotations

from dataclasses import replace

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
from tokenlight.data.units import group_by_word
from tokenlight.errors import BadInput, UnknownName

COVERED_MODULES = ("postprocess",)
EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())

ATTRIBUTION = EXPLAINER.explain("Charming film , but slower", "attcat")

PAIR = EXPLAINER.explain(("good film", "bad film"), "attcat")


@pytest.mark.parametrize(("options", "expected"), [("sum", -1.0), ("mean", -0.5), ("max", -3.0)])
def test_words_merge_by_the_chosen_reduction(options, expected):
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


SAMPLED = replace(ATTRIBUTION, standard_errors=np.arange(len(ATTRIBUTION)) + 1.0)


def test_error_bars_are_scaled_with_the_scores_they_belong_to():
    total = np.abs(SAMPLED.scores).sum()
    np.testing.assert_array_equal(absolute(SAMPLED).standard_errors, SAMPLED.standard_errors)
    np.testing.assert_allclose(
        l1_normalise(SAMPLED).standard_errors, SAMPLED.standard_errors / total
    )
    is_regular = ~np.array(SAMPLED.row.special_tokens_mask)
    np.testing.assert_array_equal(
        without_special(SAMPLED).standard_errors, SAMPLED.standard_errors * is_regular
    )


def test_a_word_has_at_most_the_errors_of_its_tokens_together():
    groups = group_by_word(SAMPLED.row)
    for reduction, reduce in (("sum", np.sum), ("mean", np.mean)):
        expected = [reduce(SAMPLED.standard_errors[group]) for group in groups]
        merged = merge_words(SAMPLED, reduction=reduction)
        np.testing.assert_allclose(merged.standard_errors, expected)
    # The strongest token of a word stands for it, with its own error.
    expected = []
    for group in groups:
        strongest = np.abs(SAMPLED.scores[group]).argmax()
        expected.append(SAMPLED.standard_errors[group][strongest])
    np.testing.assert_array_equal(merge_words(SAMPLED, reduction="max").standard_errors, expected)


def test_the_errors_of_a_difference_add_in_squares():
    changed = difference(SAMPLED, SAMPLED)
    scaled = l1_normalise(SAMPLED).standard_errors
    np.testing.assert_allclose(changed.standard_errors, np.sqrt(2) * scaled)
    # A reference that was not sampled adds no error.
    np.testing.assert_allclose(difference(SAMPLED, ATTRIBUTION).standard_errors, scaled)
    assert difference(ATTRIBUTION, ATTRIBUTION).standard_errors is None
