"""The report of many texts in a browser: drawn without any request, filtered, sorted, opened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.test_plots_dataset import told
from tokenlight.plots.colours import step, step_name
from tokenlight.plots.dataset import Report

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def opened(chromium, tmp_path):
    """The page of a report of four texts, opened as a file, and what it complained of."""
    report = Report("reviews.csv")
    texts = [
        told("a good film", [0.1, 0.5, -0.2], label=1, place="row 1 of reviews.csv"),
        told("a dull film", [0.1, -0.5, 0.2], label=0, place="row 2 of reviews.csv"),
        told(f"the goodness of 😀 {HOSTILE}", label=HOSTILE, columns={"id": HOSTILE}),
        told("no label here"),
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


def seen(page) -> list[str]:
    return page.locator("td.said button:visible").all_text_contents()


def count(page) -> str:
    return page.locator("output").text_content()


def test_wrong_predictions_low_trust_and_a_word_are_filters_that_combine(opened):
    assert len(seen(opened)) == 4
    assert count(opened) == "4 of 4 texts"
    opened.check("[name=wrong]")
    assert [text[:6] for text in seen(opened)] == ["a dull", "the go"]
    opened.fill("[name=word]", "GOOD")  # the beginning of a word, in any case
    assert [text[:6] for text in seen(opened)] == ["the go"]
    opened.uncheck("[name=wrong]")
    assert [text[:6] for text in seen(opened)] == ["a good", "the go"]
    opened.fill("[name=word]", "ood")  # which no word begins with
    assert seen(opened) == []
    assert count(opened) == "0 of 4 texts"
    opened.fill("[name=word]", "")
    opened.check("[name=low]")
    assert [text[:6] for text in seen(opened)] == ["a dull", "no lab"]


def test_a_text_opens_with_the_colours_of_the_page_and_closes_again(opened):
    first = opened.locator("td.said button").first
    first.click()
    assert first.get_attribute("aria-expanded") == "true"
    line = opened.locator(".opened .line")
    assert line.text_content() == "[CLS]a good film[SEP]"
    looks = line.locator(".token").evaluate_all("all => all.map(one => one.className)")
    assert looks == [f"token {step_name(step(score, 0.5))}" for score in (0.1, 0.5, -0.2)]
    assert line.locator(".token").nth(2).get_attribute("title") == "film  −0.2"
    first.click()
    assert opened.locator(".opened").count() == 0


def test_a_hostile_text_is_shown_letter_by_letter(opened):
    opened.locator("td.said button").nth(2).click()
    assert (
        opened.locator(".opened .line").text_content() == f"[CLS]the goodness of 😀 {HOSTILE}[SEP]"
    )
    assert opened.locator("img").count() == 0


def test_a_link_opens_its_text_and_a_click_on_a_head_sorts(opened):
    opened.evaluate("location.hash = '#text-2'")
    opened.locator(".opened").wait_for()
    assert "dull" in opened.locator(".opened .line").text_content()
    opened.get_by_role("button", name="row", exact=True).click()
    opened.get_by_role("button", name="row", exact=True).click()
    numbers = opened.locator("tbody tr:not(.opened) td:first-child").all_text_contents()
    assert numbers == ["4", "3", "2", "1"]


def test_a_click_on_a_word_of_a_class_shows_its_texts(opened):
    opened.locator("[data-word=good]").click()
    assert [text[:6] for text in seen(opened)] == ["a good", "the go"]
