"""What strangers read first is true: citation, workflow, hooks and release notes fit the project."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
LARGE = 500_000  # bytes
NAMING = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md", ".ci/run")),
    WORKFLOW,
    HOOKS,
    ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md",
]


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


def test_the_citation_has_what_the_format_asks_for_and_the_projects_version(citation):
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("key", ["qiang2022attcat", "song2024mask", "hou2023decoding"])
def test_the_citation_names_the_three_papers_as_the_guide_does(citation, key):
    text = (ROOT / "docs" / "citations.md").read_text("utf-8")
    entry = " ".join(re.search(rf"^## {key}\n\n(.+?)(?:\n\n|\Z)", text, re.M | re.S)[1].split())
    (paper,) = (reference for reference in citation["references"] if reference["title"] in entry)
    names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    authors = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    assert entry.startswith(f"{authors}. {paper['title']}. ")
    assert entry.endswith(f"{paper['year']}.")


def test_every_python_that_is_promised_is_tested():
    matrix = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["all"]["strategy"]["matrix"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert set(promised) <= set(matrix["python"])
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_every_command_of_make_that_is_named_is_a_target(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    text = page.read_text("utf-8")
    target_lists = re.findall(
        r"(?:`|\$ |run: |^|OMP_NUM_THREADS=1 )make ((?:[\w-]+(?![\w-]*=) ?)+)", text, re.M
    )
    assert target_lists
    for words in target_lists:
        assert set(words.split()) <= set(targets), f"{page.name}: make {words}"


def test_no_file_is_larger_than_the_hook_allows():
    (hook,) = (
        entry
        for entry in yaml.safe_load(HOOKS.read_text("utf-8"))["repos"][0]["hooks"]
        if entry["id"] == "large-files"
    )
    assert f"-le {LARGE} " in hook["entry"]
    folders = ("src", "tests", "docs", "examples", "benchmarks", "training")
    large = [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.stat().st_size > LARGE and "__pycache__" not in path.parts
    ]
    assert "src/tokenlight/models/encoder.safetensors" in large
    assert [path for path in large if not re.search(hook["exclude"], path)] == []


def test_addresses_in_the_metadata_can_be_opened_from_anywhere():
    """None so far: a relative one would mean nothing on a package index."""
    assert all(address.startswith("https://") for address in PROJECT.get("urls", {}).values())


def test_every_test_in_quarantine_exists():
    table = (ROOT / "tests" / "QUARANTINES.md").read_text("utf-8")
    rows = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", table)
    assert len(rows) > 10
    for path, name in rows:
        code = (ROOT / path).read_text("utf-8")
        names = {node.name for node in ast.walk(ast.parse(code)) if hasattr(node, "name")}
        assert not name or name in names, f"{path} has no {name}"
