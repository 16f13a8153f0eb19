"""The house: imports point one way, modules stay small, nothing unsafe is opened."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.module_index import list_modules, list_test_files, read_declaration

SOURCE = Path(__file__).parents[2] / "src" / "tokenlight"
MODULES = sorted(SOURCE.rglob("*.py"))
# The plan of the house, lowest row first. A module may import its own folder and the rows below it;
# imports for type checkers and inside functions count. docs/architecture.md draws it, and
# ``python -m tests.tools.generated_tables`` prints it into CONTRIBUTING.md.
ROWS = [
    ("facts", "errors", "version", "progress"),
    ("plain values, and names of methods", "data", "registry"),
    ("what a person gives", "files", "inputs"),
    ("CUDA graphs, kernels, transfers", "accel"),
    ("relevance as a second backward; traces modules while they run", "lrp"),
    ("hooks and patches of a live model, and its locks", "hooks"),
    ("what a model is: layout, head, inputs", "model"),
    ("perturbed inputs, and the passes over them", "perturb"),
    ("what is recorded of a pass: sites, recording, tape", "trace"),
    ("head statistics; embedded models and loading", "heads", "models"),
    ("one file, one idea", "methods", "metrics"),
    ("one call of explain(); pictures; what authors import", "explaining", "plots", "plugin"),
    ("the object users meet", "explainer"),
    (
        "measured: faithfulness, trust, comparison; many texts, by many workers",
        "evaluation",
        "scale",
    ),
    ("the papers' tables", "bench"),
    ("the page", "web"),
    (
        "the command line, and names for users",
        "cli",
        "__init__",
        "trust",
        "postprocess",
        "datafiles",
    ),
]
RANKS = {name: rank for rank, (_, *names) in enumerate(ROWS) for name in names}
# A value that a user holds hands such a call on to what stands above it, imported when called:
# attribution.show(), attribution.save(), evaluation.save(), explainer.evaluate(), explainer.mapper().
HANDED_ON = {
    ("data", "files"), ("data", "plots"), ("data", "evaluation"), ("files", "plots"),
    ("explainer", "evaluation"), ("explainer", "scale"),
}  # fmt: skip
# What such a call gives back may be named for type checkers: a Protocol below would be a second writing
# of the class, and nobody could annotate with it.
HANDED_BACK = {("explainer", "evaluation"), ("explainer", "scale")}


def part(path: Path) -> str:
    name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "cli" if name == "__main__" else name


def upwards(node: ast.AST) -> set[tuple[str, str]]:
    """The imports from above that may stand inside a node."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return HANDED_ON
    for_checkers = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return HANDED_BACK if for_checkers else set()


def imports(tree: ast.AST):
    """Every part of tokenlight imported anywhere in a file, and what may be imported there from above."""
    allowed = {
        inner: upwards(node) for node in ast.walk(tree) if upwards(node) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tokenlight":
            inside = (node.module or "").removeprefix("tokenlight").lstrip(".").split(".")[0]
            for name in [inside] if inside else [alias.name for alias in node.names]:
                yield name, allowed.get(node, set())
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tokenlight."):
                    yield alias.name.split(".")[1], allowed.get(node, set())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_only_to_lower_rows(path):
    package = part(path)
    assert package in RANKS, f"{package} has no place: give it one in ROWS"
    for other, allowed in imports(ast.parse(path.read_text())):
        if other == package or other not in RANKS or (package, other) in allowed:
            continue
        assert RANKS[other] < RANKS[package], (
            f"{path.name} ({package}) imports {other}, which stands above"
        )


def test_there_are_at_most_eighteen_rows_and_every_part_has_a_place():
    parts = {part(path) for path in MODULES}
    assert len(ROWS) <= 18
    assert parts == set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_has_a_docstring_and_fewer_than_five_hundred_lines(path):
    text = path.read_text()
    assert text.count("\n") < 500
    assert ast.get_docstring(ast.parse(text))


def test_modules_that_tests_declare_to_cover_exist():
    declared = {name for path in list_test_files() for name in read_declaration(path)}
    assert declared
    assert declared <= set(list_modules())


def test_nothing_that_can_run_code_is_opened():
    for path in MODULES:
        for word in ("pickle.load", "torch.load", "allow_pickle=True", "eval(", "exec("):
            lines = [line for line in path.read_text().splitlines() if word in line]
            lines = [line for line in lines if ".eval(" not in line and "_exec(" not in line]
            assert not lines, f"{path}: {lines[0]}"


def in_a_new_process(code: str) -> str:
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
    assert in_a_new_process(code) == "[]"


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
    assert in_a_new_process(code) == "4 True"


def test_public_names_are_what_can_be_imported():
    import tokenlight

    for name in tokenlight.__all__:
        assert getattr(tokenlight, name) is not None
    assert set(tokenlight.__all__) <= set(dir(tokenlight))
    assert len(tokenlight.__all__) <= 16
    with pytest.raises(AttributeError, match="no attribute 'Explainr'"):
        _ = tokenlight.Explainr
