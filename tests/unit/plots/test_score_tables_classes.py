"""Class by class: several classes of one text on one scale, in page and terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.helpers.handmade_attributions import (
    make_attribution,
    make_row,
    make_sample,
    split_words,
    with_method,
)
from tests.helpers.html_reader import PageReader
from tests.helpers.terminal import render_terminal
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Contrast, Explainer
from tokenlight.data.target import ResolvedTarget
from tokenlight.plots.html import render_page
from tokenlight.plots.scene import build_scenes
from tokenlight.plots.score_tables import build_class_table
from tokenlight.plots.terminal import show

TEXT = "never a dull film"
ROW = make_row([TEXT], [split_words(TEXT)])
FIRST = make_attribution(ROW, [9.0, 1.0, 0.0, -4.0, 2.0, 9.0], target="negative")
SECOND = replace(
    FIRST,
    scores=np.array([0.0, -1.0, 0.5, 2.0, 0.0, 0.0]),
    target=ResolvedTarget("class", "positive", (((1,), 1.0),)),
)


def test_classes_of_one_method_are_in_one_table_with_one_scale():
    [group] = build_scenes([FIRST, SECOND], ("tokens",))[0].class_groups
    [(_, table)] = group.tables
    assert table.rows == ("negative", "positive")
    np.testing.assert_array_equal(table.values, [FIRST.scores, SECOND.scores])
    assert table.scales == (4.0, 4.0)  # of the text's own tokens: a special one would make it pale


def test_one_class_makes_no_table():
    assert build_scenes([FIRST])[0].class_groups == []
    assert build_scenes([FIRST, with_method(FIRST, "gae", 1)])[0].class_groups == []
    assert "Class by class" not in render_page(FIRST)


def test_a_narrow_table_keeps_the_tokens_that_are_strong_for_any_class():
    table = build_class_table([FIRST, SECOND]).drop_special().select_strongest(2)
    assert table.columns == ("dull", "film")
    assert table.num_omitted == 2


def test_the_page_has_a_highlighted_row_a_class_and_a_table_of_numbers():
    source = render_page([FIRST, SECOND])
    reader = PageReader(source)
    assert [line.text for line in reader.lines] == [TEXT, TEXT]  # each class once
    table = source[source.index('<table class="heat">') : source.index("</table>")]
    assert re.findall(r'<th scope="row" dir="auto">(\w+)</th>', table) == ["negative", "positive"]
    cells = re.findall(r'<td class="([^"]*)" title="dull  (\w+)  ([^"]+)"', table)
    assert cells == [("a12", "negative", "−4"), ("f6", "positive", "+2")]
    marks = {m[2]: m[0] for m in reader.lines[1].marks}
    assert marks["dull"] == "token f6"  # half of the strongest of both classes


def test_the_terminal_has_tokens_down_and_classes_across():
    text = render_terminal([FIRST, SECOND])
    lines = [line.split() for line in text.splitlines()]
    assert ["negative", "positive"] in lines
    assert ["dull", "-4", "+2"] in lines
    assert ["never", "+1", "-1"] in lines


def test_several_methods_have_separate_tables_and_scales():
    more = [with_method(FIRST, "gae", 1), with_method(SECOND, "gae", 2)]
    groups = build_scenes([FIRST, SECOND, *more])[0].class_groups
    assert [group.methods[0].attribution.method for group in groups] == ["attcat", "gae"]
    scales = [group.tables[0][1].scales for group in groups]
    assert scales[0] != scales[1]
    source = render_page([FIRST, SECOND, *more])
    assert source.count("Class by class") == 2
    PageReader(source)


@pytest.mark.parametrize("inputs", ["a charming film", ("a good film", "a bad plot")])
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_every_kind_of_classifier_is_shown_class_by_class(inputs, problem):
    explainer = Explainer(tiny_bert(problem_type=problem), tiny_tokenizer())
    attributions = explainer.explain(inputs, "attcat", target="all")
    assert [attribution.target.name for attribution in attributions] == [
        "negative",
        "neutral",
        "positive",
    ]
    chances = sum(attributions[0].prediction.probabilities)
    assert (chances == pytest.approx(1)) == (problem.startswith("single"))
    assert render_page(attributions).count("Class by class") == 1
    assert "class by class  attcat" in render_terminal(attributions)
    merged = io.StringIO()
    show(attributions, words=True, console=Console(file=merged, width=100, color_system=None))
    assert ("charming" in merged.getvalue()) == isinstance(inputs, str)


def test_a_contrast_may_start_from_what_is_predicted():
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    predicted = explainer.explain("good film").prediction.index
    other = (predicted + 1) % 3
    contrast = explainer.explain("good film", "cat", Contrast("predicted", other))
    same = explainer.explain("good film", "cat", Contrast(predicted, other))
    np.testing.assert_array_equal(contrast.scores, same.scores)
    assert contrast.target == same.target


def test_labels_and_tokens_are_escaped():
    evil = replace(FIRST, target=ResolvedTarget("class", "<i>bad</i>", (((0,), 1.0),)))
    source = render_page([evil, SECOND])
    assert "<i>bad" not in source
    assert make_sample().title  # the hand-made ones stay as they are
