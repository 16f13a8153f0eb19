"""The page's files: within the policy, small, and in the library's colours. No browser needed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tokenlight.plots.colours import build_css_rules

PAGE = Path(__file__).parents[3] / "src" / "tokenlight" / "web" / "page"
MODULES = sorted((PAGE / "js").glob("*.js"))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed((PAGE / "index.html").read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere():
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    for tag, attributes in Tags().found:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "script":
            assert attributes["src"].startswith("/page/")
        for name in ("href", "src"):
            assert attributes.get(name, "/")[0] in "/#"


def test_every_file_the_page_names_is_there():
    for _, attributes in Tags().found:
        for name in ("href", "src"):
            address = attributes.get(name) or ""
            if address.startswith("/page/"):
                assert (PAGE / address.removeprefix("/page/")).is_file(), address
    for path in MODULES:
        for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_every_id_that_a_module_uses_is_in_the_page():
    page_ids = {attributes["id"] for _, attributes in Tags().found if "id" in attributes}
    form = (PAGE / "js/ask.js").read_text(encoding="utf-8")
    text_fields = re.search(r"const ROWS = {(.+?)}", form)[1]
    page_ids |= {f"field-{name}" for name in re.findall(r"(\w+):", text_fields)}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        created_ids = set(re.findall(r'id: "([\w-]+)"', text)) | set(
            re.findall(r'field\("([\w-]+)"', text)
        )
        created_ids |= set(re.findall(r'download\("([\w-]+)"', text))
        requested_ids = set(re.findall(r'byId\("([\w-]+)"\)', text))
        assert requested_ids <= page_ids | created_ids, path.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_script_is_small_documented_and_writes_no_markup(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("// ")
    assert text.count("\n") < 400
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in text
    assert not re.search(r"https?://", text)


def test_the_palette_is_the_librarys():
    text = (PAGE / "palette.css").read_text(encoding="utf-8")
    head, plain, safe, fallback = re.split(r"\n(?=\.a12)", text)
    assert head.startswith("/*")
    assert plain.startswith(build_css_rules("green_red"))
    assert safe.startswith(build_css_rules("blue_orange"))
    assert fallback.startswith(build_css_rules("green_red"))
