"""Charts behind a grade: paths from numbers, and nothing from files that hold none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.plots.html import render_page
from tokenlight.plots.trust_charts import HEIGHT, WIDTH, build_removal_charts

REMOVAL = {
    "action": "deleted",
    "counts": [0, 2, 4, 8],
    "curve": [1.0, 0.5, 0.25, 0.0],
    "random_low": [0.75, 0.5],
    "random_high": [1.0, 0.75],
    "partial_texts": {"sums": [0.0, 1.0, 2.0, 4.0], "log_odds": [-1.0, 0.0, 1.0, 3.0]},
}


@pytest.fixture(scope="module")
def attribution(tokenizer):
    return Explainer(tiny_bert(), tokenizer).explain("the film is good", "attcat")


def with_trust(attribution, removal, **trust):
    trust = {"grade": "faithful", "findings": ["found"], "removals": [removal]} | trust
    return replace(attribution, extras={"trust": trust})


def test_curves_and_bands_are_scaled_to_the_words_of_the_text(attribution):
    (charts,) = build_removal_charts(with_trust(attribution, REMOVAL, words=8))
    quarter, half = WIDTH / 4, WIDTH / 2
    assert charts.curve == f"M0.0 0.0L{quarter:.1f} 45.0L{half:.1f} 67.5L{WIDTH}.0 {HEIGHT}.0"
    # From the whole text along the upper ends and back along the lower ones.
    assert charts.band == (
        f"M0.0 0.0L{quarter:.1f} 0.0L{half:.1f} 22.5L{half:.1f} 45.0L{quarter:.1f} 22.5Z"
    )


def test_partial_texts_are_scaled_and_few_removed_words_differ_from_half(attribution):
    (charts,) = build_removal_charts(with_trust(attribution, REMOVAL))
    assert [dot.is_half for dot in charts.dots] == [False, True, False, True]
    assert (charts.dots[0].x, charts.dots[0].y) == (0, HEIGHT)
    assert (charts.dots[3].x, charts.dots[3].y) == (WIDTH, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"curve": None},
        {"curve": [1.0]},
        {"random_low": ["low"]},
        {"partial_texts": {}},
        {"curve": [1, 2, 3, float("nan")]},
    ],
)
def test_files_that_hold_other_values_have_no_charts(attribution, change):
    assert build_removal_charts(with_trust(attribution, REMOVAL | change)) == []
    assert build_removal_charts(attribution) == []


def test_the_page_folds_the_charts_under_why_this_grade(attribution):
    page = render_page([with_trust(attribution, REMOVAL, words=8)])
    start = page.index("Why this grade?")
    assert page.index("words deleted", start) < page.index("found", start)
    assert page.count('<circle class="half"') == 2
