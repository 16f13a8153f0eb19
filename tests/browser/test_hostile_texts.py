"""Texts that would rather be a program: they are shown as they are, and do nothing."""

from __future__ import annotations

TEXTS = [
    "<img src=x onerror=alert(1)> is a bad film",
    "good</script><script>alert(1)</script> film",
    "{{7*7}} ${alert(1)} <b>bold</b> &lt;i&gt;",
    '" onmouseover="alert(1)" \'><svg/onload=alert(1)>',
    "הסרט הזה נפלא but the ending is dull",
    "👩‍👩‍👧‍👦 loved it 🎬, é and é",
    "100% &text=other#hash?x=1+1",
]


def test_hostile_texts_are_shown_as_they_are_in_every_view(visit):
    visit.open()
    for text in TEXTS:
        visit.explain(text)
        visit.page.click("#tab-why")
        visit.shows(text)
        visit.page.locator("#why .token").first.click()
        visit.page.click("#tab-layers")
        visit.page.locator(".heat").wait_for()
        assert visit.page.locator("main img, main script, main b:text-is('bold')").count() == 0


def test_a_link_and_the_game_carry_hostile_text_unharmed(visit):
    text = TEXTS[0] + TEXTS[-1]
    visit.open(text=text, tab="game")
    visit.page.locator("#game .board-row").first.wait_for()
    line = "".join(visit.page.locator("#game [data-method=attcat] .line").all_text_contents())
    assert line == text
    visit.page.reload()
    visit.page.locator("#why .token").first.wait_for(state="attached")
    assert visit.page.locator("#field-text").input_value() == text
    assert visit.get_text() == text


def test_a_direction_override_is_made_visible(visit):
    visit.open().explain("good \u202efilm\u202c end")
    assert visit.get_text() == "good ⟨RLO⟩film⟨PDF⟩ end"


def test_right_to_left_text_runs_right_to_left(visit):
    visit.open().explain("הסרט הזה נפלא")
    line = visit.page.locator("#why .line").first
    assert line.evaluate("one => getComputedStyle(one).direction") == "rtl"


def test_five_thousand_characters_are_refused_then_cut_on_demand(visit):
    sentence = "This film is neither good nor bad but long. "
    text = (sentence * 120)[:5000]
    visit.open().page.fill("#field-text", text)
    visit.page.click("#explain")
    trouble = visit.page.locator("#trouble:not([hidden])")
    trouble.wait_for()
    assert "512" in trouble.text_content()
    trouble.get_by_role("button", name="Explain the part it can read").click()
    visit.page.locator("#why .cut").wait_for()
    assert visit.get_text() == text
    assert "were not read" in visit.page.locator("#why .warning").text_content()
    assert visit.page.locator("#why .token").count() > 400
    visit.expected = ("422",)


def test_an_empty_text_sends_no_request(visit):
    visit.open().page.fill("#field-text", "   ")
    requests_before = visit.list_api_requests()
    visit.page.click("#explain")
    visit.page.locator("#trouble:not([hidden])").wait_for()
    assert visit.list_api_requests() == requests_before
