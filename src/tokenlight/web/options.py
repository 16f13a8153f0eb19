"""The allow-list of methods, metrics and their options: nothing that opens a file can be asked for."""

import inspect
import re
import types
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tokenlight import registry
from tokenlight.explaining.default import recommended
from tokenlight.methods._method import Cost, Method
from tokenlight.web.refusals import Refusal

GIVEN = "given"  # the head map that the server was started with
MOST = 10**6  # no option is a larger number
MOST_STEPS = 200  # of a metric's curve

Spec = tuple[str, dict[str, Any]]


def spec(kind: registry.Kind, text: str, heads: Mapping[str, Any] | None = None) -> Spec:
    """``"rollout:start_layer=2"`` as name and options, each of them allowed; what does not exist is
    refused where it is built. ``heads``: what ``mask_lrp:heads=given`` stands for."""
    name, options = registry.parse(text)
    given = {"heads": heads} if options.get("heads") == GIVEN else {}
    if given and heads is None:
        none = f"{name}:heads={GIVEN} needs a head map of this model, and none was given."
        raise Refusal("not_allowed", none, "Start the server with --heads MODEL=heads.json.")
    for option in options.keys() - given.keys():
        value = options[option]
        if not plain(_hints(kind, name).get(option, bool)):
            said = f"the option {option} of {name} may name a file, so it cannot be set from here."
            hint = f"{option} is set in Python or on the command line."
            raise Refusal("not_allowed", said, hint)
        most = MOST_STEPS if (kind, option) == ("metrics", "steps") else MOST
        with suppress(ValueError):  # a word: the registry knows which are allowed
            if not abs(float(value)) <= most:
                said = f"{option}={value[:40]} is too large."
                raise Refusal("not_allowed", said, f"At most {most:,}.")
    return name, options | given


def plain(hint: Any) -> bool:
    """Whether every value of this type is a number, a yes or no, or one of a few words."""
    if get_origin(hint) in (Union, types.UnionType):
        return all(plain(part) for part in get_args(hint))
    return get_origin(hint) is Literal or hint in (bool, int, float, type(None))


@cache
def _hints(kind: registry.Kind, name: str) -> dict[str, Any]:
    return get_type_hints(registry.find(kind, name))


def about(cls: type) -> str:
    """The first line of a docstring, without the marks of the documentation language."""
    first = (inspect.getdoc(cls) or "").partition("\n")[0]
    return re.sub(r":math:`([^`]*)`", r"\1", first).replace("``", "").replace("*", "").rstrip(".")


def method_facts(name: str, *, with_heads: bool) -> dict[str, Any]:
    """What the page tells of a method."""
    method: Method = registry.build("methods", name)
    cls = type(method)
    return {
        "name": name,
        "about": about(cls),
        "group": method.family,
        "recommended": recommended().get(name),
        "signed": bool(cls.signed),
        "for_target": not cls.class_agnostic,
        "per_layer": bool(cls.per_layer),
        "slow": slow(method),
        "cost": Cost.in_words(method),
        "cites": str(getattr(cls, "cites", "")),
        "options": _options("methods", name, with_heads=with_heads),
        "presets": sorted(cls.presets),
    }


def metric_facts(name: str) -> dict[str, Any]:
    """What the page tells of a metric."""
    metric = registry.build("metrics", name)
    needs = {"labels": metric.labelled, "spans": metric.marked}
    return {
        "name": name,
        "about": about(type(metric)),
        "better": str(metric.direction),
        "needs": [what for what, needed in needs.items() if needed],
        "options": _options("metrics", name, with_heads=False),
    }


def slow(method: Method) -> bool:
    """Whether a text goes through the model often enough that others should not wait for it."""
    return bool(type(method).slow) or method.cost(30).forwards > 20


def token_passes(methods: Collection[Method], tokens: int, targets: int) -> int:
    """Tokens that go through the model; a backward counts as two forwards, and what attention_flow
    computes after its pass as so many tokens as would take that long: two seconds for 128."""
    costs = [method.cost(tokens) for method in methods]
    flows = sum(method.name == "attention_flow" for method in methods)
    passes = sum(cost.forwards + 2 * cost.backwards for cost in costs)
    return targets * (tokens * passes + flows * (tokens**3 // 64))


def _options(kind: registry.Kind, name: str, *, with_heads: bool) -> list[dict[str, Any]]:
    found = []
    for option, (words, default) in registry.options_of(kind, name).items():
        hint = _hints(kind, name)[option]
        if option == "heads" and with_heads:
            found.append({"name": option, "type": GIVEN, "choices": [GIVEN], "default": None})
        elif plain(hint):
            choices = list(get_args(hint)) if get_origin(hint) is Literal else None
            choices = [False, True] if hint is bool else choices
            found.append({"name": option, "type": words, "choices": choices, "default": default})
    return found
