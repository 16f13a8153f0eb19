"""What methods are called in tables: their own names, with options where one is there twice.

A name is given once, for all methods of a job. Given anew for what happens to be there, a variant
whose sibling was refused would take the bare name, and its numbers would be counted as the other's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.errors import TokenlightError
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.methods._method import Method

Kind = tuple[str, str]  # a method, and the method with its options and steps


@dataclass(frozen=True, slots=True)
class Named:
    """The names of a job's methods: ``names`` in their order, ``of`` by what explanations record."""

    names: tuple[str, ...]
    of: Mapping[Kind, str]


def kind_of(attribution: Attribution) -> Kind:
    """Equal for explanations made the same way."""
    label = spelled(attribution.method, attribution.options)
    return attribution.method, " | ".join((label, *attribution.steps))


def kind_of_method(method: Method) -> Kind:
    """What explanations of this method will be."""
    return method.name, spelled(method.name, method.options)


def spelled(name: str, options: Mapping[str, Any]) -> str:
    """A method with its options in words."""
    chosen = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name}({chosen})" if chosen else name


def method_names(kinds: Iterable[Kind], known: Mapping[Kind, str] | None = None) -> dict[Kind, str]:
    """A name for each kind: the ``known`` one, or the method's own, with options where it is there
    twice."""
    different = list(dict.fromkeys(kinds))
    if known is not None:
        return {kind: known.get(kind, kind[1]) for kind in different}
    bare = [method for method, _ in different]
    return {
        (method, label): label if bare.count(method) > 1 else method for method, label in different
    }


def named(explainer: Explainer, methods: Sequence[MethodLike], seed: int) -> Named:
    """The names of methods as they are given to explain()."""
    kinds = [_kind(explainer, method, seed) for method in methods]
    names = method_names(kinds)
    return Named(tuple(names[kind] for kind in kinds), names)


def _kind(explainer: Explainer, method: MethodLike, seed: int) -> Kind:
    try:
        (built,) = explainer._methods([method], seed)
    except TokenlightError:  # it will be refused on every text, under what it was asked for as
        name, options = (str(method), {}) if isinstance(method, str | Method) else method
        return name, spelled(name, options)
    return kind_of_method(built)
