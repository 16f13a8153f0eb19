"""The page of an evaluation: styled under its own policy, hostile names escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import re

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.plots.curves import page


def made() -> str:
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    found = explainer.explain(["the film is good", "a dull plot , not fun"], ["cat", "random"])
    measured = explainer.evaluate(found, ["aopc"], progress=False)
    return page(measured, title="<script>alert(1)</script>")


def test_the_policy_names_the_style_sheet_that_stands_in_the_page():
    text = made()
    (style,) = re.findall(r"<style>(.*?)</style>", text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert f"style-src 'sha256-{digest}'" in html.unescape(policy)


def test_a_hostile_title_is_escaped_and_nothing_comes_from_outside():
    text = made()
    assert "<script>" not in text
    assert not re.search(r"(src|href)=[\"']?https?:", text)
