"""The page of an evaluation: styled under its own policy, hostile names escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import re

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.evaluation.report import draw_figure, render_evaluation_page, save_report


def measure(metric: str):
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    attributions = explainer.explain(
        ["the film is good", "a dull plot , not fun"], ["cat", "random"]
    )
    return explainer.evaluate(attributions, [metric], progress=False)


def render_hostile_page() -> str:
    return render_evaluation_page(measure("aopc"), title="<script>alert(1)</script>")


def test_a_metric_with_a_curve_names_its_axis(tmp_path):
    evaluation = measure("aopc")
    assert [axes.get_ylabel() for axes in draw_figure(evaluation).axes] == ["aopc"]
    assert "<h2>Curves</h2>" in render_evaluation_page(evaluation)
    save_report(evaluation, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"curves.png", "report.html"}


def test_without_any_curve_there_is_neither_heading_nor_picture(tmp_path):
    evaluation = measure("kendall")
    assert draw_figure(evaluation).axes == []
    source = render_evaluation_page(evaluation)
    assert "Curves" not in source
    assert "<img" not in source
    save_report(evaluation, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_policy_names_the_style_sheet_that_is_in_the_page():
    text = render_hostile_page()
    (style,) = re.findall(r"<style>(.*?)</style>", text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert f"style-src 'sha256-{digest}'" in html.unescape(policy)


def test_a_hostile_title_is_escaped_and_nothing_comes_from_outside():
    text = render_hostile_page()
    assert "<script>" not in text
    assert not re.search(r"(src|href)=[\"']?https?:", text)
