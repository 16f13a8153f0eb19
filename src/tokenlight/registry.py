"""The registry: names of methods and metrics, their classes, and their options.

A file ``methods/rollout.py`` is the method ``rollout``; nothing else registers it. Other packages add methods
and metrics by the entry points ``tokenlight.methods`` and ``tokenlight.metrics``. Options are the fields of
the frozen dataclass that is found there, so that this module can check them.
"""

import dataclasses
import importlib
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import (
    Any,
    Literal,
    NoReturn,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from tokenlight.errors import BadInput, BrokenPlugin, UnknownName
from tokenlight.errors.arguments import Range, check_fields, checked
from tokenlight.errors.method_names import (
    ALIASES,
    NAMES_IN_OTHER_LIBRARIES,
    OLD_OPTION_NAMES,
    OLD_OPTION_VALUES,
)

ComponentKind = Literal["methods", "metrics"]
_SINGULAR: dict[ComponentKind, str] = {"methods": "method", "metrics": "metric"}
_get_type_hints = cache(typing.get_type_hints)  # Cached, because it compiles every hint.


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Component:
    """Base class of methods and metrics.

    Subclasses become frozen dataclasses; their fields are the options.

    Args:
        abstract: In the class statement: the class only declares options of its own subclasses.

    Raises:
        BadInput: An option has a value of the wrong type or outside its range.
    """

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        namespace = vars(cls)
        if abstract or "__dataclass_fields__" in namespace:
            return
        # The class may have the decorator @dataclass as well: put back the fields that it will read.
        fields = {}
        for name, value in namespace.items():
            if isinstance(value, dataclasses.Field):
                fields[name] = value
        dataclasses.dataclass(frozen=True)(cls)
        # This class already has both, and the decorator would refuse to set them twice.
        for name in ("__setattr__", "__delattr__"):
            delattr(cls, name)
        for name, value in fields.items():
            setattr(cls, name, value)

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for option, (low, high) in _option_ranges(cls).items():
            value = getattr(self, option)
            if isinstance(value, int | float) and not low <= value <= high:
                raise BadInput(
                    f"Option {option}={value} of {self.name} is not valid. Give a number from {low} to "
                    f"{high:,}.",
                    code="option-out-of-range",
                )
        option_names = [field.name for field in dataclasses.fields(cls)]
        # Without names every annotation would be checked, those of class attributes included.
        if option_names:
            check_fields(self, *option_names)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    @property
    def name(self) -> str:
        """The registered name; the class name in snake case if it is not registered."""
        return find_registered_name(type(self)) or to_snake_case(type(self).__name__)

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as JSON values."""
        changed = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, field.name)
            if value != field.default:
                changed[field.name] = value
        return changed


@cache
def _option_ranges(cls: Any) -> dict[str, Range]:
    """Return the ranges of a class's options; a part of a union may have one, too."""
    ranges = {}
    for field in dataclasses.fields(cls):
        for hint in (field.type, *get_args(field.type)):
            for metadata in getattr(hint, "__metadata__", ()):
                if isinstance(metadata, Range):
                    ranges[field.name] = metadata
    return ranges


def _is_shared_module(name: str) -> bool:
    """Return whether a module holds a base class or helpers, and no method or metric of its own."""
    return name == "base" or name.startswith("_")


@cache
def _find_entries(kind: ComponentKind) -> dict[str, EntryPoint]:
    """Return the entry point of each name, without importing any: ``--help`` reads this."""
    group = f"tokenlight.{kind}"
    package = importlib.import_module(group)
    entries = {}
    for file in pkgutil.iter_modules(package.__path__):
        if not _is_shared_module(file.name):
            entries[file.name] = EntryPoint(file.name, f"{group}.{file.name}", group)
    for entry in entry_points(group=group):
        entries[entry.name] = entry
    return entries


def to_snake_case(name: str) -> str:
    """Convert a class name: ``TopOne`` to ``top_one``, ``LRPPlus`` to ``lrp_plus``."""
    boundaries = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(boundaries, "_", name).strip("_").lower() or name


def find_registered_name(cls: type) -> str | None:
    """Return the name under which ``cls`` is registered; None if it is not."""
    # The files of tokenlight itself are named by their methods.
    package, _, module_name = cls.__module__.rpartition(".")
    if package in ("tokenlight.methods", "tokenlight.metrics"):
        return module_name
    kinds: tuple[ComponentKind, ...] = ("methods", "metrics")
    for kind in kinds:
        for name, entry in _find_entries(kind).items():
            # Load only entries that name the module of the class.
            if entry.module != cls.__module__ or not is_available(kind, name):
                continue
            if load_class(kind, name) is cls:
                return name
    return None


@checked
def list_names(kind: ComponentKind) -> list[str]:
    """Return all registered names of one kind, sorted.

    Args:
        kind: ``"methods"`` or ``"metrics"``.

    Example:
        >>> from tokenlight import registry
        >>> "attcat" in registry.list_names("methods")
        True
    """
    return sorted(_find_entries(kind))


def list_loadable(kind: ComponentKind) -> list[str]:
    """Return the names that can be loaded: all but those of broken plug-ins. Imports them all."""
    return [name for name in list_names(kind) if is_available(kind, name)]


def is_available(kind: ComponentKind, name: str) -> bool:
    """Return whether ``name`` is registered and can be loaded.

    Neither is certain of a name in a saved file, which may come from another machine.
    """
    return name in list_names(kind) and get_loading_error(kind, name) is None


def get_loading_error(kind: ComponentKind, name: str) -> str | None:
    """Return why the class of a registered name cannot be loaded; None if it can."""
    try:
        load_class(kind, name)
    except BrokenPlugin as error:
        return str(error)
    return None


@cache
def load_class(kind: ComponentKind, name: str) -> Any:
    """Return the class of a registered name.

    Raises:
        UnknownName: There is no such name.
        BrokenPlugin: It belongs to another package, and cannot be imported or is not a dataclass.
    """
    entries = _find_entries(kind)
    if name not in entries:
        _refuse_unknown_name(kind, name)
    entry = entries[name]
    if entry.dist is None:  # part of tokenlight
        return _load_entry(kind, entry)
    try:
        cls = _load_entry(kind, entry)
    except Exception as error:  # importing another package may raise anything
        raise BrokenPlugin(
            f"The {_SINGULAR[kind]} {name!r} of the package {entry.dist.name!r} cannot be loaded from "
            f"{entry.value!r}: {type(error).__name__}: {error}. Install that package again, or remove it.",
            code="plugin-import-failed",
        ) from error
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise BrokenPlugin(
            f"The {_SINGULAR[kind]} {name!r} of the package {entry.dist.name!r} cannot be loaded from "
            f"{entry.value!r}: it is not a dataclass with the options as fields.",
            code="plugin-not-a-dataclass",
        )
    return cls


def _normalize_spelling(name: str) -> str:
    """Return a name in lower case without underscores, as which respelled names are equal."""
    return re.sub(r"[\W_]", "", name).lower()


def find_respelled_method(name: str) -> str | None:
    """Return the registered method that ``name`` also stands for, spelled otherwise or as an alias.

    Example:
        >>> from tokenlight.registry import find_respelled_method
        >>> find_respelled_method("att_cat"), find_respelled_method("shap"), find_respelled_method("top_one")
        ('attcat', 'shapley', None)
    """
    normalized = _normalize_spelling(name)
    for known_name in list_names("methods"):
        if _normalize_spelling(known_name) == normalized:
            return known_name
    for alias, known_name in ALIASES.items():
        if _normalize_spelling(alias) == normalized:
            return known_name
    return None


def _refuse_unknown_name(kind: ComponentKind, name: str) -> NoReturn:
    """Raise UnknownName for a name that is not registered, with a suggestion."""
    known = list_names(kind)
    normalized = _normalize_spelling(name)
    for known_name in known:
        if known_name.replace("_", "") == normalized:
            raise UnknownName(
                f"Unknown {_SINGULAR[kind]} {name!r}. Did you mean {known_name!r}? "
                f"Known: {', '.join(known)}.",
                code="name-spelled-differently",
            )
    for alias, method in ALIASES.items():
        if kind == "methods" and _normalize_spelling(alias) == normalized:
            raise UnknownName(
                f"Unknown method {name!r}. Did you mean {alias!r}, another name of {method!r}? "
                f"Known: {', '.join(known)}.",
                code="alias-spelled-differently",
            )
    if kind == "methods" and normalized in NAMES_IN_OTHER_LIBRARIES:
        our_name, meaning = NAMES_IN_OTHER_LIBRARIES[normalized]
        raise UnknownName(
            f"Unknown method {name!r}. Did you mean {our_name!r} ({meaning})? Known: {', '.join(known)}.",
            code="name-of-another-library",
        )
    raise UnknownName.from_choices(_SINGULAR[kind], name, known)


def _load_entry(kind: ComponentKind, entry: EntryPoint) -> Any:
    """Return what an entry point names; of a module its ``METHOD`` or ``METRIC``, or its only class."""
    loaded = entry.load()
    if not isinstance(loaded, types.ModuleType):
        return loaded
    # A module with several classes says which one is meant.
    declared = getattr(loaded, _SINGULAR[kind].upper(), None)
    if declared is not None:
        return declared
    classes = []
    for value in vars(loaded).values():
        is_component = isinstance(value, type) and issubclass(value, Component)
        if is_component and value.__module__ == loaded.__name__:
            classes.append(value)
    if len(classes) != 1:
        raise LookupError(
            f"{loaded.__name__} has {len(classes)} classes that could be the {_SINGULAR[kind]}"
        )
    return classes[0]


def get_presets(kind: ComponentKind, name: str) -> dict[str, Mapping[str, Any]]:
    """Return the options of each preset.

    Every method has ``paper`` and ``official``; they are its defaults if it does not declare them.
    """
    return _get_class_presets(kind, load_class(kind, name))


def _get_class_presets(kind: ComponentKind, cls: Any) -> dict[str, Mapping[str, Any]]:
    presets: dict[str, Mapping[str, Any]] = {}
    if kind == "methods":
        presets = {"paper": {}, "official": {}}
    return presets | getattr(cls, "presets", {})


def format_spec(name: str, options: Mapping[str, Any]) -> str:
    """Return the name of a method or metric with its options, such as ``lrp(epsilon=0.1)``."""
    assignments = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name}({assignments})" if assignments else name


