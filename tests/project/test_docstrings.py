"""Docstrings of public names are complete, and what any docstring documents is what the code takes."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenlight import registry

SOURCE = Path(__file__).parents[2] / "src" / "tokenlight"
PUBLIC_MODULES = (
    "tokenlight",
    "tokenlight.plugin",
    "tokenlight.postprocess",
    "tokenlight.trust",
)
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Note")


def list_public_callables() -> dict[str, Any]:
    """Return the names that ``__all__`` of a public module lists, and the methods of its classes."""
    found = {}
    for module_name in PUBLIC_MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
                found |= list_methods(value)
            elif inspect.isfunction(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def list_methods(cls: type) -> dict[str, Any]:
    """Return the public methods of a class that this package defines, inherited ones included."""
    methods = {}
    for owner in cls.__mro__:
        if not owner.__module__.startswith("tokenlight."):
            continue
        for name, method in vars(owner).items():
            function = getattr(method, "__func__", method)  # of a class method or a static method
            if inspect.isfunction(function) and not name.startswith("_"):
                methods[f"{owner.__module__}.{owner.__qualname__}.{name}"] = function
    return methods


PUBLIC_CALLABLES = list_public_callables()


def split_sections(docstring: str) -> dict[str, str]:
    """Return the text of each section of a Google-style docstring."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def list_described_names(section: str) -> list[str]:
    """Return the names that ``Args`` or ``Attributes`` describe; one line may describe several."""
    names = []
    for line in re.findall(r"^ {4}(\S[^:]*):", section, re.MULTILINE):
        names += [name.strip("*` ") for name in line.split(",")]
    return names


@pytest.mark.parametrize("name", list(PUBLIC_CALLABLES))
def test_a_public_name_documents_arguments_result_and_an_example(name):
    value = PUBLIC_CALLABLES[name]
    is_class = inspect.isclass(value)
    sections = split_sections(value.__doc__ or "")
    needed = {"Example"}
    # An enumeration and an error take what their base class takes.
    takes_own_arguments = not (is_class and issubclass(value, enum.Enum | Exception))
    if takes_own_arguments and set(inspect.signature(value).parameters) - {"self", "cls"}:
        needed.add("Attributes" if "Attributes" in sections else "Args")
    if not is_class and inspect.signature(value).return_annotation not in (None, "None"):
        needed.add("Yields" if "Yields" in sections else "Returns")
    assert needed <= set(sections)
    assert ">>>" in sections["Example"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("methods", "metrics") for name in registry.list_names(kind)],
)
def test_every_option_of_a_method_or_metric_is_described(kind, name):
    cls = registry.load_class(kind, name)
    described = set()
    for owner in cls.__mro__:
        for title, section in split_sections(vars(owner).get("__doc__") or "").items():
            if title in {"Args", "Attributes"}:
                described.update(list_described_names(section))
    options = {field.name for field in dataclasses.fields(cls) if field.init}
    assert options <= described


def list_documented_functions() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Yield every function of the package whose docstring has ``Args``."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            sections = split_sections(ast.get_docstring(node) or "")
            if "Args" in sections:
                yield f"{path.relative_to(SOURCE)}:{node.name}", node, sections["Args"]


def test_args_describe_exactly_the_parameters():
    differences = {}
    for location, node, section in list_documented_functions():
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        optional = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        parameters = {argument.arg for argument in [*plain, *optional]} - {"self", "cls"}
        described = set(list_described_names(section))
        if described != parameters:
            differences[location] = sorted(described ^ parameters)
    assert differences == {}


def test_attributes_describe_exactly_the_fields_of_a_dataclass():
    differences = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or "dataclass" not in ast.dump(
                ast.Module(node.decorator_list, [])
            ):
                continue
            sections = split_sections(ast.get_docstring(node) or "")
            if "Attributes" not in sections:
                continue
            described = list_described_names(sections["Attributes"])
            # What a caller passes may stand apart from what changes while the object is used.
            described += list_described_names(sections.get("Args", ""))
            fields = [
                statement.target.id
                for statement in node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            ]
            missing = [field for field in fields if field not in described]
            public = [field for field in missing if not field.startswith("_")]
            if public:
                differences[f"{path.relative_to(SOURCE)}:{node.name}"] = public
    assert differences == {}
