"""The report of many texts: what its pages hold, that no text can break out of them, and how they split."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import log

import pytest

import tokenlight
from tests.unit.hand_made import attribution_of, row_of
from tests.unit.reading_html import Reader
from tokenlight.plots import dataset
from tokenlight.plots.dataset import Report, true_label
from tokenlight.plots.html import page


def told(text: str, scores=None, **extras):
    """An explanation of the words of a text by a model that says positive."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    row = row_of([text], [spans])
    values = scores or [0.5 / (1 + place) for place in range(len(spans))]
    return replace(attribution_of(row, [0.1, *values, -0.2]), extras=extras)


def held(content: str) -> list[dict]:
    """What the page hands to its script."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', content, re.DOTALL
    )
    assert found is not None
    return json.loads(found[1])


def only_page(report: Report) -> str:
    ((_, content),) = report.pages("report.html")
    return content


def redrawn(entry: dict) -> str:
    """The text of the first explanation, put together again from its marks."""
    shape = entry["lines"][entry["explained"][0]["lines"][0][0]]
    return "".join(shape["texts"])


def test_a_text_is_kept_with_its_row_labels_chance_columns_and_scores():
    report = Report("reviews.csv")
    place = "row 7 of reviews.csv"
    report.add([told("good  film", [0.5, -0.25], place=place, label=0, columns={"id": "a<7"})])
    (entry,) = held(only_page(report))
    assert entry["number"] == 7
    assert (entry["label"], entry["predicted"], entry["chance"]) == ("negative", "positive", 0.982)
    assert entry["columns"] == {"id": "a<7"}
    (explained,) = entry["explained"]
    assert explained["scale"] == 0.5
    assert explained["lines"] == [[0, ".1,.5,,-.25,-.2"]]
    assert entry["lines"][0]["texts"] == ["[CLS]", "good", "  ", "film", "[SEP]"]
    assert entry["lines"][0]["looks"] == {"0": "chip", "4": "chip"}
    assert redrawn(entry) == "[CLS]good  film[SEP]"


@pytest.mark.parametrize(
    "hostile",
    [
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "a\u2028b & <img src=x onerror=alert(1)>",
        '"}]; alert(1); //',
        "{{ 7 * 7 }} {% raw %}",
    ],
)
def test_no_text_label_or_column_leaves_the_place_it_was_given(hostile):
    report = Report(hostile)
    report.add([told(hostile, label=hostile, columns={hostile: hostile}, place=hostile)])
    content = only_page(report)
    (entry,) = held(content)
    assert redrawn(entry) == f"[CLS]{hostile}[SEP]"
    scripts = [values for tag, values in Reader(content).tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not [tag for tag, _ in Reader(content).tags if tag == "img"]
    (policy,) = [values["content"] for _, values in Reader(content).tags if "http-equiv" in values]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_what_is_too_much_for_one_page_goes_on_in_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "MOST_TEXTS", 3)
    report = Report("x")
    for number in range(7):
        report.add([told(f"text number {number}")])
    written = report.write(tmp_path / "all.html")
    assert [one.name for one in written] == ["all.html", "all-2.html", "all-3.html"]
    found = [held(one.read_text(encoding="utf-8")) for one in written]
    assert [[entry["number"] for entry in part] for part in found] == [[1, 2, 3], [4, 5, 6], [7]]
    second = written[1].read_text(encoding="utf-8")
    assert 'href="all.html"' in second
    assert 'href="all-3.html"' in second
    assert "Texts 4 to 6, file 2 of 3" in second


def test_a_page_ends_where_its_bytes_would_be_too_many(monkeypatch):
    monkeypatch.setattr(dataset, "MOST_BYTES", 2500)
    report = Report("x")
    for _ in range(10):
        report.add([told("ä" * 400)])
    pages = dict(report.pages("x.html"))
    assert len(pages) == 5
    assert all(len(held(content)) == 2 for content in pages.values())


def test_words_of_a_class_weigh_their_shares_and_rare_words_weigh_more():
    report = Report("x")
    report.add([told("the good", [1.0, 3.0]), told("the fine the", [1.0, 2.0, 1.0])])
    ((method, label, words),) = report.top_words()
    assert (method, label) == ("attcat", "positive")
    # "the" stands in both texts, so ln(2 / 2) = 0 leaves it out.
    assert [word for word, _, _ in words] == ["good", "fine"]
    assert words[0][1] == pytest.approx(0.75 * log(2))
    assert words[1] == ("fine", pytest.approx(0.5 * log(2)), 1)


def test_a_true_label_is_named_as_the_model_names_it():
    assert true_label(told("x", label=1)) == "positive"
    assert true_label(told("x", label="POSITIVE")) == "positive"
    assert true_label(told("x", label=7)) == "7"
    assert true_label(told("x", label="mixed")) == "mixed"
    assert true_label(told("x")) is None


def test_right_predictions_are_counted_among_labelled_texts_only():
    report = Report("x")
    report.add([told("a", label=1), told("b", label="negative"), told("c")])
    assert "1 of 2 (50.0 %)" in only_page(report)


def test_saving_a_list_of_texts_as_html_is_a_report_and_one_text_stays_a_page(tmp_path):
    several = [told("one text"), told("another text")]
    place = tokenlight.save(several, tmp_path / "all.html")
    assert len(held(place.read_text(encoding="utf-8"))) == 2
    one = [several[0], replace(several[0], method="grads")]
    place = tokenlight.save(one, tmp_path / "one.html")
    assert place.read_text(encoding="utf-8") == page(one)


def test_differences_from_a_reference_stand_beside_the_methods():
    one = told("good film")
    report = Report("x", reference="grads")
    report.add([one, replace(one, method="grads", scores=-one.scores)])
    (entry,) = held(only_page(report))
    kinds = [(made["name"], made.get("kind")) for made in entry["explained"]]
    assert kinds == [("attcat", None), ("grads", None), ("attcat − grads", "difference")]
