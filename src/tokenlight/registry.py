"""Names to objects: a file ``methods/rollout.py`` *is* the method ``rollout``, nothing else registers it.

Outside packages enter by the entry points ``tokenlight.methods`` and ``tokenlight.metrics``.
Options are the fields of the frozen dataclass found there, so this module can check them.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import types
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tokenlight.errors import BadInput, UnknownName

Kind = Literal["methods", "metrics"]


@cache
def _modules(kind: Kind) -> dict[str, str]:
    """Name to import path, without importing any of them (the command line's --help reads this)."""
    package = importlib.import_module(f"tokenlight.{kind}")
    own = {
        module.name: f"tokenlight.{kind}.{module.name}"
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    return own | {entry.name: entry.value for entry in entry_points(group=f"tokenlight.{kind}")}


def names(kind: Kind) -> list[str]:
    """All registered names of one kind, sorted."""
    return sorted(_modules(kind))


@cache
def find(kind: Kind, name: str) -> type:
    """The class behind ``name``."""
    modules = _modules(kind)
    if name not in modules:
        raise UnknownName.among(kind[:-1], name, modules)
    path, _, attribute = modules[name].partition(":")
    found = getattr(importlib.import_module(path), attribute or kind[:-1].upper())
    assert isinstance(found, type)
    return found


def build(kind: Kind, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """An instance with checked options; ``preset`` expands first, explicit options win over it."""
    cls = find(kind, name)
    given = dict(options or {})
    settings: dict[str, Any] = {}
    if "preset" in given:
        presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
        preset = given.pop("preset")
        if preset not in presets:
            raise UnknownName.among(f"preset of {name}", preset, presets)
        settings |= presets[preset]
    settings |= given
    hints = get_type_hints(cls) if settings else {}  # slow: it compiles every hint
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    for option in settings:
        if option not in fields:
            raise UnknownName.among(f"option of {kind[:-1]} {name}", option, fields | {"preset"})
    checked = {
        option: _fit(name, option, value, hints[option]) for option, value in settings.items()
    }
    return cls(**checked)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """``"attcat:hidden=output,attn_reduce=cls"`` as ``("attcat", {"hidden": "output", …})``."""
    name, _, tail = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, tail.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise BadInput(
                f"cannot read {part!r} in {text!r}: an option is written name=value, "
                f"for example {name}:{option}=…"
            )
        options[option.strip()] = value.strip()
    return name.strip(), options


def options_of(kind: Kind, name: str) -> dict[str, tuple[str, Any]]:
    """Option name to (type in words, default)."""
    cls = find(kind, name)
    hints = get_type_hints(cls)
    return {
        field.name: (_in_words(hints[field.name]), _default(field))
        for field in dataclasses.fields(cls)
        if field.init
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(_in_words(part) for part in get_args(hint))
    if hint is type(None):
        return "None"
    return getattr(hint, "__name__", str(hint))


def _fit(name: str, option: str, value: Any, hint: Any) -> Any:
    """``value`` as the option's type wants it; text from a command line is read as that type."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        fitted, ok = _fit_one(value, kind)
        if ok:
            return fitted
    raise BadInput(f"option {option}={value!r} of {name} cannot be: it takes {_in_words(hint)}.")


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_READERS: dict[type, Callable[[str], Any]] = {
    bool: lambda text: _WORDS[text.lower()],
    int: int,
    float: float,
    str: str,
}


def _fit_one(value: Any, kind: Any) -> tuple[Any, bool]:
    plain = get_origin(kind) or kind
    if plain is Literal:
        matches = [c for c in get_args(kind) if c == value or str(c) == str(value)]
        return (matches[0], True) if matches else (None, False)
    if plain is type(None):
        return None, value is None or value == "none"
    if plain is Any or _is_a(value, plain):
        return value, True
    if plain is float and _is_a(value, int):
        return float(value), True
    return _read(value, plain)


def _is_a(value: Any, plain: type) -> bool:
    # True is an int to Python; as an option it is not.
    return isinstance(value, plain) and not (isinstance(value, bool) and plain is not bool)


def _read(value: Any, plain: type) -> tuple[Any, bool]:
    if not isinstance(value, str) or plain not in _READERS:
        return None, False
    try:
        return _READERS[plain](value), True
    except (ValueError, KeyError):
        return None, False
