"""One self-contained HTML page, or a fragment for notebooks: no script, no outside resource.

Every value enters through a template that escapes it. Colours are classes of one style sheet, so
the page's content security policy allows exactly that sheet and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tokenlight.errors import MissingExtra

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as missing:
    raise MissingExtra.naming("jinja2", "cli", "an HTML page") from missing

from tokenlight.data.attribution import Attribution
from tokenlight.plots import facts, views
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.classes import by_class
from tokenlight.plots.colours import STEPS, rules, step_name
from tokenlight.plots.continuation import is_continuation
from tokenlight.plots.grids import photo
from tokenlight.plots.groups import (
    TargetGroup,
    TextGroup,
    check_reference,
    differences,
    grouped,
    method_label,
    strongest,
)
from tokenlight.plots.heat_tables import class_heats


def page(
    attributions: Attribution | Iterable[Attribution],
    *,
    title: str | None = None,
    reference: str | None = None,
    words: bool = False,
    rollout: bool = False,
) -> str:
    """The attributions as one page, grouped by text, then target, then method.

    ``reference`` names the method whose difference to every other is shown too (Mask-LRP paper,
    figure 6). ``words`` opens the page in its word view. ``rollout`` puts the product of the layers
    into the layer tables (AttCAT paper, figure 5).
    """
    groups = grouped(attributions)
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    pictures = any(group.first.row.image is not None for group in groups)
    policy = (
        f"default-src 'none'; {'img-src data:; ' if pictures else ''}style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=_shortened(groups[0].first.text) if title is None else title,
            policy=policy,
            **_shown(groups, _Wish(reference, rollout), words),
        )
    )


def fragment(attributions: Attribution | Iterable[Attribution]) -> str:
    """The same picture for a notebook cell; its style stays inside."""
    groups = grouped(attributions)
    template = _environment().get_template("fragment.html.j2")
    return template.render(**_shown(groups, _Wish(), False))


class _Wish(NamedTuple):
    """What is shown beside the scores."""

    reference: str | None = None
    rollout: bool = False


def _shown(groups: Sequence[TextGroup], wish: _Wish, words: bool) -> dict[str, Any]:
    if wish.reference is not None:
        check_reference(groups, wish.reference)
    shown = [_text(group, wish) for group in groups]
    return {
        "style": Markup(_style()),  # ours alone: no value of a user is in it
        "texts": shown,
        "words": words,
        "both": any(len(method["views"]) > 1 for text in shown for method in text["methods"]),
        "special": any(any(group.first.row.special) for group in groups),
        "legend": [step_name(number) for number in range(-STEPS, STEPS + 1)],
        "unfold": len(shown) == 1 and sum(1 for _ in groups[0]) <= 4,
    }


def _text(group: TextGroup, wish: _Wish) -> dict[str, Any]:
    bars, more = facts.prediction_bars(group)
    compared = by_class(group)
    shown = {id(a) for found in compared for a in found}
    targets = [_target(group, target, wish, shown) for target in group.targets]
    first = group.first
    methods = [method for target in targets for method in target["methods"]]
    return {
        "prediction": first.prediction.label,
        "null": facts.null_line(first),
        "bars": bars,
        "more": more,
        "bars_of": facts.bars_belong_to(group),
        "model": first.model,
        "photo": None if first.row.image is None else photo(first.row.image),
        "cut": first.row.cut,
        "targets": targets,
        "classes": [_classes(group, found, wish) for found in compared],
        "methods": methods,
        "shared": [
            fact
            for fact in methods[0]["provenance"]
            if all(fact in method["provenance"] for method in methods)
        ],
    }


def _classes(group: TextGroup, found: Sequence[Attribution], wish: _Wish) -> dict[str, Any]:
    """One method's classes side by side, on one scale."""
    written = is_continuation(found[0])
    return {
        "label": method_label(found[0]),
        "title": "Token by token" if written else "Class by class",
        "written": written,
        "heats": class_heats(found),
        "rows": [(a.target.name, _method(a, group.scale(a), wish)) for a in found],
    }


def _target(group: TextGroup, target: TargetGroup, wish: _Wish, shown: set[int]) -> dict[str, Any]:
    compared = [] if wish.reference is None else differences(target, wish.reference)
    return {
        "name": target.name,
        "title": target.title,
        "kind": target.attributions[0].target.kind,
        # What the view of the classes has shown is not shown twice.
        "rows": not all(id(a) in shown for a in target.attributions),
        "methods": [_method(a, group.scale(a), wish) for a in target.attributions],
        # What is known about a method is not known about a difference.
        "differences": [
            _method(replace(a, extras={}, notes=()), strongest(a), wish) for a in compared
        ],
    }


def _method(attribution: Attribution, scale: float, wish: _Wish) -> dict[str, Any]:
    return {
        "label": method_label(attribution),
        "target": attribution.target.name,
        "views": views.views(attribution, scale, rollout=wish.rollout),
        "badges": facts.badges(attribution),
        "notes": attribution.notes,
        "provenance": facts.provenance(attribution),
    }


def _shortened(text: str, most: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("tokenlight.plots", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["visible"] = visible
    made.filters["in_line"] = in_line
    return made


@cache
def _style() -> str:
    template = _environment().get_template("style.css.j2")
    plain, safe = Markup(rules("green_red")), Markup(rules("blue_orange"))
    return template.render(plain=plain, safe=safe)
