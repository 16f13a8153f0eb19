"""One server and one browser for this folder; every test's page is watched for errors and foreign requests.

The browser is Debian's Chromium, driven by Playwright. Where it is missing the tests skip and say
what to run; where CI=true they fail.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
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
PATIENCE = 60_000  # milliseconds; a slow machine is no failure


def pytest_collection_modifyitems(items):
    """All on one worker: they share the server."""
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


def missing(what: str) -> None:
    reason = f"{what}; run: apt-get install chromium, then make test"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Server:
    """A running `tokenlight serve`, started as a user starts it."""

    port: int
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen | None = field(default=None, init=False)
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
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )
        return self

    def wait(self) -> Server:
        assert self.process is not None
        for _ in range(1200):
            if self.process.poll() is not None:
                self.log.seek(0)
                pytest.fail(f"the server ended: {self.log.read()[-3000:]}")
            try:
                with urllib.request.urlopen(f"{self.address}/healthz", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        return pytest.fail("the server did not answer within two minutes")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    pytest.importorskip("fastapi")
    server = Server(free_port(), arguments).start()
    try:
        yield server
    finally:
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
        asked = {"method": "attcat", **state}
        given = {key.replace("_", "-"): value for key, value in asked.items() if value is not None}
        link = urlencode(given, doseq=True)
        self.page.goto(f"{self.address}/#{link}")
        if {*state} - {"method"}:
            self.page.locator("#why .token").first.wait_for(state="attached")
        else:
            self.page.locator("#fields textarea").first.wait_for()
        return self

    def explain(self, text: str) -> None:
        """Type as a person does, and press Explain."""
        self.page.fill("#field-text", text)
        self.page.click("#explain")
        self.page.locator("#results:not([hidden])").wait_for()
        self.page.locator("#explain[aria-busy=false]").wait_for()

    def shows(self, text: str) -> None:
        """Wait until exactly this text is explained."""
        whole = re.compile(f"^{re.escape(text)}$")
        self.page.locator("#why .line").filter(has_text=whole).first.wait_for()

    def shown(self, method: str = "attcat") -> str:
        """The text of a method's row, as a reader sees it."""
        return "\n".join(
            self.page.locator(f"#why [data-method='{method}'] .line").all_text_contents()
        )

    def scores(self, method: str = "attcat") -> list[tuple[str, float]]:
        """Tokens with the numbers the page tells a screen reader."""
        labels = self.page.locator(f"#why [data-method='{method}'] [role=button]").evaluate_all(
            "all => all.map(one => [one.textContent, one.getAttribute('aria-label')])"
        )
        found = []
        for token, label in labels:
            number = label.removeprefix(f"{token}, ").split(",")[0].replace("−", "-")
            found.append((token, 0.0 if number == "no weight" else float(number)))
        return found

    def asked(self) -> list[str]:
        """Requests to the API so far."""
        return [url for url in self.requests if "/api/" in url]

    def check(self) -> None:
        """No complaint, and nobody asked but our own server."""
        assert [c for c in self.complaints if not any(word in c for word in self.expected)] == []
        foreign = [
            url for url in self.requests if not url.startswith((self.address, "blob:", "data:"))
        ]
        assert foreign == []


@pytest.fixture
def visitor(chromium, server):
    """A maker of visits, each with its own browser context; all are checked in the end."""
    contexts, visits = [], []

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
