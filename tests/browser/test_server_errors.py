"""When the server goes, when it is asked by many, and when it never was there."""

from __future__ import annotations

import os
import signal

from tests.helpers.page_server import TEXT, run_server


def test_a_server_that_dies_mid_request_is_reported_and_reconnected_to(visitor):
    with run_server("--model", "tokenlight/sentiment") as server:
        visit = visitor(server.wait())
        visit.open().explain(TEXT)
        visit.page.locator(".grade").wait_for()  # nothing else is asked in the background
        os.kill(server.process.pid, signal.SIGSTOP)  # the request arrives and is not answered
        visit.page.fill("#field-text", "I do not like this movie.")
        with visit.page.expect_request("**/api/explain"):
            visit.page.click("#explain")
        server.stop()
        trouble = visit.page.locator("#trouble:not([hidden])")
        trouble.wait_for()
        assert (
            "is not answering" in trouble.text_content()
            or "was lost before" in trouble.text_content()
        )
        assert visit.get_text() == TEXT, "what was explained before must stay"
        server.start().wait()
        visit.page.locator("#why .token:text-is('movie')").wait_for()
        visit.page.locator("#trouble").wait_for(state="hidden")
        assert visit.get_text() == "I do not like this movie."
        # The browser itself reports the lost connections; nothing else may be wrong.
        lost = ("ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE", "ERR_SOCKET")
        visit.expected = lost


def test_two_tabs_at_once_each_get_their_own_answer(visitor):
    first = visitor().open()
    second = visitor().open()
    texts = ["A charming and often affecting journey.", "I do not like this movie."]
    for _ in range(3):
        for visit, text in zip((first, second), texts, strict=True):
            visit.page.fill("#field-text", text)
        for visit in (first, second):
            visit.page.click("#explain", no_wait_after=True)
        for visit, text in zip((first, second), texts, strict=True):
            visit.shows(text)
            assert visit.get_text() == text
        texts.reverse()


def test_a_second_question_overtakes_the_first(visit):
    visit.open()
    visit.page.fill("#field-text", "The first text, which is never shown.")
    visit.page.click("#explain")
    visit.page.fill("#field-text", "The second one.")
    visit.page.keyboard.press("Control+Enter")
    visit.shows("The second one.")
    visit.page.locator(".grade").wait_for()
    assert visit.get_text() == "The second one."


def test_a_busy_server_is_retried_and_the_queue_position_is_shown(visit):
    visit.open()
    busy = {
        "error": {
            "code": "busy",
            "message": "12 requests for this model came before this one.",
            "hint": "Try again in 2 seconds.",
        }
    }
    answers = iter([True])

    def answer_busy_first(route):
        if next(answers, False):
            route.fulfill(status=429, json=busy, headers={"Retry-After": "2"})
        else:
            route.continue_()

    visit.page.route("**/api/explain", answer_busy_first)
    visit.page.click("#explain")
    visit.page.get_by_text(
        "12 requests for this model came before yours. Retrying in 2 s …"
    ).wait_for()
    visit.page.locator("#why .token").first.wait_for()
    visit.expected = ("429",)


def test_an_unsupported_method_is_reported_and_the_others_are_shown(visit):
    visit.open(text=TEXT, method=["attcat", "mask_lrp"])
    visit.page.locator("#why [data-method=attcat] .token").first.wait_for()
    rows = visit.page.locator("#why .row-label h3").all_text_contents()
    warnings = visit.page.locator("#why .warning").all_text_contents()
    assert rows == ["attcat", "mask_lrp"] or any("mask_lrp" in line for line in warnings)


def test_a_text_too_long_for_the_trust_test_is_reported(visit):
    text = "This film is neither good nor bad but long, and the director knows it. " * 75
    visit.open(text=text.strip(), long="stride")
    visit.page.get_by_text("Not tested. Testing a text of").wait_for()
    assert "tokenlight explain --trust" in visit.page.locator("#why .trust").text_content()
    visit.expected = ("422",)
