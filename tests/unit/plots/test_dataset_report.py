"""The report of many texts: what its pages hold, that no text can break out of them, and how they split."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

import tokenlight
from tests.helpers.handmade_attributions import make_word_attribution
from tests.helpers.html_reader import PageReader, read_report_entries
from tokenlight.data.true_label import find_true_label
from tokenlight.plots import dataset_report
from tokenlight.plots.dataset_report import DataSetReport
from tokenlight.plots.html import render_page


def render_only_page(report: DataSetReport) -> str:
    ((_, content),) = report.render_pages("report.html")
    return content


def join_marks(entry: dict) -> str:
    """The text of the first explanation, put together again from its marks."""
    shape = entry["lines"][entry["explained"][0]["lines"][0][0]]
    return "".join(shape["texts"])


def test_an_entry_holds_row_labels_probability_columns_and_scores():
    report = DataSetReport("reviews.csv")
    extras = {
        "location": "row 7 of reviews.csv",
        "row_number": 7,
        "label": 0,
        "columns": {"id": "a<7"},
    }
    report.add([make_word_attribution("good  film", [0.5, -0.25], **extras)])
    (entry,) = read_report_entries(render_only_page(report))
    assert entry["number"] == 7
    assert (entry["label"], entry["predicted"], entry["probability"]) == (
        "negative",
        "positive",
        0.982,
    )
    assert entry["columns"] == {"id": "a<7"}
    (explained,) = entry["explained"]
    assert explained["scale"] == 0.5
    assert explained["lines"] == [[0, ".1,.5,,-.25,-.2"]]
    assert entry["lines"][0]["texts"] == ["[CLS]", "good", "  ", "film", "[SEP]"]
    assert entry["lines"][0]["classes"] == {"0": "chip", "4": "chip"}
    assert join_marks(entry) == "[CLS]good  film[SEP]"


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
def test_no_text_label_or_column_breaks_out_of_the_page(hostile):
    report = DataSetReport(hostile)
    report.add(
        [make_word_attribution(hostile, label=hostile, columns={hostile: hostile}, place=hostile)]
    )
    content = render_only_page(report)
    (entry,) = read_report_entries(content)
    assert join_marks(entry) == f"[CLS]{hostile}[SEP]"
    scripts = [values for tag, values in PageReader(content).tags if tag == "script"]
    data_scripts = [{"type": "application/json", "id": name} for name in ("grades", "data")]
    assert scripts == [*data_scripts, {}]
    assert not [tag for tag, _ in PageReader(content).tags if tag == "img"]
    (policy,) = [
        values["content"] for _, values in PageReader(content).tags if "http-equiv" in values
    ]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_a_report_that_exceeds_one_page_continues_on_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_report, "MAX_TEXTS_PER_PAGE", 3)
    report = DataSetReport("x")
    for number in range(7):
        report.add([make_word_attribution(f"text number {number}")])
    paths = report.write(tmp_path / "all.html")
    assert [path.name for path in paths] == ["all.html", "all-2.html", "all-3.html"]
    entries = [read_report_entries(path.read_text(encoding="utf-8")) for path in paths]
    assert [[entry["number"] for entry in part] for part in entries] == [[1, 2, 3], [4, 5, 6], [7]]
    second = paths[1].read_text(encoding="utf-8")
    assert 'href="all.html"' in second
    assert 'href="all-3.html"' in second
    assert "Texts 4 to 6, file 2 of 3" in second


def test_a_page_ends_where_its_bytes_would_be_too_many(monkeypatch):
    monkeypatch.setattr(dataset_report, "MAX_BYTES_PER_PAGE", 2500)
    report = DataSetReport("x")
    for _ in range(10):
        report.add([make_word_attribution("ä" * 400)])
    pages = dict(report.render_pages("x.html"))
    assert len(pages) == 5
    assert all(len(read_report_entries(content)) == 2 for content in pages.values())


def test_words_of_a_class_weigh_their_shares_and_rare_words_weigh_more():
    report = DataSetReport("x")
    report.add(
        [
            make_word_attribution("the good", [1.0, 3.0]),
            make_word_attribution("the fine the", [1.0, 2.0, 1.0]),
        ]
    )
    ((method, label, words),) = report.compute_top_words()
    assert (method, label) == ("attcat", "positive")
    # "the" stands in both texts, so ln(2 / 2) = 0 leaves it out.
    assert [word for word, _, _ in words] == ["good", "fine"]
    assert words[0][1] == pytest.approx(0.75 * log(2))
    assert words[1] == ("fine", pytest.approx(0.5 * log(2)), 1)


def test_a_true_label_is_named_as_the_model_names_it():
    assert find_true_label(make_word_attribution("x", label=1)) == "positive"
    assert find_true_label(make_word_attribution("x", label="POSITIVE")) == "positive"
    assert find_true_label(make_word_attribution("x", label=7)) == "7"
    assert find_true_label(make_word_attribution("x", label="mixed")) == "mixed"
    assert find_true_label(make_word_attribution("x")) is None


def test_right_predictions_are_counted_among_labeled_texts_only():
    report = DataSetReport("x")
    report.add(
        [
            make_word_attribution("a", label=1),
            make_word_attribution("b", label="negative"),
            make_word_attribution("c"),
        ]
    )
    assert "1 of 2 (50.0 %)" in render_only_page(report)


def test_saving_a_list_of_texts_as_html_is_a_report_and_one_text_stays_a_page(tmp_path):
    several = [make_word_attribution("one text"), make_word_attribution("another text")]
    path = tokenlight.save(several, tmp_path / "all.html")
    assert len(read_report_entries(path.read_text(encoding="utf-8"))) == 2
    same_text = [several[0], replace(several[0], method="grads")]
    path = tokenlight.save(same_text, tmp_path / "one.html")
    assert path.read_text(encoding="utf-8") == render_page(same_text)


def test_differences_from_a_reference_are_shown_next_to_the_methods():
    attribution = make_word_attribution("good film")
    report = DataSetReport("x", reference="grads")
    report.add([attribution, replace(attribution, method="grads", scores=-attribution.scores)])
    (entry,) = read_report_entries(render_only_page(report))
    kinds = [(explanation["name"], explanation.get("kind")) for explanation in entry["explained"]]
    assert kinds == [("attcat", None), ("grads", None), ("attcat − grads", "difference")]
