"""A server of the web page in its own process, and what its visitors share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
HEADS = REPOSITORY / "docs" / "results" / "heads" / "sentiment.json"
TEXT = "The plot is thin, but the actors never let it become dull."
# Milliseconds after which a test gives up. It keeps a test from hanging and measures nothing: the server
# itself gives up a request after 120 s, and the page then shows an error, which ends a wait at once.
DEADLINE_MILLISECONDS = 300_000


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
        """The address without a path."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Start the command, on the same port as before if it was already started."""
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
        """Wait until the server prints where it listens, or has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if match is None:
            self.stop()
            self.log.seek(0)
            pytest.fail(f"the server ended: {self.log.read()[-3000:]}")
        self.port = int(match[1])
        with urllib.request.urlopen(
            f"{self.address}/healthz", timeout=DEADLINE_MILLISECONDS / 1000
        ) as answer:
            assert answer.status == 200
        return self

    def stop(self) -> None:
        """Kill the server."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()  # which closes its standard output, too

    def close_pages(self) -> None:
        """Close all pages before the server stops: one that sends requests would log a lost connection."""
        for page in self.pages:
            if not page.is_closed():
                page.close()


@contextmanager
def run_server(*arguments: str) -> Iterator[Server]:
    """Start a server before the block and stop it after; ``wait`` for it inside."""
    pytest.importorskip("fastapi")
    server = Server(arguments).start()
    try:
        yield server
    finally:
        server.close_pages()
        server.stop()
        server.log.close()
