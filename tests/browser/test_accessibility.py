"""Reached by everyone: keys alone, a screen reader, a phone, any colour vision, dark rooms."""

from __future__ import annotations

import pytest

from tests.helpers.page_server import TEXT

TABS = ("why", "game", "layers", "heads")


def test_every_view_is_reachable_by_keyboard(visit):
    page = visit.open().page
    page.keyboard.type("A dull film.")  # the field is focused and its example is typed over
    page.keyboard.press("Control+Enter")
    visit.shows("A dull film.")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator("#why .token:focus").count():
            break
    assert page.locator("#why .token:focus").text_content() == "A"
    page.keyboard.press("ArrowRight")
    assert page.locator("#why .token:focus").text_content() == "dull"
    assert not page.locator("#tip").is_hidden()
    page.keyboard.press("Enter")
    assert page.locator("#why .token[aria-pressed=true]").text_content() == "dull"
    assert page.locator("#why .token:focus").text_content() == "dull", (
        "drawing anew keeps the focus"
    )
    # In one step: an answer that arrives redraws the tokens between two.
    page.wait_for_function(
        "() => parseFloat(getComputedStyle(document.querySelector('#why .token:focus')).outlineWidth) >= 2"
    )
    page.keyboard.press("2")
    page.locator("#game .board-row").first.wait_for()
    page.locator("#results").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".count").text_content() == "1 of 4 tokens hidden"
    page.keyboard.press("r")
    page.locator(".count:text-is('0 of 4 tokens shown')").wait_for()
    page.keyboard.press("1")
    page.keyboard.press("c")
    page.locator("#why h2 b:text-is('positive')").wait_for()
    page.keyboard.press("?")
    assert page.locator("#help").evaluate("one => one.open")
    page.keyboard.press("Escape")
    assert not page.locator("#help").evaluate("one => one.open")


def test_every_control_and_view_has_a_name(visit):
    page = visit.open(text=TEXT, method=["attcat", "gae"]).page
    for tab in TABS:
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(100)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll(
                'button, select, input, textarea, [role=button], [role=img]')]
              .filter(one => one.checkVisibility())
              .filter(one => !(one.getAttribute('aria-label') || one.textContent.trim() || one.title
                || one.labels?.length && [...one.labels].some(label => label.textContent.trim())))
              .map(one => one.outerHTML)"""
        )
        assert nameless == []
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    assert page.locator("#trouble").get_attribute("role") == "alert"
    page.click("#tab-game")
    page.locator("#slider").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#slider").get_attribute("aria-valuetext") == "1 of 14 tokens hidden"
    assert "attcat" in page.locator("#game [aria-live=polite]").text_content()


def test_a_phone_shows_every_view_without_scrolling_sideways(visitor):
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    visit = visitor(**phone).open(text=TEXT, method=["attcat", "integrated_gradients"])
    for tab in TABS:
        visit.page.click(f"#tab-{tab}")
        visit.page.locator(f"#{tab} h2").first.wait_for()
        if tab == "game":
            visit.page.locator("#game .board-row").first.wait_for()
        width = visit.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, tab
    visit.page.click("#picker-open")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    visit.page.click("#picker-open")
    visit.page.click("#tab-why")
    visit.page.locator("#why .token:text-is('never')").first.tap()
    assert visit.page.locator("#why .token[aria-pressed=true]").all_text_contents() == ["never"] * 2


def test_colours_and_brightness_are_chosen_and_kept(visit):
    from playwright.sync_api import expect

    page = visit.open(text=TEXT).page
    painted = page.locator("#why .token:text-is('never')")

    def expect_colour(colour: str) -> None:
        expect(painted).to_have_css("background-color", colour)  # waits while colours fade

    expect_colour("rgb(20, 110, 48)")
    page.get_by_title("Blue and orange, safe for colour blindness").click()
    expect_colour("rgb(0, 84, 160)")
    page.get_by_role("button", name="Dark", exact=True).click()
    expect_colour("rgb(86, 160, 240)")
    page.reload()
    painted.wait_for()
    expect_colour("rgb(86, 160, 240)")


def test_the_system_colour_scheme_is_the_default(visitor):
    dark = visitor(color_scheme="dark").open()
    light = visitor(color_scheme="light").open()
    paper = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(paper) == "rgb(13, 16, 20)"
    assert light.page.evaluate(paper) == "rgb(243, 244, 246)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast_meets_wcag(visitor, scheme):
    """Contrast of at least 4.5 (WCAG AA) for every text that stands on plain paper or a token."""
    from tests.helpers.colour_contrast import compute_contrast_ratio

    visit = visitor(color_scheme=scheme).open(text=TEXT, method=["attcat", "gae"])
    visit.page.locator(".grade").first.wait_for()
    pairs = visit.page.evaluate(
        """() => {
          const numbers = colour => colour.match(/[\\d.]+/g)
            .map(part => Number(part) * (colour.startsWith('color(srgb') ? 255 : 1));
          const ground = node => {
            for (let one = node; one; one = one.parentElement) {
              const found = numbers(getComputedStyle(one).backgroundColor);
              if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
            }
          };
          return [...document.querySelectorAll('h2, h3, p, .token, button, label, .number, td, th')]
            .filter(one => one.checkVisibility() && one.textContent.trim() && !one.disabled)
            .map(one => [one.textContent.trim().slice(0, 40),
              numbers(getComputedStyle(one).color).slice(0, 3), ground(one)]);
        }"""
    )
    assert len(pairs) > 30
    poor = [
        (text, compute_contrast_ratio(tuple(map(int, ink)), tuple(map(int, paper))))
        for text, ink, paper in pairs
        if compute_contrast_ratio(tuple(map(int, ink)), tuple(map(int, paper))) < 4.5
    ]
    assert poor == []
