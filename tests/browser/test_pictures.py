"""A picture on the page: chosen, checked, explained with its prompt, and shown with its patches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.helpers.api_server import run_server
from tests.helpers.image_models import PATCH, SIDE
from tests.helpers.served_pictures import encode_image, make_picture_models

NUM_PATCHES = (SIDE // PATCH) ** 2


@pytest.fixture(scope="module")
def picture_server(chromium):  # noqa: ARG001 - no browser, no server
    from tokenlight.web.app import create_app

    with run_server(create_app(make_picture_models(), try_methods=False)) as address:
        yield SimpleNamespace(address=str(address), pages=[])


def test_a_picture_is_chosen_and_explained_alone_and_with_a_prompt(visitor, picture_server):
    visit = visitor(to=picture_server)
    page = visit.page
    page.goto(picture_server.address)
    visit.wait_for("#field-picture")
    bad_file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"}
    page.set_input_files("#field-picture", files=[bad_file])
    assert "notes.txt is not a picture" in page.locator("#trouble").text_content()
    broken_file = {"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"}
    visit.expected = ("status of 422",)
    page.set_input_files("#field-picture", files=[broken_file])
    page.locator("#trouble", has_text="not a picture that can be read").wait_for()
    good_file = {"name": "noise.png", "mimeType": "image/png", "buffer": encode_image()}
    page.set_input_files("#field-picture", files=[good_file])
    visit.wait_for("#why .patch")
    assert page.locator("#why .patch").count() == NUM_PATCHES
    assert page.locator("#picture-name").text_content() == "noise.png"
    assert page.locator("#tab-layers").is_hidden()
    # The picture stays when a model is chosen that reads it with a prompt.
    page.select_option("#model", "captioner")
    page.fill("#field-prompt", "what is the red cat")
    page.click("#explain")
    visit.shows("what is the red cat")
    assert page.locator("#why .patch").count() == NUM_PATCHES
    first_patch = page.locator("#why .patch").first
    first_patch.focus()
    page.keyboard.press("ArrowDown")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("row 1, column 0, ")
    assert "picture" not in page.url