@checked
def build(kind: ComponentKind, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Build a method or metric from its name and options.

    Args:
        kind: ``"methods"`` or ``"metrics"``.
        name: A registered name.
        options: Values by name. ``preset`` names a set of options; others take precedence over it.

    Returns:
        An instance, with its options checked and converted.

    Raises:
        UnknownName: There is no such name, option or preset.
        BadInput: An option has a value that is not valid.

    Example:
        >>> from tokenlight import registry
        >>> registry.build("methods", "integrated_gradients", {"num_steps": 8}).options
        {'num_steps': 8}
    """
    return build_class(kind, name, load_class(kind, name), options or {})


def build_class(
    kind: ComponentKind, name: str, component_class: Any, options: Mapping[str, Any]
) -> Any:
    """Build an instance of a class, which need not be registered, as :func:`build` does.

    Args:
        kind: ``"methods"`` or ``"metrics"``.
        name: What messages call it.
        component_class: The class.
        options: Values by name.
    """
    known_options = {field.name for field in dataclasses.fields(component_class) if field.init}
    settings = _read_old_spellings(options, known_options)
    if "preset" in settings:
        presets = _get_class_presets(kind, component_class)
        preset = settings.pop("preset")
        if not isinstance(preset, str) or preset not in presets:
            raise UnknownName.from_choices(f"preset of {name}", preset, presets)
        settings = {**presets[preset], **settings}
    # Type hints are slow to compile, and most calls set no option.
    hints = _get_type_hints(component_class) if settings else {}
    for option, value in settings.items():
        if option not in known_options:
            raise UnknownName.from_choices(
                f"option of {_SINGULAR[kind]} {name}", option, known_options | {"preset"}
            )
        settings[option] = _convert_option(name, option, value, hints[option])
    return component_class(**settings)


def resolve_spec(kind: ComponentKind, spec: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and options of a method or metric as users give it.

    Args:
        kind: ``"methods"`` or ``"metrics"``.
        spec: A name, maybe with options as in :func:`parse_spec`, or a (name, options) pair.

    Raises:
        BadInput: It is neither.
    """
    match spec:
        case str():
            return parse_spec(spec)
        case (str() as name, Mapping() as options):
            return ALIASES.get(name, name), dict(options)
    noun = _SINGULAR[kind]
    if isinstance(spec, type) and issubclass(spec, Component):
        raise BadInput(
            f"{spec.__name__} is a {noun} class, not a {noun} instance. Give {spec.__name__}().",
            code="class-instead-of-instance",
        )
    example = list_names(kind)[0]
    raise BadInput(
        f"{str(spec)[:60]!r} ({type(spec).__name__}) is not a {noun}. Give a name, for example "
        f"{example!r}, a pair of name and options, ({example!r}, {{…}}), or a list of these.",
        code="not-a-spec",
    )


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a name with options: ``"attcat:hidden=output"`` is ``("attcat", {"hidden": "output"})``.

    Raises:
        BadInput: An option is not written as ``name=value``.
    """
    name, _, option_text = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, option_text.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise BadInput(
                f"{part!r} in {text!r} is not an option. Write it as name=value.",
                code="option-without-value",
            )
        options[option.strip()] = value.strip()
    name = name.strip()
    return ALIASES.get(name, name), options


def _read_old_spellings(options: Mapping[str, Any], known_options: set[str]) -> dict[str, Any]:
    """Return options under their present names and values, so that settings saved earlier still work."""
    settings = {}
    for option, value in options.items():
        present_option = option
        if option not in known_options and OLD_OPTION_NAMES.get(option) in known_options:
            present_option = OLD_OPTION_NAMES[option]
        old_values = OLD_OPTION_VALUES.get(present_option, {})
        # Only text can be an old value; anything else may have no hash.
        settings[present_option] = old_values.get(value, value) if isinstance(value, str) else value
    return settings


@checked
def describe_options(kind: ComponentKind, name: str) -> dict[str, tuple[str, Any]]:
    """Return the type, in words, and the default of each option.

    Args:
        kind: ``"methods"`` or ``"metrics"``.
        name: A registered name.

    Example:
        >>> from tokenlight import registry
        >>> registry.describe_options("methods", "integrated_gradients")["tolerance"]
        ('float', 1.0)
    """
    cls = load_class(kind, name)
    hints = _get_type_hints(cls)
    described = {}
    for field in dataclasses.fields(cls):
        if field.init:
            described[field.name] = (_describe_type(hints[field.name]), field.default)
    return described


def _describe_type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(_describe_type(part) for part in get_args(hint))
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


_BOOLEAN_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_PARSERS: dict[type, Callable[[str], Any]] = {
    types.NoneType: {"none": None}.__getitem__,
    bool: lambda text: _BOOLEAN_WORDS[text.lower()],
    int: int,
    float: float,
}


def _convert_option(name: str, option: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as the type of the option; text from a command line is parsed as that type."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    accepted_types = get_args(hint) if is_union else (hint,)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()  # A number from an array or a table is that number.
    for accepted_type in accepted_types:
        with suppress(ValueError, KeyError):
            return _convert_value(value, accepted_type)
    raise BadInput(
        f"Option {option}={value!r} of {name} is not valid. Give a value of type {_describe_type(hint)}.",
        code="option-type",
    )


def _convert_value(value: Any, target_type: Any) -> Any:
    """Return ``value`` as one type; raise ValueError or KeyError if it has none."""
    base_type = get_origin(target_type) or target_type
    if base_type is Literal:
        choices = {str(choice): choice for choice in get_args(target_type)}
        return choices[str(value)]
    if isinstance(value, str) and base_type in _PARSERS:
        return _PARSERS[base_type](value)
    if base_type is float and type(value) is int:
        return float(value)
    if base_type is not Any and not _is_instance(value, base_type):
        raise ValueError(value)
    return value


def _is_instance(value: Any, base_type: Any) -> bool:
    """Like isinstance(), but True and False are not numbers."""
    is_bool = isinstance(value, bool)
    return isinstance(value, base_type) and is_bool == (base_type is bool)
