"""Error bars on the page, and answers that sharpen while a reader looks."""

from __future__ import annotations

from tests.helpers.page_server import TEXT

SAMPLED = "subset_relevance"


def read_uncertain(visit, method):
    """The tokens of a row that are hatched."""
    row = visit.page.locator(f"#why [data-method='{method}']")
    return row.locator(".token.uncertain").all_text_contents()


def test_tokens_that_could_be_zero_are_hatched_as_in_the_library(visit, explainer):
    visit.open(method=SAMPLED, text=TEXT, view="tokens")
    attribution = explainer.explain(TEXT, SAMPLED)
    is_regular = [not special for special in attribution.row.special_tokens_mask]
    pairs = zip(attribution.row.spans, attribution.uncertain_mask, is_regular, strict=True)
    expected = [TEXT[slice(*span)] for span, uncertain, regular in pairs if uncertain and regular]
    assert expected
    assert [token.strip() for token in read_uncertain(visit, SAMPLED)] == expected
    line = visit.page.locator("#why .errors").text_content()
    assert line == (
        f"± one standard error over 8 partial texts; hatched: could be 0 ({len(expected)} of "
        f"{sum(is_regular)})"
    )
    image = visit.page.locator(".token.uncertain").first.evaluate(
        "token => getComputedStyle(token).backgroundImage"
    )
    assert image.startswith("repeating-linear-gradient")


def test_a_tooltip_and_a_pinned_token_name_the_standard_error(visit):
    visit.open(method=SAMPLED, text=TEXT, view="tokens")
    token = visit.page.locator("#why .token").first
    token.hover()
    assert " ± " in visit.page.locator("#tip .strong").text_content()
    token.click()
    assert " ± " in visit.page.locator(".pinned td.number").first.text_content()


def test_a_method_without_samples_has_no_error_bars(visit):
    visit.open(text=TEXT)
    assert not read_uncertain(visit, "attcat")
    assert visit.page.locator("#why .errors").count() == 0


def test_the_answer_sharpens_while_a_reader_looks(visit):
    visit.open(method=None, text=TEXT)
    heading = visit.page.locator("#why .row-label h3")
    first = heading.text_content()
    assert "subset_relevance" not in first
    visit.page.get_by_label("sharper while you look").check()
    heading.get_by_text("subset_relevance(num_samples=64)").wait_for()
    assert "sharper=1" in visit.page.url
    # The form still names the method that was chosen, and the sharpest answer is the one that is tested.
    assert visit.page.locator("#chosen .chip").all_text_contents() == [first]
    visit.page.locator("#why .trust .grade").wait_for()
    visit.page.get_by_label("sharper while you look").uncheck()
    heading.get_by_text(first, exact=True).wait_for()
    assert "sharper" not in visit.page.url


def test_several_methods_are_compared_and_not_sharpened(visit):
    visit.open(method=["attcat", "gae"], text=TEXT, sharper="1")
    assert visit.page.get_by_label("sharper while you look").count() == 0
    assert visit.page.locator("#why .row-label h3").all_text_contents() == ["attcat", "gae"]
