"""Lists of explanations, evaluations and figures as a notebook shows them."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

import tokenlight
from tests.tiny import tiny_bert, tiny_tokenizer
from tests.unit.hand_made import sample
from tests.unit.reading_html import Reader
from tests.unit.test_plots_dataset import told
from tokenlight import Explainer
from tokenlight.data.attribution import Attributions
from tokenlight.plots.colours import hexadecimal, shade, step

TEXTS = [f"a good film {'very ' * number}" for number in range(12)]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def test_what_explain_gives_for_several_is_a_list_that_shows_itself(explainer, tmp_path):
    found = explainer.explain(TEXTS, "grads")
    assert isinstance(found, list)
    assert found == list(found)
    source = found._repr_html_()
    assert source.count("<article>") == 10
    assert "and 2 more texts" in source
    assert "and" not in Reader(found[:3][0]._repr_html_()).texts.get("code", "")
    assert found.save(tmp_path / "all.json").exists()
    assert len(tokenlight.load(tmp_path / "all.json")) == 12
    assert explainer.explain(TEXTS[0], ["grads", "cat"])._repr_html_().count("<article>") == 1


def test_an_evaluation_shows_its_table_and_plots_its_curves(explainer):
    found = explainer.evaluate(explainer.explain(TEXTS[:3], ["grads", "random"]), "aopc")
    source = found._repr_html_()
    assert "3 texts are few: the intervals are rough" in source
    mean = found.by_method["grads"].summary["aopc"]["mean"]
    assert f"<td>{mean:z.3f} <small>" in source
    Reader(source)  # every tag is closed
    assert len(found.plot().axes) == 1


def test_a_text_is_drawn_with_the_colours_of_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    one = told("a good film <b>$x$</b>", [0.1, 0.5, -0.3, 0.2])
    figure = one.plot()
    (axes,) = figure.axes
    boxes = {text.get_text(): text.get_bbox_patch() for text in axes.texts}
    assert next(iter(boxes)) == "attcat → positive"
    for word, score in (("good", 0.5), ("film", -0.3), ("<b>$x$</b>", 0.2)):
        from matplotlib.colors import to_hex

        assert to_hex(boxes[word].get_facecolor()) == hexadecimal(shade(step(score, 0.5)))
    for ending, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        assert one.save(tmp_path / f"a{ending}").read_bytes().startswith(begins)


def test_no_line_of_a_drawn_text_is_wider_than_the_sheet():
    pytest.importorskip("matplotlib")
    (axes,) = sample("word " * 200).plot().axes
    ends = [text.get_position()[0] + len(text.get_text()) for text in axes.texts]
    assert max(ends) <= 84
    assert len({text.get_position()[1] for text in axes.texts}) == 1 + -(-200 // 17)


def test_show_draws_html_in_a_notebook_and_prints_elsewhere(monkeypatch, capsys):
    drawn = []
    cell = ModuleType("IPython.display")
    cell.HTML = lambda source: source
    cell.display = drawn.append
    kernel = ModuleType("IPython")
    kernel.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    one = sample()
    one.show()
    Attributions([one, replace(one, method="grads")]).show()
    assert drawn[0] == one._repr_html_()
    assert len(drawn) == 2
    assert capsys.readouterr().out == ""
    kernel.get_ipython = lambda: None  # IPython is imported, but this is no notebook
    one.show()
    assert "charming" in capsys.readouterr().out
