"""The house: imports point one way, modules stay small, nothing unsafe is opened."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tokenlight"
MODULES = sorted(SOURCE.rglob("*.py"))
# A module may import what has a lower rank, or its own folder. docs/adr tells why.
RANKS = {
    "errors": 0, "version": 0, "wording": 0, "progress": 0, "registry": 1, "late": 1, "models": 1,
    "tokens": 1, "tokenizing": 1, "vocabulary": 1.2, "answers": 1.5, "columns": 1.5, "segments": 1.5,
    "sentences": 1.5, "cutting": 1.5, "marks": 1.5, "encoding": 2, "pictures": 2, "documents": 0.5,
    "target": 2, "datafiles": 2, "relevance": 2, "prompt": 3, "attribution": 3,
    "postprocess": 4, "corpus": 4, "capture": 5, "heads": 6, "methods": 7, "metrics": 7, "plots": 8,
    "loading": 8, "asked": 8, "given_ids": 8, "reading": 9, "windows": 10, "likeness": 10, "batch": 10,
    "streaming": 10, "explainer": 11, "evaluation": 12, "health": 13, "trust": 14, "bench": 15, "web": 16,
    "cli": 17, "__init__": 18, "__main__": 18,
}  # fmt: skip
# The object users meet hands such calls on to what stands above it, imported when called.
HANDED_ON = {("explainer", "evaluation")}


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST):
    """Every tokenlight module imported anywhere in a file, those for type checkers aside."""
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokenlight"):
            inside = (node.module or "").removeprefix("tokenlight").lstrip(".").split(".")[0]
            yield from [inside] if inside else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tokenlight."):
                    yield alias.name.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_only_to_lower_ranks(path):
    own = part(path)
    assert own in RANKS, f"{own} has no rank: give it a place in the house"
    for other in imports(ast.parse(path.read_text())):
        if other == own or (own, other) in HANDED_ON:
            continue
        assert RANKS[other] < RANKS[own], f"{path.name} ({own}) imports {other}, which stands above"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_stays_under_four_hundred_lines_and_says_what_it_is(path):
    text = path.read_text()
    assert text.count("\n") < 400
    assert ast.get_docstring(ast.parse(text))


def test_nothing_that_can_run_code_is_opened():
    for path in MODULES:
        for word in ("pickle.load", "torch.load", "allow_pickle=True", "eval(", "exec("):
            lines = [line for line in path.read_text().splitlines() if word in line]
            lines = [line for line in lines if ".eval(" not in line and "_exec(" not in line]
            assert not lines, f"{path}: {lines[0]}"


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


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
        "from tests.tiny import tiny_bert, tiny_tokenizer\n"
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
