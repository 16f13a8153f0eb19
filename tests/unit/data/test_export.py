"""Lists of explanations, evaluations and figures as a notebook shows them."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

import tokenlight
from tests.helpers.handmade_attributions import make_sample, make_word_attribution
from tests.helpers.html_reader import PageReader
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.data.attribution import AttributionList
from tokenlight.plots.colours import score_to_step, step_colour, to_hex

TEXTS = [f"a good film {'very ' * number}" for number in range(12)]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def test_explain_returns_a_list_that_shows_itself_for_several_texts(explainer, tmp_path):
    attributions = explainer.explain(TEXTS, "grads")
    assert isinstance(attributions, list)
    assert attributions == list(attributions)
    source = attributions._repr_html_()
    assert source.count("<article>") == 10
    assert "and 2 more texts" in source
    assert "and" not in PageReader(attributions[:3][0]._repr_html_()).texts.get("code", "")
    assert attributions.save(tmp_path / "all.json").exists()
    assert len(tokenlight.load(tmp_path / "all.json")) == 12
    assert explainer.explain(TEXTS[0], ["grads", "cat"])._repr_html_().count("<article>") == 1


def test_a_text_is_drawn_with_the_colours_of_the_page(tmp_path):
    colors = pytest.importorskip("matplotlib.colors")
    attribution = make_word_attribution("a good film <b>$x$</b>", [0.1, 0.5, -0.3, 0.2])
    figure = attribution.plot()
    (axes,) = figure.axes
    boxes = {text.get_text(): text.get_bbox_patch() for text in axes.texts}
    assert next(iter(boxes)) == "attcat → positive"
    for word, score in (("good", 0.5), ("film", -0.3), ("<b>$x$</b>", 0.2)):
        box_colour = colors.to_hex(boxes[word].get_facecolor())
        assert box_colour == to_hex(step_colour(score_to_step(score, 0.5)))
    for ending, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        assert attribution.save(tmp_path / f"a{ending}").read_bytes().startswith(begins)


def test_no_line_of_a_drawn_text_is_wider_than_the_sheet():
    pytest.importorskip("matplotlib")
    (axes,) = make_sample("word " * 200).plot().axes
    ends = [text.get_position()[0] + len(text.get_text()) for text in axes.texts]
    assert max(ends) <= 84
    assert len({text.get_position()[1] for text in axes.texts}) == 1 + -(-200 // 17)


def test_show_draws_html_in_a_notebook_and_prints_elsewhere(monkeypatch, capsys):
    displayed_html = []
    cell = ModuleType("IPython.display")
    cell.HTML = lambda source: source
    cell.display = displayed_html.append
    kernel = ModuleType("IPython")
    kernel.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    attribution = make_sample()
    attribution.show()
    AttributionList([attribution, replace(attribution, method="grads")]).show()
    assert displayed_html[0] == attribution._repr_html_()
    assert len(displayed_html) == 2
    assert capsys.readouterr().out == ""
    kernel.get_ipython = lambda: None  # IPython is imported, but this is no notebook
    attribution.show()
    assert "charming" in capsys.readouterr().out
