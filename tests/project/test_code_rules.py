"""The house: imports point one way, modules stay small, nothing unsafe is opened."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.import_rows import RANKS, ROWS, find_upward_imports
from tests.tools.module_index import list_modules, list_test_files, read_declaration
from tokenlight import plugin

SOURCE = Path(__file__).parents[2] / "src" / "tokenlight"
MODULES = sorted(SOURCE.rglob("*.py"))
SCRIPTS = sorted(SOURCE.rglob("*.js"))
IMPORT_OF_A_TEST_MODULE = re.compile(
    r"\btests\.[\w.]*\b(?:test_|conftest)|from\s+tests[\w.]*\s+import\s[\s\w,(]*\b(?:test_|conftest)"
)


def find_package(path: Path) -> str:
    """Return the package of a module, or the module's own name where it is in none."""
    name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "cli" if name == "__main__" else name


def list_test_modules_imported(path: Path) -> list[str]:
    """Return the test modules and conftests that a file imports from, as dotted names."""
    code = path.read_text(encoding="utf-8")
    if not IMPORT_OF_A_TEST_MODULE.search(code):
        return []  # parsing every file takes seconds
    dotted_names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            dotted_names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dotted_names += [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return [
        name
        for name in dotted_names
        if name.startswith("tests.")
        and any(part.startswith("test_") or part == "conftest" for part in name.split("."))
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_only_to_lower_rows(path):
    package = find_package(path)
    assert package in RANKS, f"{package} has no place: give it one in ROWS"
    assert find_upward_imports(package, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("package", "code", "expected"),
    [
        ("data", "import tokenlight.web.app", ["web"]),
        ("data", "from tokenlight import explainer", ["explainer"]),
        ("data", "from tokenlight.plots.html import render_page", ["plots"]),
        ("data", "def show():\n    from tokenlight.plots.html import render_page", []),
        ("web", "from tokenlight.plots.html import render_page", []),
        ("methods", "from tokenlight.plugin import Method", []),
        ("trace", "from tokenlight.plugin import Method", ["plugin"]),
    ],
)
def test_an_import_from_a_higher_row_is_noticed(package, code, expected):
    assert find_upward_imports(package, code) == expected


def test_methods_and_metrics_import_from_plugin_what_it_offers():
    offered = set(plugin.__all__)
    misplaced = {}
    for path in [*SOURCE.glob("methods/[!_]*.py"), *SOURCE.glob("metrics/[!_]*.py")]:
        # The base classes are what plugin itself imports.
        if path.stem == "base":
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module != "tokenlight.plugin":
                names = offered.intersection(alias.name for alias in node.names)
                if names:
                    misplaced[f"{path.parent.name}/{path.name}:{node.lineno}"] = sorted(names)
    assert misplaced == {}


def test_there_are_at_most_eighteen_rows_and_every_part_has_a_place():
    parts = {find_package(path) for path in MODULES}
    assert len(ROWS) <= 18
    assert parts == set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_has_a_docstring_and_fewer_than_six_hundred_lines(path):
    text = path.read_text()
    assert text.count("\n") < 600
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_line_of_a_script_is_longer_than_110_characters(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    long_lines = [number for number, line in enumerate(lines, 1) if len(line) > 110]
    assert long_lines == []


def test_no_file_imports_from_a_test_module():
    """What several test modules share is in ``tests/helpers``: a test module can change without a search."""
    repository = SOURCE.parents[1]
    folders = ("src", "tests", "benchmarks", "training", "examples", "docs")
    paths = [path for folder in folders for path in sorted((repository / folder).rglob("*.py"))]
    imports = {path: list_test_modules_imported(path) for path in paths}
    assert len(imports) > 600
    assert {str(path): names for path, names in imports.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "from tests.unit.test_explainer import TEXT",
        "from tests.unit import test_explainer",
        "import tests.browser.conftest",
        "def load():\n    from tests.browser.conftest import TEXT",
        "from tests.unit import (\n    helpers as other,\n    test_explainer,\n)",
    ],
)
def test_an_import_from_a_test_module_is_noticed(code, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f"import os\nfrom tests.helpers.tiny import tiny_bert\n{code}\n")
    assert len(list_test_modules_imported(path)) == 1


def test_modules_that_tests_declare_to_cover_exist():
    declared = {name for path in list_test_files() for name in read_declaration(path)}
    assert declared
    assert declared <= set(list_modules())


def test_only_the_module_of_padding_rounds_widths():
    """Whoever rounded a width elsewhere would decide it a second time."""
    rounding = re.compile(r"\bround_up\b|\bpadding_multiple\b|\bREPLAYED_WIDTH_STEP\b")
    found = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        if rounding.search(path.read_text(encoding="utf-8"))
    }
    # The runner only offers the multiple that padding.py chooses.
    assert found == {"model/padding.py", "model/runner.py"}
    runner_source = (SOURCE / "model" / "runner.py").read_text(encoding="utf-8")
    assert rounding.findall(runner_source) == ["padding_multiple"]


def test_nothing_that_can_run_code_is_opened():
    for path in MODULES:
        for word in ("pickle.load", "torch.load", "allow_pickle=True", "eval(", "exec("):
            lines = [line for line in path.read_text().splitlines() if word in line]
            lines = [line for line in lines if ".eval(" not in line and "_exec(" not in line]
            assert not lines, f"{path}: {lines[0]}"


def run_in_a_new_process(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_anything_optional():
    heavy = [
        "torch",
        "transformers",
        "numpy",
        "typer",
        "rich",
        "matplotlib",
        "pandas",
        "scipy",
        "captum",
        "jinja2",
    ]
    code = f"import tokenlight, sys; print([n for n in {heavy} if n in sys.modules])"
    assert run_in_a_new_process(code) == "[]"


def test_explaining_needs_only_the_tiny_core():
    """No optional library is imported by an explanation and its JSON file."""
    optional = [
        "typer",
        "rich",
        "matplotlib",
        "pandas",
        "scipy",
        "captum",
        "jinja2",
        "pyarrow",
        "sklearn",
    ]
    code = (
        "import sys\n"
        f"for name in {optional}: sys.modules[name] = None\n"
        "sys.path.insert(0, '.')\n"
        "from tests.helpers.tiny import tiny_bert, tiny_tokenizer\n"
        "from tokenlight import Explainer\n"
        "a = Explainer(tiny_bert(), tiny_tokenizer()).explain('good film', 'attcat')\n"
        "print(len(a.scores), bool(a.to_dict()))"
    )
    assert run_in_a_new_process(code) == "4 True"


def test_public_names_are_what_can_be_imported():
    import tokenlight

    for name in tokenlight.__all__:
        assert getattr(tokenlight, name) is not None
    assert set(tokenlight.__all__) <= set(dir(tokenlight))
    assert len(tokenlight.__all__) <= 16
    with pytest.raises(AttributeError, match="no attribute 'Explainr'"):
        _ = tokenlight.Explainr
