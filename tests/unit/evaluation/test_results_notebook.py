"""An evaluation as a notebook shows it."""

from __future__ import annotations

import pytest

from tests.helpers.html_reader import PageReader
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer

TEXTS = [f"a good film {'very ' * number}" for number in range(12)]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def test_an_evaluation_shows_its_table_and_plots_its_curves(explainer):
    evaluation = explainer.evaluate(explainer.explain(TEXTS[:3], ["grads", "random"]), "aopc")
    source = evaluation._repr_html_()
    assert "Only 3 texts: the intervals are rough" in source
    mean = evaluation.by_method["grads"].summary["aopc"]["mean"]
    assert f"<td>{mean:z.3f} <small>" in source
    PageReader(source)  # every tag is closed
    assert len(evaluation.plot().axes) == 1
