"""The guide is true: every name has a page, links lead somewhere, code runs, tables are fresh."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import posixpath
import re
import runpy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import transformers

import tokenlight.errors
import tokenlight.plugin
import tokenlight.scale
import tokenlight.trust
from tests.helpers.import_rows import RANKS, find_upward_imports
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import assert_close
from tests.tools import generated_tables
from tokenlight import Explainer, errors, registry
from tokenlight.datafiles import read_examples

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SNAPSHOT = ROOT / "tests" / "snapshots" / "messages.txt"
ROOT_PAGES = [
    ROOT / f"{name}.md"
    for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "CODE_OF_CONDUCT", "RELEASING")
]
PAGES = [*ROOT_PAGES, *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
RUNNABLE = [page for page in PAGES if FENCE.search(page.read_text("utf-8"))]
KINDS = ("methods", "metrics")


def get_page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def hooks():
    """docs/update_tables.py as mkdocs loads it."""
    sys.path.insert(0, str(DOCS))
    try:
        spec = importlib.util.spec_from_file_location("guide_hooks", DOCS / "update_tables.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def pages(hooks):
    """Address to Markdown of every page of the guide, tables filled, generated ones included."""
    generated_pages = {
        str(path.relative_to(DOCS)): hooks.fill_tables(
            path.read_text("utf-8"), str(path.relative_to(DOCS))
        )
        for path in DOCS.rglob("*.md")
    }
    return generated_pages | hooks.generate_pages("methods") | hooks.generate_pages("metrics")


@pytest.mark.parametrize("kind", KINDS)
def test_every_registered_name_has_a_page_and_a_row_in_the_index(kind, pages):
    for name in registry.list_names(kind):
        assert f"# {name}\n" in pages[f"{kind}/{name}.md"]
        assert f"[`{name}`]({name}.md)" in pages[f"{kind}/index.md"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_citation_is_a_full_reference(kind, pages):
    citations = dict(
        re.findall(r"^## (\S+)\n\n(.+?)(?=\n\n|\Z)", pages["citations.md"], re.M | re.S)
    )
    for name in registry.list_names(kind):
        key = registry.load_class(kind, name).cites
        assert key in citations, f"{name} cites {key}: put its reference into docs/citations.md"
        assert re.search(r"(19|20)\d\d\.$", citations[key]), f"the reference {key} ends in its year"


def test_links_inside_the_guide_lead_to_pages_and_headings(pages):
    for address, markdown in pages.items():
        for link in LINK.findall(remove_code(markdown)):
            assert_leads(link, address, pages)


def assert_leads(link: str, address: str, pages: dict[str, str]) -> None:
    if link.startswith(("http://", "https://")):
        return
    path, _, heading = link.partition("#")
    target_page = (
        posixpath.normpath(posixpath.join(posixpath.dirname(address), path)) if path else address
    )
    assert target_page in pages or (DOCS / target_page).exists(), f"{address} links to {link}"
    if heading and target_page in pages:
        titles = re.findall(r"^#+ (.+)$", pages[target_page], re.MULTILINE)
        slugs = {
            re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles
        }
        assert heading in slugs, f"{address} links to {link}, which has no such heading"


@pytest.mark.parametrize("page", ROOT_PAGES, ids=get_page_name)
def test_links_of_pages_outside_the_guide_lead_to_files(page):
    for link in LINK.findall(remove_code(page.read_text("utf-8"))):
        if not link.startswith(("http://", "https://", "#")):
            assert (ROOT / link.partition("#")[0]).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=get_page_name)
def test_a_checkout_shows_the_tables_as_they_are(hooks, page):
    content = page.read_text("utf-8")
    assert hooks.fill_tables(content, site=False) == content, "run: python docs/update_tables.py"


@pytest.mark.parametrize("page", generated_tables.PAGES, ids=get_page_name)
def test_tables_generated_from_the_tests_are_up_to_date(page):
    content = page.read_text("utf-8")
    assert generated_tables.fill_tables(content) == content, (
        "run: python -m tests.tools.generated_tables"
    )


def test_links_of_the_guide_lead_to_files_in_a_checkout():
    """Where no page is generated."""
    for page in DOCS.rglob("*.md"):
        for link in LINK.findall(remove_code(page.read_text("utf-8"))):
            if not link.startswith(("http://", "https://", "#")):
                path = page.parent / link.partition("#")[0]
                assert path.exists(), f"{get_page_name(page)} links to {link}"


def remove_code(markdown: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", markdown, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", RUNNABLE, ids=get_page_name)
def test_code_marked_python_runs(page, tmp_path, monkeypatch):
    """The blocks of a page are one script, run in order in an empty folder."""
    monkeypatch.chdir(tmp_path)
    transformers.logging.disable_progress_bar()
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    script.write_text("\n".join(FENCE.findall(page.read_text("utf-8"))), encoding="utf-8")
    runpy.run_path(str(script))


def test_links_that_leave_the_guide_become_text_in_it(hooks):
    page = "See [the recipe](../../training/README.md) and [targets](../targets.md#answer-spans)."
    assert hooks.localize_links(page, "models/qa.md") == (
        "See `training/README.md` and [targets](../targets.md#answer-spans)."
    )


def test_the_reference_has_an_entry_for_every_exported_name(pages):
    entries = {
        line.rpartition(".")[2] for line in re.findall(r"^::: (.+)$", pages["reference.md"], re.M)
    }
    # The whole module of errors is one entry.
    entries |= {name for name in vars(tokenlight.errors) if not name.startswith("_")}
    exported = [tokenlight, tokenlight.plugin, tokenlight.scale, tokenlight.trust]
    assert {name for module in exported for name in module.__all__} <= entries


def test_the_page_of_a_method_reports_its_measurements(pages):
    assert "| a text | 0.61 | 0.62 (`cp_lrp`) | 0.19 |" in pages["methods/attnlrp.md"]
    assert ".md) | 0.40 | 0.58 (`attnlrp`) | 0.20 |" in pages["methods/alti.md"]
    assert ".md) | 0.20 | 0.58 (`attnlrp`) | 0.20 |" in pages["methods/random.md"]
    for name in registry.list_names("methods"):
        _, _, section = pages[f"methods/{name}.md"].partition("## Measured faithfulness\n\n")
        assert section.startswith(("| input | this method | best |", "Not measured on our data"))


def test_the_page_of_a_method_shows_the_coloured_sentence(hooks, pages):
    explainer = Explainer.from_pretrained("tokenlight/sentiment")
    explained = sys.modules[hooks.draw_all_strips.__module__].load_sentence()
    assert set(explained["methods"]) <= set(registry.list_names("methods")), (
        "run: python docs/strips.py"
    )
    assert len(explained["methods"]) >= 36
    for name in explained["methods"]:
        strip = re.findall(r'<p class="strip">(.*)</p>', pages[f"methods/{name}.md"])[0]
        assert re.sub("<[^>]+>", "", strip) == explained["sentence"]
        assert strip in pages["methods/index.md"]
        assert "background:" in strip
    fresh = explainer.explain(explained["sentence"], "attnlrp").words()
    assert [word for word, _ in fresh] == explained["words"]
    assert_close(explained["methods"]["attnlrp"], [score for _, score in fresh], 1e-3)


def test_the_page_of_a_method_shows_its_deletion_curve(hooks, pages):
    curves = sys.modules[hooks.draw_curve.__module__]
    measured = curves.load_curves()
    assert set(measured["methods"]) <= set(registry.list_names("methods")), (
        "run: python docs/curves.py"
    )
    assert len(measured["methods"]) >= 36
    for name, facts in measured["methods"].items():
        page = pages[f"methods/{name}.md"]
        assert curves.draw_curve(name) in page
        # The area under the curve, over its points, is the number that is quoted.
        assert_close(np.mean(facts["curve"]), facts["aopc"], 1e-3)
    explainer = Explainer.from_pretrained(measured["model"])
    reviews = Path(tokenlight.__file__).parent / "bench" / "suites" / "quick.jsonl"
    texts = [example.text for example in read_examples(reviews)]
    fresh = explainer.evaluate(explainer.explain(texts, "random"), "aopc").summary["aopc"]["mean"]
    assert_close(measured["methods"]["random"]["aopc"], fresh, 1e-3)


def test_the_results_menu_has_four_groups_and_every_page_once(hooks):
    first, *groups = hooks.build_results_menu()
    assert first == "results/README.md"
    assert [list(group) for group in groups] == [[name] for name in hooks.RESULT_GROUPS]
    listed = [page for group in groups for pages in group.values() for page in pages]
    assert sorted([first, *listed]) == hooks.list_pages("results")
    index = (DOCS / first).read_text("utf-8")
    for name in hooks.RESULT_GROUPS:
        assert f"\n## {name}\n" in index


def test_a_metric_without_a_paper_has_a_page_too(hooks, monkeypatch):
    cls = registry.load_class("metrics", "aopc")
    monkeypatch.delattr(cls, "cites")
    assert "- Paper: none\n" in hooks.build_page("metrics", "aopc")
    assert "| higher | none |" in hooks.build_names_table("metrics", site=True)


def test_every_picture_of_the_gallery_has_its_script_and_all_stay_small():
    images = set(re.findall(r"images/gallery/(\w+)\.png", (DOCS / "gallery.md").read_text("utf-8")))
    files = {path.stem: path.stat().st_size for path in (DOCS / "images/gallery").glob("*.png")}
    makers = set(
        re.findall(
            r"^def (\w+)\(folder: Path\) -> Shot", (DOCS / "gallery.py").read_text("utf-8"), re.M
        )
    )
    assert images | {"home"} == set(files) == makers
    assert sum(files.values()) < 1_500_000


def test_every_error_has_its_section_with_symptom_cause_and_fix(pages):
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", pages["errors.md"], re.M | re.S))
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TokenlightError)
    }
    assert set(sections) == classes - {"TokenlightError"}
    for name, text in sections.items():
        for part in ("**Symptom.**", "**Cause.**", "**Fix.**"):
            assert part in text, f"{name} lacks {part}"


def read_message_templates(error_name: str) -> list[list[str]]:
    """Return the words of the messages that may belong to an error, with ``{}`` for each expression.

    Texts that are not written in a ``raise`` are in the snapshot without their class, so they count for all.
    """
    templates = []
    for line in SNAPSHOT.read_text("utf-8").splitlines():
        kind, separator, text = line.partition(": ")
        class_name = kind.partition(" ")[0]
        if not separator or class_name.partition(".")[0] not in (error_name, "text"):
            continue
        if class_name.endswith(".from_choices"):
            text = f"Unknown {text} {{name}}. Did you mean {{match}}? Known: {{names}}."
        templates.append(re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "{}", text).split())
    return templates


def is_part_of_template(words: list[str], template: list[str]) -> bool:
    """Return whether ``words`` stand side by side in a message; ``{}`` in it matches part of one word."""
    patterns = [re.escape(word).replace(r"\{\}", r"\S+") for word in template]
    starts = range(len(patterns) - len(words) + 1)
    return any(
        all(re.fullmatch(patterns[start + i], word) for i, word in enumerate(words))
        for start in starts
    )


def test_every_symptom_of_an_error_is_a_message_of_that_error(pages):
    symptoms = re.findall(
        r"^## (\w+)\n\n\*\*Symptom\.\*\* (.*?)\n\n", pages["errors.md"], re.M | re.S
    )
    assert len(symptoms) == pages["errors.md"].count("**Symptom.**")
    for name, quoted_messages in symptoms:
        templates = read_message_templates(name)
        messages = re.findall(r"`([^`]+)`", quoted_messages)
        assert messages, f"{name} quotes no message"
        for message in messages:
            parts = [part.split() for part in message.split("…") if part.strip()]
            assert any(
                all(is_part_of_template(part, template) for part in parts) for template in templates
            ), f"docs/errors.md: {message!r} is not a message of {name}"


def test_the_page_of_the_command_line_shows_every_command(pages):
    from typer.main import get_command

    from tokenlight.cli.app import app

    for name in get_command(app).commands:
        assert f"### tokenlight {name}\n\n```text\nUsage: tokenlight {name}" in pages["cli.md"]


def test_the_page_of_the_command_line_reads_well_in_a_checkout_too(hooks):
    content = (DOCS / "cli.md").read_text("utf-8")
    assert "<!--" not in content
    assert hooks.build_commands_table() in content, (
        "put hooks.build_commands_table() into docs/cli.md"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_formula_of_a_docstring_can_be_drawn(kind, hooks):
    formulas = sys.modules[hooks.draw_formulas.__module__]
    for name in registry.list_names(kind):
        for formula in formulas.find_formulas(registry.load_class(kind, name).__doc__):
            assert formulas.draw_picture(formula, block=True).startswith(
                '<div class="formula"><svg'
            )


def test_formulas_become_pictures_named_by_their_source(hooks):
    formulas = sys.modules[hooks.draw_formulas.__module__]
    text = formulas.as_markdown(
        "Mean.\n\n.. math:: s = \\tfrac1H\n    x\n\nof :math:`x`, see :class:`A`."
    )
    assert text == "Mean.\n\n\n$$\ns = \\tfrac1H x\n$$\n\n\nof $x$, see `A`."
    page = hooks.draw_formulas('<p>of <span class="arithmatex">\\(a&lt;b\\)</span></p>')
    assert page.startswith('<p>of <span class="formula"><svg role="img" aria-label="a&lt;b"')
    assert formulas.to_mathtext(r"\tfrac1H\bigl(\frac{1}n\bigr)") == (
        r"\frac{1}{H}\left(\dfrac{1}{n}\right)"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_changelog_names_every_method_and_metric(kind):
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    missing = [name for name in registry.list_names(kind) if f"`{name}`" not in text]
    assert not missing, f"{missing}: what users see gets a line in CHANGELOG.md"


def test_decisions_are_numbered_and_have_their_four_parts():
    records = sorted((DOCS / "adr").glob("*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text("utf-8")
        assert text.startswith(f"# {path.name[:4]} ")
        for part in ("Context.", "Decision.", "What we give up.", "How we would notice"):
            assert f"**{part}" in text, f"{path.name} lacks {part}"


# --- CONTRIBUTING ---------------------------------------------------------------------------------

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
METHOD_BLOCK, METRIC_BLOCK = FENCE.findall(CONTRIBUTING)
TEXTS = ["the film is good", "a dull plot , but the acting is very charming"]


def load_module(name: str, source: str, folder: Path, monkeypatch):
    """``source`` as the module that its file would be."""
    path = folder / f"{name.rpartition('.')[2]}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("block", "count"), [(METHOD_BLOCK, 6), (METRIC_BLOCK, 8)], ids=["method", "metric"]
)
def test_the_examples_have_six_and_eight_lines(block, count):
    """Of code: imports, docstrings and empty lines aside."""
    tree = ast.parse(block)
    aside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = [line for at, line in enumerate(block.splitlines(), 1) if line and at not in aside]
    assert len(lines) == count


def test_the_method_of_six_lines_is_a_method(tmp_path, monkeypatch):
    module = load_module("tokenlight.methods.gradient_norm", METHOD_BLOCK, tmp_path, monkeypatch)
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    together = explainer.explain(TEXTS, [module.GradientNorm()])
    assert [attribution.method for attribution in together] == ["gradient_norm"] * 2
    assert all((attribution.scores > 0).all() for attribution in together)
    alone = explainer.explain(TEXTS[0], module.GradientNorm())
    np.testing.assert_allclose(together[0].scores, alone.scores, rtol=1e-9)


def test_the_metric_of_eight_lines_is_a_metric(tmp_path, monkeypatch):
    module = load_module("tokenlight.metrics.special_share", METRIC_BLOCK, tmp_path, monkeypatch)
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    measured = explainer.evaluate(explainer.explain(TEXTS, ["attcat"]), module.SpecialShare())
    assert 0 < measured.summary["special_share"]["mean"] < 1


@pytest.fixture
def my_package(tmp_path, monkeypatch):
    """The two files in a package of their own, named by the entry points that CONTRIBUTING shows."""
    package = tmp_path / "my_package"
    about = tmp_path / "my_package-1.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "gradient_norm.py").write_text(METHOD_BLOCK, encoding="utf-8")
    (package / "special_share.py").write_text(METRIC_BLOCK, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    toml_block = re.search(r"^```toml\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)[1]
    groups = tomllib.loads(toml_block)["project"]["entry-points"]
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {entry}" for name, entry in entries.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    registry._find_entries.cache_clear()
    yield
    registry._find_entries.cache_clear()
    registry.load_class.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.mark.usefixtures("my_package")
def test_a_method_and_a_metric_work_by_name_from_a_separate_package():
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    attributions = explainer.explain(TEXTS, ["gradient_norm"])
    assert [attribution.method for attribution in attributions] == ["gradient_norm"] * 2
    measured = explainer.evaluate(attributions, ["special_share"])
    assert 0 < measured.summary["special_share"]["mean"] < 1


@pytest.mark.parametrize("block", [METHOD_BLOCK, METRIC_BLOCK], ids=["method", "metric"])
def test_the_examples_import_nothing_but_tokenlight_plugin(block):
    assert set(re.findall(r"tokenlight[\w.]*(?= import)", block)) == {"tokenlight.plugin"}


def test_the_examples_may_be_put_into_the_package():
    assert find_upward_imports("methods", METHOD_BLOCK) == []
    assert find_upward_imports("metrics", METRIC_BLOCK) == []


# --- architecture ---------------------------------------------------------------------------------


def test_the_architecture_names_every_package_and_draws_it():
    page = (DOCS / "architecture.md").read_text("utf-8")
    drawn_packages = re.findall(
        r">([\w]+)</text>", (DOCS / "images" / "architecture.svg").read_text("utf-8")
    )
    folders = {path.parent.name for path in (ROOT / "src" / "tokenlight").glob("*/__init__.py")}
    assert {name for name in folders if f"| `{name}/` |" not in page} == set()
    assert set(RANKS) <= set(drawn_packages)
    ranks = [RANKS[name] for name in drawn_packages if name in RANKS]
    assert ranks[: len(RANKS)] == sorted(RANKS.values(), reverse=True), (
        "the highest row is drawn first"
    )


def test_the_call_tree_of_the_architecture_names_functions_of_these_files():
    page = (DOCS / "architecture.md").read_text("utf-8")
    calls = re.findall(r"^[│├└─ ]*([\w.]+) {2,}((?:\w+/)?\w+\.py)", page, re.MULTILINE)
    (tree,) = re.findall(r"^```text\n(Explainer\.explain .+?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(calls) == len(tree.splitlines()) > 15, "a line names no function and no file"
    missing = []
    for function, file in calls:
        source = (ROOT / "src" / "tokenlight" / file).read_text("utf-8")
        if f"def {function.rpartition('.')[2]}(" not in source:
            missing.append((function, file))
    assert missing == []


def list_named_files() -> dict[str, list[str]]:
    """Return the files of Python that docstrings, comments and pages name, each with where it is named."""
    places = dict[str, list[str]]()
    # Superseded decisions and past changes name files of their time.
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    for path in [*sorted((ROOT / "src").rglob("*.py")), *pages]:
        text = path.read_text("utf-8")
        if "\n*Superseded by" in text:
            continue
        for name in re.findall(r"`([\w./-]+\.py)`", text):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return places


def test_every_file_that_a_docstring_or_a_page_names_is_there():
    folders = ("src", "tests", "docs", "benchmarks", "training", "examples")
    files = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for f in folders
        for path in (ROOT / f).rglob("*.py")
    ]
    # The files that a reader is told to write.
    templates = {"methods/NAME.py", "metrics/NAME.py"}
    templates |= {
        "src/tokenlight/methods/gradient_norm.py",
        "src/tokenlight/metrics/special_share.py",
    }
    named_files = list_named_files()
    assert len(named_files) > 100
    missing = {
        name: places
        for name, places in named_files.items()
        if name not in templates and not any(file.endswith(f"/{name}") for file in files)
    }
    assert missing == {}


def test_every_module_that_the_architecture_names_is_there():
    page = (DOCS / "architecture.md").read_text("utf-8")
    named_modules = re.findall(r"`(\w+/\w+\.py)`", page)
    named_modules += [
        f"{folder}/{file}"
        for folder, file in re.findall(r"^\| `(\w+)/` \|.*\| `(\w+\.py)` \|$", page, re.M)
    ]
    assert len(named_modules) > 25
    assert [
        name for name in named_modules if not (ROOT / "src" / "tokenlight" / name).exists()
    ] == []
