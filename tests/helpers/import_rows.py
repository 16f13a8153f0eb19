"""The rows of packages along which imports point one way, and the exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Lowest row first. A module may import its own folder and the rows below it;
# imports for type checkers and inside functions count. docs/architecture.md draws it, and
# ``python -m tests.tools.generated_tables`` prints it into CONTRIBUTING.md.
ROWS = [
    ("facts", "errors", "version", "progress"),
    ("plain values, and names of methods", "data", "registry"),
    ("user input", "files", "inputs"),
    ("CUDA graphs, kernels, transfers", "accel"),
    ("relevance as a second backward; traces modules while they run", "lrp"),
    ("hooks and patches of a live model, and its locks", "hooks"),
    ("what a model is: layout, head, inputs", "model"),
    ("perturbed inputs, and the passes over them", "perturb"),
    ("what is recorded of a pass: sites, recording, tape", "trace"),
    ("head statistics; embedded models and loading", "attention_heads", "models"),
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
# Packages whose methods may import from a higher row when they are called, as
# attribution.show(), attribution.save(), evaluation.save(), explainer.evaluate(), explainer.make_mapper() do.
IMPORTED_WHEN_CALLED = {
    ("data", "files"), ("data", "plots"), ("data", "evaluation"), ("files", "plots"),
    ("explainer", "evaluation"), ("explainer", "scale"),
}  # fmt: skip
# Packages that may import from a higher row for type checkers, to name what such a method returns: a Protocol
# in a lower row would repeat the class, and users could not annotate with it.
IMPORTED_FOR_TYPES = {("explainer", "evaluation"), ("explainer", "scale")}
# A method or metric may have the imports of one in a separate package, as in the recipes of CONTRIBUTING.md;
# ``plugin`` only passes names on, so that no import becomes circular.
IMPORTED_BY_RECIPES = {("methods", "plugin"), ("metrics", "plugin")}


def list_allowed_exceptions(node: ast.AST) -> set[tuple[str, str]]:
    """Return the imports from a higher row that are allowed inside a node."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return IMPORTED_WHEN_CALLED
    is_for_type_checkers = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return IMPORTED_FOR_TYPES if is_for_type_checkers else set()


def list_package_imports(tree: ast.AST) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """Yield every package of tokenlight that a file imports, with the exceptions that are allowed there."""
    exceptions = {}
    for node in ast.walk(tree):
        if allowed := list_allowed_exceptions(node):
            exceptions |= dict.fromkeys(ast.walk(node), allowed)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tokenlight":
            package = (node.module or "").removeprefix("tokenlight").lstrip(".").split(".")[0]
            for name in [package] if package else [alias.name for alias in node.names]:
                yield name, exceptions.get(node, set())
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tokenlight."):
                    yield alias.name.split(".")[1], exceptions.get(node, set())


def find_upward_imports(package: str, code: str) -> list[str]:
    """Return the packages of higher rows that a module of ``package`` imports against the rules."""
    upward_imports = []
    for other, exceptions in list_package_imports(ast.parse(code)):
        is_allowed = (package, other) in exceptions | IMPORTED_BY_RECIPES
        if (
            other != package
            and other in RANKS
            and not is_allowed
            and RANKS[other] >= RANKS[package]
        ):
            upward_imports.append(other)
    return upward_imports
