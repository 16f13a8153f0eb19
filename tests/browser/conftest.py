"""One server and one browser for this folder; every test's page is watched for errors and foreign requests.

The browser is Debian's Chromium, driven by Playwright. Where it is missing the tests skip and say
what to run; where CI=true they fail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

REPOSITORY = Path(__file__).parents[2]
HEADS = REPOSITORY / "docs" / "results" / "heads" / "sentiment.json"
TEXT = "The plot is thin, but the actors never let it become dull."
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
# Milliseconds after which a test gives up. It keeps a test from hanging and measures nothing: the server
# itself gives up a request after 120 s, and the page then shows an error, which ends a wait at once.
PATIENCE = 300_000


def pytest_collection_modifyitems(items):
    """All on one worker: they share the server."""
    folder = Path(__file__).parent
    for item in items:
        if folder in Path(item.path).parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


def missing(what: str) -> None:
    reason = f"{what}; run: apt-get install chromium, then make test"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Server:
    """A running `tokenlight serve`, started as a user starts it."""

    arguments: tuple[str, ...] = ()
    port: int = field(default=0, init=False)  # a free one at first, the same when it starts again
    process: subprocess.Popen | None = field(default=None, init=False)
    pages: list[Any] = field(default_factory=list, init=False)  # of its visitors
    log: Any = field(default_factory=lambda: tempfile.TemporaryFile("w+"), init=False)  # noqa: SIM115

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tokenlight.cli",
                "serve",
                f"--port={self.port}",
                *self.arguments,
            ],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        return self

    def wait(self) -> Server:
        """Until it says where it listens, or has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if match is None:
            self.stop()
            self.log.seek(0)
            pytest.fail(f"the server ended: {self.log.read()[-3000:]}")
        self.port = int(match[1])
        with urllib.request.urlopen(f"{self.address}/healthz", timeout=PATIENCE / 1000) as answer:
            assert answer.status == 200
        return self

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()  # which closes its standard output, too

    def close_pages(self) -> None:
        """Before the server goes for good: a page that still asks would complain of a lost connection."""
        for page in self.pages:
            if not page.is_closed():
                page.close()


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    pytest.importorskip("fastapi")
    server = Server(arguments).start()
    try:
        yield server
    finally:
        server.close_pages()
        server.stop()
        server.log.close()


@pytest.fixture(scope="package")
def server(chromium) -> Iterator[Server]:  # noqa: ARG001 - no browser, no server
    """All embedded models, with the measured head map of one."""
    with serving("--heads", f"tokenlight/sentiment={HEADS}") as running:
        yield running.wait()


@pytest.fixture(scope="package")
def chromium():
    """The browser; a new context in it is a new visitor."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    if not Path(CHROMIUM).exists():
        missing("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page with all it did: what it said to the console, and whom it asked."""

    def __init__(self, context, server: Server) -> None:
        self.page = context.new_page()
        server.pages.append(self.page)
        self.page.set_default_timeout(PATIENCE)
        self.address = server.address
        self.complaints: list[str] = []
        self.expected: tuple[str, ...] = ()  # words of the browser's own lines, which may come late
        self.requests: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _heard(self, message) -> None:
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
