"""Figures are drawn without global state, and their sum row is the sum."""

import io
import sys

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import make_attribution, make_row, make_sample, with_method
from tokenlight.errors import BadInput
from tokenlight.plots.figures import draw_heat_map, draw_token_bars
from tokenlight.plots.score_tables import build_layer_table


def test_the_heat_map_shows_layers_and_their_sum_divided_by_the_norm():
    attribution = make_sample(layers=3)
    image = draw_heat_map(attribution).axes[0].images[0].get_array()
    terms = np.array(attribution.layers[:, 1:-1])
    table = np.vstack([terms, terms.sum(axis=0)])
    np.testing.assert_allclose(image, table / np.linalg.norm(table), rtol=1e-12)
    np.testing.assert_allclose(image[-1], image[:-1].sum(axis=0), rtol=1e-9)


def test_the_papers_heat_map_has_the_product_of_the_layers_before_their_sum():
    attribution = make_sample(layers=3)
    figure = draw_heat_map(attribution, rollout=True)
    image = figure.axes[0].images[0].get_array()
    terms = np.array(attribution.layers[:, 1:-1])
    table = np.vstack([terms, terms.prod(axis=0), terms.sum(axis=0)])
    np.testing.assert_allclose(image, table / np.linalg.norm(table), rtol=1e-12)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["L0", "L1", "L2", "Rollout", "Sum"]


def test_product_and_sum_have_separate_colour_scales():
    row = make_row(["a b"], [[(0, 1), (2, 3)]], special=False)
    attribution = make_attribution(row, [5, 2], layers=np.array([[2.0, -1], [3, 3]]))
    assert build_layer_table(attribution, rollout=True).scales == (3, 3, 6, 5)
    assert build_layer_table(attribution).scales == (3, 3, 5)


def test_the_sum_row_of_the_table_equals_the_scores():
    attribution = make_sample(layers=5)
    table = build_layer_table(attribution)
    assert table.rows == ("L0", "L1", "L2", "L3", "L4", "Sum")
    np.testing.assert_allclose(table.values[-1], attribution.scores, rtol=1e-12)


def test_the_strongest_columns_are_kept_in_text_order():
    row = make_row(["a b c d"], [[(0, 1), (2, 3), (4, 5), (6, 7)]], special=False)
    attribution = make_attribution(row, [1, 5, 0, -3], layers=np.array([[1.0, 5, 0, -3]]))
    table = build_layer_table(attribution).select_strongest(2)
    assert table.columns == ("b", "d")
    assert table.num_omitted == 2


def test_a_method_without_layers_is_refused():
    with expect_error(BadInput, "no-layer-terms", mentions="rollout"):
        draw_heat_map(with_method(make_sample(), "rollout", 1))


def test_bars_show_every_attribution_signed():
    attribution = make_sample()
    figure = draw_token_bars([attribution, with_method(attribution, "rollout", 1)], k=3)
    assert [axes.get_title() for axes in figure.axes] == ["attcat → positive", "rollout → positive"]
    widths = [patch.get_width() for patch in figure.axes[0].patches]
    assert widths == pytest.approx([score for _, score in attribution.top(3)][::-1])


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_hostile_tokens_are_text_not_formulas(kind):
    text = "$x_1$ \\frac{a} <script> {{7*7}} \x1b[31m"
    attribution = make_sample(text, target="$y^2$ <b>")
    for figure in (draw_heat_map(attribution), draw_token_bars(attribution)):
        stream = io.BytesIO()
        figure.savefig(stream, format=kind)
        assert stream.tell() > 1000
        assert b"<script>" not in stream.getvalue()


def test_no_window_and_no_global_figure_is_made():
    draw_heat_map(make_sample())
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []
