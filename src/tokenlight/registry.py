"""Names to objects: a file ``methods/rollout.py`` *is* the method ``rollout``, nothing else registers it.

Outside packages enter by the entry points ``tokenlight.methods`` and ``tokenlight.metrics``.
Options are the fields of the frozen dataclass found there, so this module can check them.
"""

import dataclasses
import importlib
import pkgutil
import types
import typing
from collections import namedtuple
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal, Union, dataclass_transform, get_args, get_origin

from tokenlight.errors import BadInput, BrokenPlugin, UnknownName

Kind = Literal["methods", "metrics"]
_hints = cache(typing.get_type_hints)  # slow: it compiles every hint
Range = namedtuple("Range", "low high")  # in an option's type: its number lies there, ends included
Count = Annotated[int, Range(1, 1 << 20)]  # more samples or steps would take for ever
Share = Annotated[float, Range(0, 1)]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Registered:
    """What a method and a metric have in common. Subclasses are frozen dataclasses whose fields are
    the options; ``base``: this one only says what options its own subclasses have."""

    def __init_subclass__(cls, *, base: bool = False) -> None:
        super().__init_subclass__()
        written = vars(cls)
        if base or "__dataclass_fields__" in written:
            return
        # A class of another package may have the decorator, too: what it reads is put back.
        fields = {n: v for n, v in written.items() if isinstance(v, dataclasses.Field)}
        dataclasses.dataclass(frozen=True)(cls)
        for name in ("__setattr__", "__delattr__"):
            delattr(cls, name)
        for name, value in fields.items():
            setattr(cls, name, value)

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for option, (low, high) in _ranges(cls).items():
            value = getattr(self, option)
            if isinstance(value, int | float) and not low <= value <= high:
                given = f"option {option}={value} of {self.name}"
                raise BadInput(f"{given} cannot be: give {low} to {high:,}.")

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    @property
    def name(self) -> str:
        """The registry key: the file's name."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def options(self) -> dict[str, Any]:
        """Options that differ from their defaults, as JSON values."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        chosen = ((field, getattr(self, field.name)) for field in fields)
        return {field.name: value for field, value in chosen if value != field.default}


@cache
def _ranges(cls: Any) -> dict[str, Range]:
    """The ranges of a class's options; a union may hold one, too."""
    return {
        field.name: found
        for field in dataclasses.fields(cls)
        for hint in (field.type, *get_args(field.type))
        for found in getattr(hint, "__metadata__", ())
        if isinstance(found, Range)
    }


@cache
def _modules(kind: Kind) -> dict[str, EntryPoint]:
    """Name to place, without importing any of them (the command line's --help reads this)."""
    package, group = importlib.import_module(f"tokenlight.{kind}"), f"tokenlight.{kind}"
    files = (file.name for file in pkgutil.iter_modules(package.__path__) if file.name[0] != "_")
    own = {name: EntryPoint(name, f"{group}.{name}", group) for name in files}
    return own | {entry.name: entry for entry in entry_points(group=group)}


# What people type, and the method it is here.
ALIASES = {
    "ig": "integrated_gradients",
    "leave_one_out": "occlusion",
    "gradient_x_input": "grad_x_input",
    "lrp_eps": "lrp",
    "shap": "shapley",
    "attention": "raw_att",
}


def names(kind: Kind) -> list[str]:
    """All registered names of one kind, sorted."""
    return sorted(_modules(kind))


def usable(kind: Kind) -> list[str]:
    """The names whose classes can be loaded: all but those of broken plug-ins. Imports them all."""
    return [name for name in names(kind) if has(kind, name)]


def has(kind: Kind, name: str) -> bool:
    """Whether ``name`` is known here and can be loaded: a file may come from another machine."""
    return name in names(kind) and trouble(kind, name) is None


def trouble(kind: Kind, name: str) -> str | None:
    """Why the class behind ``name``, which is registered, cannot be loaded; None where it can."""
    try:
        find(kind, name)
    except BrokenPlugin as broken:
        return str(broken)
    return None


@cache
def find(kind: Kind, name: str) -> Any:
    """The class behind ``name``."""
    modules = _modules(kind)
    if name not in modules:
        raise UnknownName.among(kind[:-1], name, modules)
    entry = modules[name]
    if entry.dist is None:  # our own
        return _class_of(kind, entry)
    package = f"the package {entry.dist.name!r}"
    said = f"the {kind[:-1]} {name!r} of {package} cannot be loaded from {entry.value!r}"
    try:
        found = _class_of(kind, entry)
    except Exception as broken:  # to import a stranger's module may raise anything
        raise BrokenPlugin(
            f"{said}: {type(broken).__name__}: {broken}. Install that package again, or remove it."
        ) from broken
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise BrokenPlugin(f"{said}: it is not a dataclass whose fields are the options.")
    return found


def _class_of(kind: Kind, entry: EntryPoint) -> Any:
    """What is named; of a module what it calls ``METHOD`` or ``METRIC``, else its one class of this kind."""
    found = entry.load()
    if not isinstance(found, types.ModuleType):
        return found
    written = (one for one in vars(found).values() if isinstance(one, type))
    own = [c for c in written if issubclass(c, Registered) and c.__module__ == found.__name__]
    named = getattr(found, kind[:-1].upper(), None)
    if named is None and len(own) != 1:
        raise LookupError(f"{found.__name__} has {len(own)} classes that could be the {kind[:-1]}")
    return named or own[0]


def presets_of(kind: Kind, name: str) -> dict[str, Mapping[str, Any]]:
    """Preset to its options; every method knows ``paper`` and ``official``, if only as its defaults."""
    known: dict[str, Mapping[str, Any]] = {"paper": {}, "official": {}} if kind == "methods" else {}
    return known | getattr(find(kind, name), "presets", {})


def spelled(name: str, options: Mapping[str, Any]) -> str:
    """A method or metric with its options in words."""
    chosen = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name}({chosen})" if chosen else name


def build(kind: Kind, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """An instance with checked options; ``preset`` expands first, explicit options win over it."""
    cls, settings = find(kind, name), dict(options or {})
    if "preset" in settings:
        presets, preset = presets_of(kind, name), settings.pop("preset")
        if not isinstance(preset, str) or preset not in presets:
            raise UnknownName.among(f"preset of {name}", preset, presets)
        settings = {**presets[preset], **settings}
    hints = _hints(cls) if settings else {}
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    for option, value in settings.items():
        if option not in fields:
            raise UnknownName.among(f"option of {kind[:-1]} {name}", option, fields | {"preset"})
        settings[option] = _fit(name, option, value, hints[option])
    return cls(**settings)


def asked(kind: Kind, entry: Any) -> tuple[str, dict[str, Any]]:
    """What Python asks for, a name as :func:`parse` reads it or a (name, options) pair, as such a pair."""
    match entry:
        case str():
            return parse(entry)
        case (str() as name, Mapping() as options):
            return ALIASES.get(name, name), dict(options)
    what, example = kind[:-1], names(kind)[0]
    raise BadInput(
        f"{str(entry)[:60]!r} ({type(entry).__name__}) is not a {what}: give a name, for example "
        f"{example!r}, a pair of name and options, ({example!r}, {{…}}), or a list of these."
    )


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """``"attcat:hidden=output,attn_reduce=cls"`` as ``("attcat", {"hidden": "output", …})``."""
    name, _, tail = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, tail.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise BadInput(f"cannot read {part!r} in {text!r}: an option is written name=value.")
        options[option.strip()] = value.strip()
    return ALIASES.get(name.strip(), name.strip()), options


def options_of(kind: Kind, name: str) -> dict[str, tuple[str, Any]]:
    """Option name to (type in words, default)."""
    cls = find(kind, name)
    hints, fields = _hints(cls), dataclasses.fields(cls)
    return {one.name: (_in_words(hints[one.name]), one.default) for one in fields if one.init}


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(_in_words(part) for part in get_args(hint))
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_READERS: dict[type, Callable[[str], Any]] = {
    types.NoneType: {"none": None}.__getitem__,
    bool: lambda text: _WORDS[text.lower()],
    int: int,
    float: float,
}


def _fit(name: str, option: str, value: Any, hint: Any) -> Any:
    """``value`` as the option's type wants it; text from a command line is read as that type."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()  # a number out of an array or a table is that number
    for kind in kinds:
        with suppress(ValueError, KeyError):
            return _as(value, kind)
    raise BadInput(f"option {option}={value!r} of {name} cannot be: it takes {_in_words(hint)}.")


def _as(value: Any, kind: Any) -> Any:
    """``value`` as one type; a ValueError or KeyError where it is none."""
    plain = get_origin(kind) or kind
    if plain is Literal:
        return {str(choice): choice for choice in get_args(kind)}[str(value)]
    if isinstance(value, str) and plain in _READERS:
        return _READERS[plain](value)
    if plain is float and type(value) is int:
        return float(value)
    # True is an int to Python, but no number that anyone means.
    if plain is Any or (isinstance(value, plain) and isinstance(value, bool) == (plain is bool)):
        return value
    raise ValueError(value)
