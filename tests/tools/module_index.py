"""Which test files test which module: by declaration and by name, else by what they import.

A file that tests a module of another name declares it: ``COVERED_MODULES = ("explaining/windows",)``.

``tests/unit/TEST_INDEX.md`` holds the answer, and ``make test-for`` reads it there.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tokenlight"
TESTS = ROOT / "tests"
# Methods and metrics are reached by their name in the registry: these tests name them in quotes.
REGISTERED = ("methods", "metrics")
TESTS_BY_REGISTERED_NAME = ("unit/methods", "unit/metrics", "twins", "golden", "contract")


class ModuleTests(NamedTuple):
    """The test files of one module, and what they were found by."""

    found_by: str
    paths: list[Path]


@cache
def list_modules() -> dict[str, Path]:
    """Return every module by its name under ``tokenlight``, as ``package/module``."""
    modules = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.stem.startswith("__"):
            modules[path.relative_to(SOURCE).with_suffix("").as_posix()] = path
    return modules


@cache
def list_stems() -> dict[str, set[str]]:
    """Return the names of the modules of each package, without leading underscores."""
    stems_by_package: dict[str, set[str]] = {}
    for name in list_modules():
        path = Path(name)
        stems_by_package.setdefault(path.parent.as_posix(), set()).add(path.name.lstrip("_"))
    return stems_by_package


@cache
def read_registered_name_tests() -> dict[Path, str]:
    """Return the content of the test files that name methods and metrics in quotes."""
    contents = {}
    for folder in TESTS_BY_REGISTERED_NAME:
        for path in sorted((TESTS / folder).glob("test_*.py")):
            contents[path] = path.read_text(encoding="utf-8")
    return contents


@cache
def list_test_files() -> list[Path]:
    return sorted(TESTS.rglob("test_*.py"))


@cache
def find_imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, wherever in it the import stands."""
    dotted_names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            dotted_names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            dotted_names.add(node.module)
            dotted_names.update(f"{node.module}.{alias.name}" for alias in node.names)
    names = {name.removeprefix("tokenlight.").replace(".", "/") for name in dotted_names}
    return frozenset(names & set(list_modules()))


def is_named_after(test_stem: str, stem: str) -> bool:
    return test_stem == f"test_{stem}" or test_stem.startswith(f"test_{stem}_")


def find_by_name(module: str) -> list[Path]:
    """Return ``tests/unit/<package>/test_<module>*.py``, and all of ``tests/unit/<package>/<module>/``.

    A file belongs to the longest name that fits: ``test_picture_prompt.py`` is of ``picture_prompt``,
    not of ``picture``. In a folder within a package, a module shares the files of that folder.
    """
    package = Path(module).parent
    stem = Path(module).name.lstrip("_")
    siblings = list_stems()[package.as_posix()]
    folder = TESTS / "unit" / package
    if not folder.is_dir():
        stem = folder.name
        folder = folder.parent
        siblings = set()
    paths = []
    for path in sorted(folder.glob("test_*.py")):
        owners = [name for name in {*siblings, stem} if is_named_after(path.stem, name)]
        if owners and max(owners, key=len) == stem:
            paths.append(path)
    return paths + sorted((TESTS / "unit" / module).glob("test_*.py"))


def find_by_import(module: str) -> list[Path]:
    """Return the tests that import a module: those of its package, or, without any, all others."""
    paths = [path for path in list_test_files() if module in find_imports(path)]
    folder = TESTS / "unit" / Path(module).parent
    in_package = [path for path in paths if path.parent == folder and module.count("/")]
    return in_package or paths


def find_by_registered_name(module: str) -> list[Path]:
    package, _, name = module.partition("/")
    if package not in REGISTERED or name.startswith("_"):
        return []
    return [
        path for path, content in read_registered_name_tests().items() if f'"{name}"' in content
    ]


@cache
def read_declaration(path: Path) -> tuple[str, ...]:
    """Return ``COVERED_MODULES`` of a test file: modules that it tests although its name does not say so."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COVERED_MODULES":
            return ast.literal_eval(node.value)
    return ()


def find_by_declaration(module: str) -> list[Path]:
    return [path for path in list_test_files() if module in read_declaration(path)]


def find_direct_tests(module: str) -> ModuleTests | None:
    """Return the tests that name a module; without any, those that import it."""
    searches = {
        "declaration": find_by_declaration,
        "name": find_by_name,
        "name in the registry": find_by_registered_name,
    }
    paths_by_search = {found_by: search(module) for found_by, search in searches.items()}
    if not any(paths_by_search.values()):
        paths_by_search = {"import": find_by_import(module)}
    paths = {path for paths in paths_by_search.values() for path in paths}
    if not paths:
        return None
    found_by = ", ".join(name for name, paths in paths_by_search.items() if paths)
    return ModuleTests(found_by, sorted(paths))


def find_users(module: str) -> list[str]:
    """Return the modules that import a module: those of its package, or, without any, all others."""
    users = [name for name, path in list_modules().items() if module in find_imports(path)]
    in_package = [name for name in users if Path(name).parent == Path(module).parent]
    return in_package or users


def find_tests(module: str) -> ModuleTests:
    """Return the tests of a module, else of the nearest modules that use it, else of its package."""
    direct_tests = find_direct_tests(module)
    if direct_tests:
        return direct_tests
    visited = {module}
    layer = [module]
    while layer:
        users = {user for name in layer for user in find_users(name)} - visited
        tests_by_user = {user: find_direct_tests(user) for user in sorted(users)}
        tested = {user: tests for user, tests in tests_by_user.items() if tests}
        if tested:
            paths = sorted({path for tests in tested.values() for path in tests.paths})
            return ModuleTests(f"use in {', '.join(f'`{user}`' for user in tested)}", paths)
        visited |= users
        layer = sorted(users)
    return ModuleTests("package", [TESTS / "unit" / Path(module).parent])


def module_table() -> str:
    """Make the table from modules to test files."""
    lines = ["| module | found by | test files |", "|---|---|---|"]
    for module in list_modules():
        tests = find_tests(module)
        paths = " ".join(f"`{path.relative_to(ROOT).as_posix()}`" for path in tests.paths)
        lines.append(f"| `{module}` | {tests.found_by} | {paths} |")
    return "\n".join(lines)
