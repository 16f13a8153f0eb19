"""A text with its explanations as the few values its picture needs, which a browser draws."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.plots import facts
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.scene import Mark, MethodScene, TextScene

_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def true_label(attribution: Attribution) -> str | None:
    """The text's true label as the model names it; as it was given where the model has no such."""
    given: Any = attribution.extras.get("label")
    labels = attribution.prediction.labels
    if given is None or attribution.prediction.ids:
        return None if given is None else str(given)
    if isinstance(given, int) and 0 <= given < len(labels) and str(given) not in labels:
        return labels[given]
    alike = [label for label in labels if label.casefold() == str(given).casefold()]
    return alike[0] if len(alike) == 1 else str(given)


def entry(text: TextScene, number: int) -> dict[str, Any]:
    """A text as the browser reads it; what is empty is left out."""
    first = text.group.first
    where, columns = str(first.extras.get("place", "")), first.extras.get("columns", {})
    lines: dict[str, int] = {}  # explanations of one text mostly share its lines
    shown = [(method, "") for method in text.methods]
    shown += [(m, "difference") for target in text.targets for m in target.differences]
    bars, more = facts.prediction_bars(text.group)
    said = [f"{bar.name} {bar.number}" for bar in bars]
    made = {
        "number": int(found[0]) if (found := re.findall(r"^\w+ (\d+) of", where)) else number,
        "place": where.removesuffix(f"row {number} of the table"),
        "label": None if (truth := true_label(first)) is None else in_line(truth),
        "predicted": in_line(first.prediction.label),
        "chance": round(max(first.prediction.probabilities, default=0.0), 4),
        "chances": in_line(" · ".join(said) + (f" · and {more} less probable" if more else "")),
        "grade": facts.grade(first),
        "cut": first.row.cut,
        "columns": {k: in_line(str(v)) for k, v in columns.items() if v is not None},
        "explained": [_explained(method, kind, lines) for method, kind in shown],
    }
    made["lines"] = [json.loads(one) for one in lines]
    return {name: value for name, value in made.items() if value not in (None, "", {}, [], 0)}


def _explained(method: MethodScene, kind: str, lines: dict[str, int]) -> dict[str, Any]:
    """One explanation: its name, what is known of it, and its scores line by line."""
    view, a = method.views[0], method.attribution
    special = [facts.special_line(a, view.special)] if view.special else []
    found: dict[str, Any] = {
        "name": in_line(method.label),
        "target": in_line(a.target.name),
        "scale": float(f"{view.scale:.4g}"),
        "told": [in_line(one) for one in (*method.badges, *special, *a.notes)],
        "lines": [],
        **({"kind": kind} if kind else {}),
    }
    for part in view.lines:
        shape, scores = _line(part.marks)
        if part.share:
            shape["name"] = in_line(part.share.name)
        place = lines.setdefault(json.dumps(shape), len(lines))
        found["lines"].append([place, scores])
    return found


def _line(marks: Sequence[Mark]) -> tuple[dict[str, Any], str]:
    """A line's text, how it is cut into marks, and the marks' scores, each with three digits.

    ``cuts``: the length of each mark, negative where a blank stands before it; after ``null`` that of
    a stretch without a score. ``looks``: by their number, marks that look otherwise.
    """
    text, cuts, looks, scores = "", list[int | None](), dict[int, str](), list[str]()
    for number, mark in enumerate(marks):
        shown = visible(mark.text)
        look = " ".join(filter(None, [*mark.roles, "masked" * mark.masked]))
        if mark.score is None:
            cuts += [None, len(shown)]
        else:
            if cuts[-2:] == [None, 1] and text[-1] == " " and shown and number - 1 not in looks:
                cuts[-2:] = [-len(shown)]
            else:
                cuts.append(len(shown))
            scores.append(re.sub(r"^(-?)0\.", r"\1.", f"{mark.score:.3g}"))
            look = f"chip {look}".strip() if mark.special else look
        if look:
            looks[number] = look
        text += shown
    return {"text": text, "cuts": cuts, **({"looks": looks} if looks else {})}, " ".join(scores)


def compact(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element."""
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return plain.translate(_UNSAFE)
