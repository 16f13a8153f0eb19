"""Which methods, metrics and options the API allows: none that opens a file can be asked for."""

import inspect
import re
import types
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tokenlight import registry
from tokenlight.explaining.default_method import recommend_methods
from tokenlight.methods.base import Method, describe_cost
from tokenlight.web.api_errors import ApiError

GIVEN_HEADS = "given"  # stands for the head map that the server was started with
MAX_OPTION_VALUE = 10**6  # largest number that an option may have
MAX_CURVE_STEPS = 200  # points of a metric's curve
SLOW_FORWARD_PASSES = 20  # a method with more of them for a short text is slow
SHORT_TEXT_TOKENS = 30

Spec = tuple[str, dict[str, Any]]  # name and options


def parse_allowed_spec(
    kind: registry.ComponentKind, text: str, heads: Mapping[str, Any] | None = None
) -> Spec:
    """Parse a method or metric such as ``"rollout:start_layer=2"``, and check that it is allowed.

    Names and options that do not exist are refused later, when the method is built.

    Args:
        kind: ``"methods"`` or ``"metrics"``.
        text: Name with options.
        heads: Head map that ``mask_lrp:heads=given`` stands for.

    Raises:
        ApiError: An option might open a file, or is too large.
    """
    name, options = registry.parse_spec(text)
    replacements: dict[str, Any] = {}
    if options.get("heads") == GIVEN_HEADS:
        if heads is None:
            raise ApiError(
                f"{name}:heads={GIVEN_HEADS} needs a head map, and the server has none for this model.",
                code="not_allowed",
                hint="Start the server with --heads MODEL=heads.json.",
            )
        replacements["heads"] = heads
    for option, value in options.items():
        if option not in replacements:
            _check_option(kind, name, option, value)
    return name, options | replacements


def _check_option(kind: registry.ComponentKind, name: str, option: str, value: str) -> None:
    """Refuse options that might open a file, and numbers that would take forever."""
    if not is_plain_type(_get_type_hints(kind, name).get(option, bool)):
        raise ApiError(
            f"The option {option} of {name} may name a file, so a request cannot set it.",
            code="not_allowed",
            hint=f"Set {option} in Python or on the command line.",
        )
    limit = MAX_OPTION_VALUE
    if (kind, option) == ("metrics", "num_steps"):
        limit = MAX_CURVE_STEPS
    try:
        parsed = float(value)
    except ValueError:  # a word; the registry knows which ones exist
        return
    if not abs(parsed) <= limit:  # also true for NaN
        raise ApiError(
            f"{option}={value[:40]} is too large.", code="not_allowed", hint=f"At most {limit:,}."
        )


def is_plain_type(hint: Any) -> bool:
    """Return whether every value of this type is a number, a boolean, or one of a few words."""
    if get_origin(hint) in (Union, types.UnionType):
        return all(is_plain_type(part) for part in get_args(hint))
    return get_origin(hint) is Literal or hint in (bool, int, float, type(None))


@cache
def _get_type_hints(kind: registry.ComponentKind, name: str) -> dict[str, Any]:
    return get_type_hints(registry.load_class(kind, name))


def get_first_doc_line(cls: type) -> str:
    """Return the first line of a docstring, without markup and full stop."""
    line = (inspect.getdoc(cls) or "").partition("\n")[0]
    without_math = re.sub(r":math:`([^`]*)`", r"\1", line)
    return without_math.replace("``", "").replace("*", "").rstrip(".")


def build_method_info(name: str, *, with_heads: bool) -> dict[str, Any]:
    """Return what the page shows of a method.

    Args:
        name: Name of the method.
        with_heads: Whether a served model has a head map.
    """
    method: Method = registry.build("methods", name)
    cls = type(method)
    return {
        "name": name,
        "about": get_first_doc_line(cls),
        "group": method.family,
        "recommended": recommend_methods().get(name),
        "signed": bool(cls.signed),
        "for_target": not cls.class_agnostic,
        "per_layer": bool(cls.per_layer),
        "slow": is_slow(method),
        "cost": describe_cost(method),
        "cites": str(getattr(cls, "cites", "")),
        "options": _list_options("methods", name, with_heads=with_heads),
        "presets": sorted(cls.presets),
    }


def build_metric_info(name: str) -> dict[str, Any]:
    """Return what the page shows of a metric."""
    metric = registry.build("metrics", name)
    requirements: list[str] = []
    if metric.needs_labels:
        requirements.append("labels")
    if metric.needs_spans:
        requirements.append("spans")
    return {
        "name": name,
        "about": get_first_doc_line(type(metric)),
        "better": str(metric.direction),
        "needs": requirements,
        "options": _list_options("metrics", name, with_heads=False),
    }


def is_slow(method: Method) -> bool:
    """Return whether a method runs the model so often that others should not wait for it."""
    return (
        bool(type(method).slow)
        or method.count_passes(SHORT_TEXT_TOKENS).forwards > SLOW_FORWARD_PASSES
    )


def count_token_passes(methods: Collection[Method], num_tokens: int, num_targets: int) -> int:
    """Return how many tokens methods send through the model; a backward pass counts as two forward ones.

    Args:
        methods: The methods of a request.
        num_tokens: Number of tokens in its text.
        num_targets: How many targets are explained.
    """
    cost_per_target = 0
    for method in methods:
        cost = method.count_passes(num_tokens)
        cost_per_target += num_tokens * (cost.forwards + 2 * cost.backwards)
        cost_per_target += method.count_further_tokens(num_tokens)
    return num_targets * cost_per_target


def _list_options(
    kind: registry.ComponentKind, name: str, *, with_heads: bool
) -> list[dict[str, Any]]:
    """Return the options that a request may set."""
    options: list[dict[str, Any]] = []
    for option, (type_name, default) in registry.describe_options(kind, name).items():
        if option == "heads" and with_heads:
            options.append(
                {"name": option, "type": GIVEN_HEADS, "choices": [GIVEN_HEADS], "default": None}
            )
            continue
        hint = _get_type_hints(kind, name)[option]
        if not is_plain_type(hint):
            continue
        choices: list[Any] | None = None
        if hint is bool:
            choices = [False, True]
        elif get_origin(hint) is Literal:
            choices = list(get_args(hint))
        options.append({"name": option, "type": type_name, "choices": choices, "default": default})
    return options
