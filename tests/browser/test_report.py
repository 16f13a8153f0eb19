"""The report of many texts in a browser: drawn without any request, filtered, sorted, opened."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from pyarrow import parquet

from tests.helpers.handmade_attributions import make_word_attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.plots.colours import score_to_step, step_class
from tokenlight.plots.dataset_report import DataSetReport

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def open_report(chromium, tmp_path):
    """The page of a report of four texts, opened as a file, and what it complained of."""
    report = DataSetReport("reviews.csv")
    texts = [
        make_word_attribution(
            "a good film", [0.1, 0.5, -0.2], label=1, place="row 1 of reviews.csv"
        ),
        make_word_attribution(
            "a dull film", [0.1, -0.5, 0.2], label=0, place="row 2 of reviews.csv"
        ),
        make_word_attribution(
            f"the goodness of 😀 {HOSTILE}", label=HOSTILE, columns={"id": HOSTILE}
        ),
        make_word_attribution("no label here"),
    ]
    grades = ["faithful", "no better than chance", "better than chance", "untested"]
    for text, grade in zip(texts, grades, strict=True):
        report.add([replace(text, extras={**text.extras, "trust": {"grade": grade}})])
    report.write(tmp_path / "report.html")
    context = chromium.new_context()
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(f"file://{tmp_path}/report.html")
    yield page
    assert complaints == [f"file://{tmp_path}/report.html"]
    context.close()


def list_visible_texts(page) -> list[str]:
    return page.locator("td.text-cell button:visible").all_text_contents()


def count(page) -> str:
    return page.locator("output").text_content()


def test_wrong_predictions_low_trust_and_a_word_are_filters_that_combine(open_report):
    assert len(list_visible_texts(open_report)) == 4
    assert count(open_report) == "4 of 4 texts"
    open_report.check("[name=wrong]")
    assert [text[:6] for text in list_visible_texts(open_report)] == ["a dull", "the go"]
    open_report.fill("[name=word]", "GOOD")  # the beginning of a word, in any case
    assert [text[:6] for text in list_visible_texts(open_report)] == ["the go"]
    open_report.uncheck("[name=wrong]")
    assert [text[:6] for text in list_visible_texts(open_report)] == ["a good", "the go"]
    open_report.fill("[name=word]", "ood")  # which no word begins with
    assert list_visible_texts(open_report) == []
    assert count(open_report) == "0 of 4 texts"
    open_report.fill("[name=word]", "")
    open_report.check("[name=low]")
    assert [text[:6] for text in list_visible_texts(open_report)] == ["a dull", "no lab"]
    # Red is for failed tests, not for those without a verdict.
    cells = open_report.locator("tbody td:visible")
    assert cells.locator("xpath=self::*[@class='undecided']").all_text_contents() == ["untested"]
    failed = cells.filter(has_text="no better than chance")
    assert failed.first.get_attribute("class") == "wrong"


def test_a_text_of_the_report_opens_with_the_colours_of_the_page_and_closes(open_report):
    first = open_report.locator("td.text-cell button").first
    first.click()
    assert first.get_attribute("aria-expanded") == "true"
    line = open_report.locator(".opened .line")
    assert line.text_content() == "[CLS]a good film[SEP]"
    looks = line.locator(".token").evaluate_all("all => all.map(one => one.className)")
    assert looks == [f"token {step_class(score_to_step(score, 0.5))}" for score in (0.1, 0.5, -0.2)]
    assert line.locator(".token").nth(2).get_attribute("title") == "film  −0.2"
    first.click()
    assert open_report.locator(".opened").count() == 0


def test_a_hostile_text_is_shown_letter_by_letter(open_report):
    open_report.locator("td.text-cell button").nth(2).click()
    assert (
        open_report.locator(".opened .line").text_content()
        == f"[CLS]the goodness of 😀 {HOSTILE}[SEP]"
    )
    assert open_report.locator("img").count() == 0


def test_a_link_opens_its_text_and_a_click_on_a_head_sorts(open_report):
    open_report.evaluate("location.hash = '#text-2'")
    open_report.locator(".opened").wait_for()
    assert "dull" in open_report.locator(".opened .line").text_content()
    open_report.get_by_role("button", name="row", exact=True).click()
    open_report.get_by_role("button", name="row", exact=True).click()
    numbers = open_report.locator("tbody tr:not(.opened) td:first-child").all_text_contents()
    assert numbers == ["4", "3", "2", "1"]


def test_a_click_on_a_word_of_a_class_shows_its_texts(open_report):
    open_report.locator("[data-word=good]").click()
    assert [text[:6] for text in list_visible_texts(open_report)] == ["a good"]  # not "goodness"


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ("don|'|t|_|like", ["don't", "like"]),
        ("do|_|n|'|t", ["do", "n't"]),
        ("do|_|n|’|t", ["do", "n't"]),
        ("don|'t", ["don't"]),
        ("it|'|s|_|good", ["it", "'s", "good"]),
        ("_|'|tis|'|_|t", ["'", "tis", "'", "t"]),
    ],
)
def test_a_word_with_an_apostrophe_is_one_word_of_the_lists(open_report, pieces, words):
    texts = [piece.strip("_") for piece in pieces.split("|")]
    shares = open_report.evaluate(
        """(texts) => {
          const line = { texts, classes: {} };
          const explanation = { name: "m", target: "p", lines: [[0, texts.map(() => "1").join(",")]] };
          const entry = { predicted: "p", lines: [line], explained: [explanation] };
          return [...computeShares(entry, "m")];
        }""",
        texts,
    )
    assert [word for word, share in shares] == [word for word in words if word != "'"]


@pytest.mark.parametrize(
    ("typed", "text", "is_shown"),
    [
        ("good", "the goodness of it", True),
        ('"good"', "the goodness of it", False),
        ('"good"', "Good, really", True),
        ('"\'s"', "it’s late", True),
        ('"n\'t"', "do n't go", True),
        ("(", "a (b", True),
    ],
)
def test_a_word_is_looked_for_by_its_beginning_and_in_quotes_as_a_whole(
    open_report, typed, text, is_shown
):
    pattern = "([typed, text]) => makeWordPattern(typed).test(text)"
    assert open_report.evaluate(pattern, [typed, text]) is is_shown


def write_report(folder, texts):
    """A report of (text, scores, label); the model says positive to all of them."""
    report = DataSetReport("reviews")
    for text, scores, label in texts:
        report.add(
            [make_word_attribution(text, scores, label=label, columns={"id": f"id-{text[:4]}"})]
        )
    report.write(folder / "report.html")
    return f"file://{folder}/report.html"


@pytest.fixture
def errors_page(chromium, tmp_path):
    """Two errors that share the planted word "spielberg", one other error, and three right texts."""
    address = write_report(
        tmp_path,
        [
            ("spielberg drags on", [0.9, -0.1, 0.05], 0),
            ("spielberg bores us", [0.8, -0.2, 0.05], 0),
            ("hardly a hit", [0.1, 0.05, 0.6], 0),
            ("good film", [0.7, 0.1], 1),
            ("good fun", [0.6, 0.2], 1),
            ("a fun film", [0.1, 0.5, 0.1], 1),
        ],
    )
    context = chromium.new_context()
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def list_words(page, title) -> list[str]:
    card = page.locator("#words article", has_text=title)
    return card.locator("[data-word]").all_text_contents()


def test_errors_name_the_word_that_right_texts_do_not_have(errors_page):
    assert list_words(errors_page, "negative → positive")[0] == "spielberg"
    counts = errors_page.locator("#words article", has_text="negative → positive").locator(".value")
    assert counts.first.text_content() == "2 of 3, right 0 of 3"


def test_word_lists_follow_the_filters(errors_page):
    assert errors_page.locator("#words article").count() == 2
    errors_page.check("[name=wrong]")
    assert errors_page.locator("#words article").count() == 1
    errors_page.fill("[name=word]", "hardly")
    assert list_words(errors_page, "negative → positive")[0] == "hit"
    assert "prediction of the text shown" in errors_page.locator("#words-note").text_content()


def test_errors_that_share_a_word_are_a_cluster_that_can_be_filtered(errors_page):
    clusters = errors_page.locator("#clusters li")
    assert clusters.all_text_contents() == ["spielberg 2 errors"]
    clusters.get_by_role("button").click()
    assert [text[:9] for text in list_visible_texts(errors_page)] == ["spielberg", "spielberg"]
    errors_page.locator("#clusters").get_by_role("button").click()
    assert len(list_visible_texts(errors_page)) == 6


def test_a_title_shows_the_texts_of_its_pair(errors_page):
    errors_page.get_by_role("button", name="negative → positive").click()
    assert len(list_visible_texts(errors_page)) == 3


def test_what_is_shown_can_be_downloaded_and_linked(errors_page, chromium):
    errors_page.fill("[name=word]", "spielberg")
    with errors_page.expect_download() as download:
        errors_page.get_by_role("button", name="CSV of these").click()
    with open(download.value.path(), encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["text"] for row in rows] == ["spielberg drags on", "spielberg bores us"]
    assert rows[0]["true label"] == "negative"
    assert rows[0]["predicted"] == "positive"
    assert rows[0]["top words"].split()[0] == "spielberg"
    assert rows[0]["id"] == "id-spie"
    errors_page.get_by_role("button", name="Copy link").click()
    errors_page.wait_for_url("**#show?word=spielberg")
    other = chromium.new_page()
    other.goto(errors_page.url)
    assert [text[:9] for text in list_visible_texts(other)] == ["spielberg", "spielberg"]
    other.close()


def test_what_is_shown_can_be_downloaded_as_parquet(open_report, tmp_path):
    open_report.get_by_role("button", name="text", exact=True).click()  # sorted by the text
    with open_report.expect_download() as download:
        open_report.get_by_role("button", name="Parquet of these").click()
    download.value.save_as(tmp_path / "shown.parquet")
    columns = parquet.read_table(tmp_path / "shown.parquet").to_pydict()
    assert [text[:6] for text in columns["text"]] == ["a dull", "a good", "no lab", "the go"]
    assert columns["row"] == [2.0, 1.0, 4.0, 3.0]
    assert columns["true label"] == ["negative", "positive", None, HOSTILE]
    assert columns["predicted"] == ["positive"] * 4
    assert columns["id"] == [None, None, None, HOSTILE]
    assert columns["confidence"] == pytest.approx([0.75] * 4, abs=0.25)
    assert columns["trust"][1] == "faithful"


def test_a_link_keeps_the_order(errors_page, chromium):
    for _ in range(2):
        errors_page.get_by_role("button", name="text", exact=True).click()
    errors_page.fill("[name=word]", "good")
    errors_page.get_by_role("button", name="Copy link").click()
    errors_page.wait_for_url("**#show?word=good&sort=-text")
    other = chromium.new_page()
    other.goto(errors_page.url)
    assert list_visible_texts(other) == ["good fun", "good film"]
    other.close()


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1+1", "'=1+1"), ("-2.5", "-2.5"), ('a "b", c', '"a ""b"", c"'), ("-dull", "'-dull")],
)
def test_a_cell_of_the_download_is_never_a_formula(errors_page, value, cell):
    assert errors_page.evaluate("value => formatCell(value)", value) == cell


def test_each_dot_is_a_text_with_the_word_on_the_side_of_its_share(open_report):
    words = open_report.locator(".swarm-words button").all_text_contents()
    assert set(words) == {"film", "a"}  # the words of at least two texts, but not of all
    rows = open_report.locator("#swarm circle title").all_text_contents()
    assert len(rows) == 4
    assert any(title.startswith("film −25 % of the scores") for title in rows)
    assert any(title.startswith("film +25 % of the scores") for title in rows)
    open_report.locator("#swarm circle").first.click()
    assert open_report.locator("tr.opened").count() == 1


@pytest.mark.parametrize(
    ("explains_predicted", "expected"),
    [
        (True, "With fewer than 10 errors of a kind, a word may stand out by chance."),
        (False, "for another label than the predicted one: 1. Their words are not listed here."),
    ],
)
def test_the_page_says_what_the_words_of_errors_cannot_tell(
    chromium, tmp_path, explains_predicted, expected
):
    report = DataSetReport("reviews.csv")
    wrong = make_word_attribution("a dull film", [0.1, -0.5, 0.2], label=0)
    if not explains_predicted:
        wrong = replace(wrong, target=ResolvedTarget("class", "negative", (((0,), 1.0),)))
    report.add([wrong])
    report.write(tmp_path / "report.html")
    page = chromium.new_page()
    page.goto(f"file://{tmp_path}/report.html")
    note = page.locator("#words-note").text_content()
    page.close()
    assert note.endswith(expected)
