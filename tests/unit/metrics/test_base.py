"""What all metrics share."""

from __future__ import annotations

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights


def test_informational_parts_have_no_direction():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    evaluation = explainer.evaluate([attribution], ["soft_sufficiency", "naopc"])
    directions = {key: summary["better"] for key, summary in evaluation.summary.items()}
    assert directions["soft_sufficiency"] == directions["naopc.aopc"] == "higher"
    assert {
        directions["soft_sufficiency.mean_keep_probability"],
        directions["naopc.lowest"],
        directions["naopc.highest"],
    } == {"neither"}
    assert "soft_sufficiency.mean_keep_probability  " in evaluation.format_table()
