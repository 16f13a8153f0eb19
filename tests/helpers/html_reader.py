"""Reads a page back as a browser would: the text of each highlighted line, looks, titles, tags."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "rect", "link", "img"}


@dataclass
class Line:
    """A highlighted line: its text without special tokens, and its marked stretches."""

    kind: str
    text: str = ""
    marks: list[tuple[str, str, str]] = field(default_factory=list)  # (look, title, text)


class PageReader(HTMLParser):
    """Collects what the tests compare; checks that every tag is closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[Line] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, str] = {}
        self.open: list[tuple[str, dict[str, str]]] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the tag; begin a line or a mark where it opens one."""
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag in VOID:
            return
        self.open.append((tag, values))
        if values.get("class") == "line":
            above = {name for _, v in self.open for name in v.get("class", "").split()}
            kind = "sentence" if "sentence" in above else "words" if "words" in above else "tokens"
            self.lines.append(Line(kind))
        elif tag == "span" and self._is_in_line():
            self.lines[-1].marks.append((values.get("class", ""), values.get("title", ""), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag that closes itself."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Check that the tag closes the one that was opened last."""
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        """Add text to its tag, and inside a line to the line and its mark."""
        tag = self.open[-1][0] if self.open else ""
        self.texts[tag] = self.texts.get(tag, "") + data
        if not self._is_in_line():
            return
        look = self.open[-1][1].get("class", "")
        if tag == "span":
            old = self.lines[-1].marks[-1]
            self.lines[-1].marks[-1] = (old[0], old[1], old[2] + data)
        if "chip" not in look.split():
            self.lines[-1].text += data

    def _is_in_line(self) -> bool:
        """Return whether a highlighted line is open."""
        return any(values.get("class") == "line" for _, values in self.open)


def read_report_entries(content: str) -> list[dict]:
    """Return the data that a report page passes to its script."""
    match = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', content, re.DOTALL
    )
    assert match is not None
    return json.loads(match[1])
