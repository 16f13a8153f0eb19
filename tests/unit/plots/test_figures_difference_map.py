"""The figure of differences says how its methods were made comparable."""

from __future__ import annotations

from tests.helpers.handmade_attributions import make_sample, with_method
from tokenlight.plots.figures import draw_difference_map


def test_the_figure_states_how_the_scores_were_scaled():
    attribution = make_sample()
    (axes,) = draw_difference_map(
        ("attcat", attribution), {"gae": with_method(attribution, "gae", 1)}
    ).axes
    assert axes.get_xlabel() == "each scaled to Σ|score| = 1 over all tokens"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["attcat", "attcat − gae"]
