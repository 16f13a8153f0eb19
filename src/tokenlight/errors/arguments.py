"""Check the arguments of public functions against their signatures.

A signature already says what a function accepts. :func:`checked` compares the arguments with it before the
function runs, so that a wrong argument does not fail deep inside with a message about something else.
"""

import builtins
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from math import inf
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from tokenlight.errors import BadInput, TokenlightError, UnknownKeyword, short_repr

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Metadata of an ``Annotated`` type: only type checkers read the type, the function checks the value itself.
UNCHECKED = object()


class Range(NamedTuple):
    """Bounds of a number, both inclusive, as metadata of an ``Annotated`` type.

    Attributes:
        low: The smallest number that is accepted.
        high: The largest one.

    Example:
        >>> from typing import Annotated
        >>> from tokenlight.plugin import Range
        >>> Temperature = Annotated[float, Range(0, 10)]
        >>> Temperature.__metadata__
        (Range(low=0, high=10),)
    """

    low: float
    high: float


Count = Annotated[int, Range(1, 1 << 20)]  # more samples or steps would never finish
Seed = Annotated[int, Range(0, inf)]
Share = Annotated[float, Range(0, 1)]


class _SimpleType(NamedTuple):
    """A type that ``isinstance`` can check."""

    accepted: type
    description: str


_SIMPLE_TYPES: dict[Any, _SimpleType] = {
    int: _SimpleType(Integral, "a whole number"),
    float: _SimpleType(Real, "a number"),
    str: _SimpleType(str, "a text"),
    os.PathLike: _SimpleType(os.PathLike, "a path"),
    Mapping: _SimpleType(Mapping, "a mapping such as a dict"),
    types.NoneType: _SimpleType(types.NoneType, "None"),
}


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the arguments of ``function`` against its annotations before every call.

    Only annotated parameters are checked, and ``Any`` accepts everything. The keywords of
    ``**options: Unpack[SomeTypedDict]`` are those of the TypedDict.

    Args:
        function: A function or method with annotations.

    Returns:
        The function with the check in front of it. It raises :class:`BadInput` for a value that does not
        fit and :class:`UnknownKeyword` for a keyword that does not exist.

    Example:
        >>> from tokenlight.errors.arguments import Count, checked
        >>> @checked
        ... def draw(samples: Count) -> int:
        ...     return samples
        >>> draw(0)
        Traceback (most recent call last):
        tokenlight.errors.BadInput: samples=0 is not valid for draw. Give a whole number from 1 to 1,048,576.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        _check_call(function, signature, arguments, keywords)
        return function(*arguments, **keywords)

    return call


def check_fields(value: object, *names: str, error: type[TokenlightError] = BadInput) -> None:
    """Check the fields of a dataclass against their annotations.

    Args:
        value: An instance of a dataclass.
        *names: The fields to check; all if none is named.
        error: Class of the error to raise.
    """
    cls: Any = type(value)
    for name, annotation in _get_annotations(cls).items():
        is_selected = not names or name in names
        if is_selected and annotation is not Any:
            _check_value(cls.__name__, name, getattr(value, name), annotation, error)


def check_items(name: str, values: Iterable[object], kind: type) -> None:
    """Raise :class:`BadInput` if an item of ``values`` is not a ``kind``.

    Args:
        name: The name of the argument, for the message.
        values: The list that was given.
        kind: The class that every item must have.
    """
    for index, value in enumerate(values):
        if not isinstance(value, kind):
            raise BadInput(
                f"Entry {index} of {name} (counted from 0) is {short_repr(value)}, which is not valid. Give "
                f"a list of {kind.__name__} objects.",
                code="invalid-list-entry",
            )


def refuse_unknown(function: str, keywords: Iterable[str], names: Iterable[str]) -> None:
    """Raise :class:`UnknownKeyword` for the first of ``keywords`` that is not one of ``names``.

    Args:
        function: The name of the function that was called, for the message.
        keywords: The keywords that were given.
        names: The keywords that the function takes.
    """
    valid_names = tuple(names)
    for keyword in keywords:
        if keyword not in valid_names:
            raise UnknownKeyword.from_choices(f"keyword of {function}()", keyword, valid_names)


