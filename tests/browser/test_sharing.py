"""Links that bring everything back, and files to take away."""

from __future__ import annotations

import io
import json
from xml.etree import ElementTree

import pytest
from matplotlib import image

import tokenlight
from tests.helpers.page_server import TEXT


def download_file(visit, button, tmp_path):
    with visit.page.expect_download() as waiting:
        visit.page.click(button)
    path = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_a_link_opens_the_same_view_for_another_visitor(visitor):
    first = visitor().open(text=TEXT, method=["attcat", "gae"])
    first.page.click(".bar[data-label=negative]")
    first.page.locator("#why h2 b:text-is('negative')").wait_for()
    first.page.locator("#why").get_by_role("button", name="Words").click()
    first.page.locator("#why [data-method=gae] .token:text-is('dull')").click()
    first.page.click("#tab-game")
    first.page.locator("#game .board-row").first.wait_for()
    first.page.locator("#slider").focus()
    first.page.keyboard.press("ArrowRight")
    first.page.wait_for_url("**step=1**")  # the link follows once the hand rests
    other = visitor()
    other.page.goto(first.page.url)
    other.page.locator("#game .board-row").first.wait_for()
    assert other.page.locator("#tab-game").get_attribute("aria-selected") == "true"
    assert other.page.locator(".count").text_content() == "1 of 14 tokens hidden"
    other.page.click("#tab-why")
    assert other.page.locator("#why h2 b").text_content() == "negative"
    assert other.page.locator("#why .token[aria-pressed=true]").all_text_contents() == ["dull"] * 2
    for method in ("attcat", "gae"):
        assert other.scores(method) == first.scores(method)


def test_the_back_button_restores_the_previous_text(visit):
    visit.open().explain("I do not like this movie.")
    visit.explain("A charming journey.")
    visit.page.go_back()
    visit.page.locator("#why .token:text-is('movie')").wait_for()
    assert visit.page.locator("#field-text").input_value() == "I do not like this movie."


def test_an_invalid_link_is_ignored(visit):
    visit.page.goto(
        f"{visit.address}/#text=Never+dull.&view=%00&tab=x&step=-1&pin=99&method=attcat"
    )
    visit.page.locator("#why .token").first.wait_for()
    assert visit.get_text() == "Never dull."


def test_the_link_can_be_copied(visitor):
    visit = visitor(permissions=["clipboard-read", "clipboard-write"]).open(text=TEXT)
    visit.page.click("#copy-link")
    visit.page.locator("#copy-link:text-is('Copied')").wait_for()
    assert visit.page.evaluate("navigator.clipboard.readText()") == visit.page.url


def test_exported_json_loads_in_the_library(visit, tmp_path, explainer):
    visit.open(text=TEXT, method=["attcat", "gae"])
    attributions = tokenlight.load(download_file(visit, "#download-json", tmp_path))
    actual = explainer.explain(TEXT, ["attcat", "gae"])
    assert [attribution.method for attribution in attributions] == ["attcat", "gae"]
    for expected, mine in zip(attributions, actual, strict=True):
        assert expected.scores == pytest.approx(mine.scores, rel=1e-4, abs=1e-6)


def test_an_export_waits_for_the_running_trust_test(visit, tmp_path):
    visit.open(text=TEXT, method=["attcat", "gae"])  # taken away before anything is tested
    attributions = tokenlight.load(download_file(visit, "#download-json", tmp_path))
    assert all("verdict" in attribution.extras["trust"] for attribution in attributions)
    assert visit.page.locator(".grade").count() == 2


def test_an_exported_page_loads_nothing_from_outside(visit, tmp_path, chromium):
    visit.open(text=TEXT)
    path = download_file(visit, "#download-html", tmp_path)
    assert b"http://" not in path.read_bytes()
    page = chromium.new_page()
    page.goto(path.as_uri())
    assert TEXT in page.locator(".line").first.text_content()
    page.close()


def test_pictures_hold_every_word_and_its_colour(visit, tmp_path):
    visit.open(text=TEXT)
    root = ElementTree.fromstring(download_file(visit, "#download-svg", tmp_path).read_bytes())
    name = "{http://www.w3.org/2000/svg}"
    words = {element.text.strip() for element in root.iter(f"{name}text")}
    assert {"The", "never", "dull", "attcat"} <= words
    fills = {element.get("fill") for element in root.iter(f"{name}rect")}
    assert "rgb(20, 110, 48)" in fills
    picture = download_file(visit, "#download-png", tmp_path).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = (image.imread(io.BytesIO(picture))[..., :3] * 255).round().astype(int)
    assert pixels.shape[1] > 1500
    is_strongest_word = abs(pixels - (20, 110, 48)).sum(axis=2) == 0
    assert is_strongest_word.sum() > 5_000  # of about 60 × 180 pixels
    assert (pixels == 255).all(axis=2).mean() > 0.5  # the paper


def test_a_saved_file_is_opened_here(visit, tmp_path, explainer):
    visit.open()
    path = explainer.explain("Never dull.", "attcat").save(tmp_path / "kept.json")
    visit.page.set_input_files("#open-file", path)
    visit.page.locator("#why .token").first.wait_for()
    assert visit.get_text() == "Never dull."
    assert "kept.json" in visit.page.locator("#status").text_content()


def test_a_file_that_is_not_an_explanation_is_refused(visit, tmp_path):
    visit.open()
    path = tmp_path / "odd.json"
    for content in ("no json", json.dumps({"format": 1}), "[]", "3"):
        path.write_text(content)
        visit.page.set_input_files("#open-file", path)
        visit.page.locator("#trouble:not([hidden])").wait_for()
        assert len(visit.page.locator("#trouble span").first.text_content()) > 20
        visit.page.locator("#trouble").get_by_role("button", name="Close").click()
    visit.expected = ("422",)
