"""One server and one browser for this folder; every test's page is watched for errors and foreign requests.

The browser is Debian's Chromium, driven by Playwright. Where it is missing the tests skip and say
what to run; where CI=true they fail.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.helpers.page_server import DEADLINE_MILLISECONDS, HEADS, Server, run_server

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


def pytest_collection_modifyitems(items):
    """All on one worker: they share the server."""
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.xdist_group("browser"))


def skip_or_fail(what: str) -> None:
    """Skip for something missing on this machine; fail in continuous integration."""
    reason = f"{what}; run: apt-get install chromium, then make test"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="package")
def server(chromium) -> Iterator[Server]:  # noqa: ARG001 - no browser, no server
    """All embedded models, with the measured head map of one."""
    with run_server("--heads", f"tokenlight/sentiment={HEADS}") as running:
        yield running.wait()


@pytest.fixture(scope="package")
def chromium():
    """The browser; a new context in it is a new visitor."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        skip_or_fail("playwright is not installed")
    if not Path(CHROMIUM).exists():
        skip_or_fail("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page with all it did: what it said to the console, and whom it asked."""

    def __init__(self, context, server: Server) -> None:
        self.page = context.new_page()
        server.pages.append(self.page)
        self.page.set_default_timeout(DEADLINE_MILLISECONDS)
        self.address = server.address
        self.complaints: list[str] = []
        self.expected: tuple[str, ...] = ()  # words of the browser's own lines, which may come late
        self.requests: list[str] = []
        self.page.on("console", self._record_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _record_console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, **state) -> Visit:
        """The page at a link; `method` may be a list, attcat where none is named (None: the page's own
        default). Waits for the explanation a link asks for."""
        parameters = {"method": "attcat", **state}
        link_parameters = {
            key.replace("_", "-"): value for key, value in parameters.items() if value is not None
        }
        link = urlencode(link_parameters, doseq=True)
        self.page.goto(f"{self.address}/#{link}")
        if {*state} - {"method"}:
            self.wait_for("#why .token")
        else:
            self.wait_for("#fields textarea")
        return self

    def wait_for(self, selector: str) -> None:
        """Wait until the page has such an element; fail as soon as it shows an error instead."""
        error_box = "#trouble:not([hidden])"
        self.page.locator(f"{selector}, {error_box}").first.wait_for(state="attached")
        if not self.page.locator(selector).count():
            pytest.fail(f"the page shows an error: {self.page.locator(error_box).text_content()}")

    def explain(self, text: str) -> None:
        """Type as a person does, and press Explain."""
        self.page.fill("#field-text", text)
        self.page.click("#explain")
        self.page.locator("#results:not([hidden])").wait_for()
        self.page.locator("#explain[aria-busy=false]").wait_for()

    def shows(self, text: str) -> None:
        """Wait until exactly this text is explained."""
        full_text = re.compile(f"^{re.escape(text)}$")
        self.page.locator("#why .line").filter(has_text=full_text).first.wait_for()

    def get_text(self, method: str = "attcat") -> str:
        """The text of a method's row, as a reader sees it."""
        return "\n".join(
            self.page.locator(f"#why [data-method='{method}'] .line").all_text_contents()
        )

    def scores(self, method: str = "attcat") -> list[tuple[str, float]]:
        """Tokens with the numbers the page tells a screen reader."""
        labels = self.page.locator(f"#why [data-method='{method}'] [role=button]").evaluate_all(
            "all => all.map(one => [one.textContent, one.getAttribute('aria-label')])"
        )
        scores_by_token = []
        for token, label in labels:
            number = label.removeprefix(f"{token}, ").split(",")[0].replace("−", "-")
            scores_by_token.append((token, 0.0 if number == "no weight" else float(number)))
        return scores_by_token

    def list_api_requests(self) -> list[str]:
        """Requests to the API so far."""
        return [url for url in self.requests if "/api/" in url]

    def check(self) -> None:
        """No complaint, and nobody asked but our own server."""
        # On a slow machine the server may answer 429. The browser logs that, and the page asks again.
        expected = (*self.expected, "status of 429")
        assert [c for c in self.complaints if not any(word in c for word in expected)] == []
        foreign = [
            url for url in self.requests if not url.startswith((self.address, "blob:", "data:"))
        ]
        assert foreign == []


@pytest.fixture
def visitor(chromium, server):
    """A maker of visits, each with its own browser context; all are checked in the end."""
    contexts = []
    visits = []

    def arrive(to: Server | None = None, **options) -> Visit:
        context = chromium.new_context(**options)
        contexts.append(context)
        visit = Visit(context, to or server)
        visits.append(visit)
        return visit

    yield arrive
    for context in contexts:
        context.close()
    for visit in visits:
        visit.check()


@pytest.fixture
def visit(visitor) -> Visit:
    return visitor(viewport={"width": 1280, "height": 900})


@pytest.fixture(scope="package")
def explainer():
    """The library itself: what the page shows must be what it says."""
    from tokenlight import Explainer

    return Explainer.from_pretrained("tokenlight/sentiment")