def _check_call(
    function: Callable[..., Any],
    signature: inspect.Signature,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    """Check the keywords by name, then every argument by its annotation."""
    # A message names the class, not its __init__.
    is_constructor = function.__name__ == "__init__"
    title = type(arguments[0]).__name__ if is_constructor else function.__name__
    annotations = _get_annotations(function)
    var_keyword = _find_var_keyword(signature)
    option_annotations = _get_option_annotations(annotations.get(var_keyword, Any))

    # ``**options`` without a TypedDict takes any keyword.
    if option_annotations or not var_keyword:
        named = [name for name in signature.parameters if name not in ("self", "cls", var_keyword)]
        refuse_unknown(title, keywords, [*named, *option_annotations])

    try:
        bound = dict(signature.bind(*arguments, **keywords).arguments)
    except TypeError:
        # An argument is missing or there are too many. Python's own message is the best one.
        return
    # The keywords of ``**options`` are checked one by one, like named parameters.
    options = bound.pop(var_keyword, {})
    for name, value in {**bound, **options}.items():
        annotation = option_annotations.get(name, annotations.get(name, Any))
        if annotation is not Any:
            _check_value(title, name, value, annotation, BadInput)


def _find_var_keyword(signature: inspect.Signature) -> str:
    """Return the name of the ``**`` parameter, or an empty string."""
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return parameter.name
    return ""


def _get_option_annotations(annotation: Any) -> dict[str, Any]:
    """Return the keys of ``Unpack[SomeTypedDict]`` with their types; empty for other annotations."""
    arguments = get_args(annotation)
    if not arguments:
        return {}
    (typed_dict,) = arguments
    return _get_annotations(typed_dict)


def _check_value(
    title: str, name: str, value: object, annotation: Any, error: type[TokenlightError]
) -> None:
    if not _fits(value, annotation):
        raise error(
            f"{name}={short_repr(value)} is not valid for {title}. Give {_join_alternatives(annotation)}.",
            code="invalid-argument",
        )


class _ModuleNames(dict[str, Any]):
    """The names of a module; a name imported only for type checkers stands for ``Any``."""

    def __missing__(self, name: str) -> Any:
        return Any


@cache
def _get_annotations(annotated: Any) -> dict[str, Any]:
    """Return the types of a function's parameters, a dataclass's fields, or a TypedDict's keys."""
    module_names = vars(sys.modules[annotated.__module__])
    # Annotations may name what the module imports only for type checkers.
    names = _ModuleNames(vars(builtins) | module_names)
    return typing.get_type_hints(annotated, module_names, names, include_extras=True)


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether ``value`` has the annotated type; True for types that are not checked here."""
    plain_type = get_origin(annotation) or annotation
    if plain_type in _TYPE_RULES:
        return _TYPE_RULES[plain_type].fits(value, get_args(annotation))
    if plain_type in _SIMPLE_TYPES:
        # bool is a subclass of int, but True is not meant as a number.
        is_accepted = isinstance(value, _SIMPLE_TYPES[plain_type].accepted)
        return is_accepted and not isinstance(value, bool)
    if not isinstance(plain_type, type) or plain_type is Any:
        return True
    # Arrays may be given as lists of numbers. The function that reads them checks their shape.
    if plain_type.__module__ == "numpy":
        return True
    return isinstance(value, plain_type)


def _describe(annotation: Any) -> list[str]:
    """Return one description for each alternative of a type."""
    plain_type = get_origin(annotation) or annotation
    if plain_type in _TYPE_RULES:
        alternatives = _TYPE_RULES[plain_type].describe(get_args(annotation))
        return list(dict.fromkeys(alternatives))
    if plain_type in _SIMPLE_TYPES:
        return [_SIMPLE_TYPES[plain_type].description]
    return [f"a {getattr(plain_type, '__name__', plain_type)} object"]


def _join_alternatives(annotation: Any) -> str:
    return " or ".join(_describe(annotation))


# --- rules for generic types: the arguments of ``Union[int, None]`` are ``(int, None)`` ----------------


def _fits_union(value: Any, arguments: Sequence[Any]) -> bool:
    return any(_fits(value, argument) for argument in arguments)


def _describe_union(arguments: Sequence[Any]) -> list[str]:
    alternatives = []
    for argument in arguments:
        alternatives += _describe(argument)
    return alternatives


def _fits_literal(value: Any, arguments: Sequence[Any]) -> bool:
    # The type is compared too: 1 == True, and an array has no single truth value.
    return any(type(value) is type(literal) and value == literal for literal in arguments)


def _describe_literal(arguments: Sequence[Any]) -> list[str]:
    return [repr(literal) for literal in arguments]


def _find_ranges(arguments: Sequence[Any]) -> list[Range]:
    return [entry for entry in arguments[1:] if isinstance(entry, Range)]


def _fits_annotated(value: Any, arguments: Sequence[Any]) -> bool:
    if UNCHECKED in arguments[1:]:
        return True
    if not _fits(value, arguments[0]):
        return False
    return all(low <= value <= high for low, high in _find_ranges(arguments))


def _describe_annotated(arguments: Sequence[Any]) -> list[str]:
    # The first argument is the type, the others are metadata.
    (description,) = _describe(arguments[0])
    for low, high in _find_ranges(arguments):
        if high == inf:
            description += f", {low:,} or more"
        else:
            description += f" from {low:,} to {high:,}"
    return [description]


def _fits_iterable(value: Any, arguments: Sequence[Any]) -> bool:
    is_text_or_mapping = isinstance(value, str | bytes | bytearray | Mapping)
    is_scalar_array = getattr(value, "shape", None) == ()
    if is_text_or_mapping or is_scalar_array or not hasattr(value, "__iter__"):
        return False
    # Items of an iterator are not checked: that would consume it.
    if not arguments or not isinstance(value, Sequence):
        return True
    return all(_fits(item, arguments[0]) for item in value)


def _fits_sequence(value: Any, arguments: Sequence[Any]) -> bool:
    return hasattr(value, "__getitem__") and _fits_iterable(value, arguments)


def _describe_list(arguments: Sequence[Any]) -> list[str]:
    if not arguments:
        return ["a list"]
    return [f"a list of {_join_alternatives(arguments[0])}"]


def _has_variable_length(arguments: Sequence[Any]) -> bool:
    """Return whether a tuple type is ``tuple`` or ``tuple[X, ...]``."""
    return not arguments or arguments[-1] is Ellipsis


def _fits_tuple(value: Any, arguments: Sequence[Any]) -> bool:
    if not isinstance(value, tuple):
        return False
    if _has_variable_length(arguments):
        return _fits_iterable(value, arguments)
    if len(value) != len(arguments):
        return False
    return all(_fits(item, argument) for item, argument in zip(value, arguments, strict=True))


def _describe_tuple(arguments: Sequence[Any]) -> list[str]:
    if _has_variable_length(arguments):
        return _describe_list(arguments)
    items = ", ".join(map(_join_alternatives, arguments))
    return [f"a tuple ({items})"]


def _fits_dict(value: Any, _: Sequence[Any]) -> bool:
    return isinstance(value, dict)


def _fits_callable(value: Any, _: Sequence[Any]) -> bool:
    return callable(value)


def _fits_bool(value: Any, _: Sequence[Any]) -> bool:
    # numpy's bool is accepted by name, because numpy is not imported here.
    return type(value).__name__ in ("bool", "bool_")


class _TypeRule(NamedTuple):
    """How values of a generic type are checked and described; both functions take its type arguments."""

    fits: Callable[[Any, Sequence[Any]], bool]
    describe: Callable[[Sequence[Any]], list[str]]


_UNION_RULE = _TypeRule(_fits_union, _describe_union)
_TYPE_RULES: dict[Any, _TypeRule] = {
    Union: _UNION_RULE,
    types.UnionType: _UNION_RULE,
    Literal: _TypeRule(_fits_literal, _describe_literal),
    Annotated: _TypeRule(_fits_annotated, _describe_annotated),
    Iterable: _TypeRule(_fits_iterable, _describe_list),
    Sequence: _TypeRule(_fits_sequence, _describe_list),
    tuple: _TypeRule(_fits_tuple, _describe_tuple),
    dict: _TypeRule(_fits_dict, lambda _: ["a dict"]),
    Callable: _TypeRule(_fits_callable, lambda _: ["a function"]),
    bool: _TypeRule(_fits_bool, lambda _: ["True", "False"]),
}
