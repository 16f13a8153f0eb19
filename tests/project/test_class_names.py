"""One thing, one name: no class name is used twice, and what the pages import is there."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def list_classes(path: Path):
    tree = ast.parse(path.read_text("utf-8"))
    return (node.name for node in tree.body if isinstance(node, ast.ClassDef))


def test_no_class_name_is_used_twice():
    sources = (ROOT / "src" / "tokenlight").rglob("*.py")
    counted = Counter(name for path in sources for name in list_classes(path))
    assert {name for name, times in counted.items() if times > 1} == set()


def list_imports(source: str):
    """(module, name) of every import from tokenlight in a script; the name is None for a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tokenlight":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from ((name, None) for name in names if name.split(".")[0] == "tokenlight")


def list_promised_names():
    """What README, CONTRIBUTING, guide and examples import, with one place that does."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    scripts = {path: [path.read_text("utf-8")] for path in (ROOT / "examples").glob("*.py")}
    for page in pages:
        scripts[page] = re.findall(r"^```py\w*\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return {
        name: path.relative_to(ROOT)
        for path, sources in scripts.items()
        for source in sources
        for name in list_imports(source)
    }


@pytest.mark.parametrize(("module", "name"), sorted(list_promised_names(), key=str))
def test_a_name_that_a_page_or_an_example_imports_exists(module, name):
    module_object = importlib.import_module(module)
    if name is not None and not hasattr(module_object, name):
        importlib.import_module(f"{module}.{name}")


def test_the_names_that_the_pages_import_are_collected():
    """The test above would pass with nothing to look at."""
    assert {("tokenlight", "Explainer"), ("tokenlight.plugin", "Method")} <= set(
        list_promised_names()
    )
    assert len(list_promised_names()) > 25
