"""The curve on each method's page: how far the prediction falls while the top tokens are deleted.

    python docs/curves.py        # measure every method anew, into docs/methods/curves.json (some minutes)

The model and the 64 reviews come with the package, so that anyone can repeat it. One page shows a method's
curve beside those of the default method and of random scores.
"""

from __future__ import annotations

import json
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "methods" / "curves.json"
MODEL = "tokenlight/sentiment"
OPTIONS = {"context_cite": {"units": "word"}}  # by default it weighs whole sentences
REFERENCES = ("attnlrp", "random")
WIDTH = 460
HEIGHT = 250
LEFT = 46
RIGHT = 22
TOP = 14
BOTTOM = 40


@cache
def load_curves() -> dict[str, Any]:
    """The shares of deleted tokens and, by method, the mean fall of the probability at each."""
    content: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
    return content


def draw_curve(name: str) -> str:
    """A method's curve as one line of SVG, with a sentence; empty for a method that was not measured."""
    curves = load_curves()["methods"]
    if name not in curves:
        return ""
    references = [reference for reference in REFERENCES if reference != name]
    lines = [
        _draw_line(curves[reference]["curve"], f"curve-{reference}") for reference in references
    ]
    lines.append(_draw_line(curves[name]["curve"], "curve-own", curves[name]["band"]))
    legend = _draw_legend([name, *references])
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Deletion curve of {escape(name)}">'
        f"{_draw_axes()}{''.join(lines)}{legend}</svg>"
    )
    return f'<figure class="curve">{svg}</figure>\n\n{_describe(name)}'


def _describe(name: str) -> str:
    facts = load_curves()
    result = facts["methods"][name]
    low, high = result["interval"]
    return (
        f"Mean fall of P(prediction) over {facts['texts']} reviews ([`{MODEL}`](../models.md)) while the tokens "
        f"that `{name}` ranks highest are deleted; its area is AOPC {result['aopc']:.2f} "
        f"[{low:.2f}, {high:.2f}]. The higher and the earlier, the better. `python docs/curves.py` repeats it."
    )


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(fall: float) -> float:
    low, high = load_curves()["range"]
    return TOP + (high - fall) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _draw_line(curve: list[float], css_class: str, band: list[list[float]] | None = None) -> str:
    points = list(zip(load_curves()["shares"], curve, strict=True))
    path = " ".join(f"{_x(share):.1f},{_y(fall):.1f}" for share, fall in points)
    line = f'<polyline class="{css_class}" points="{path}"/>'
    if band is None:
        return line
    shares = load_curves()["shares"]
    upper = [
        f"{_x(share):.1f},{_y(high):.1f}" for share, (_, high) in zip(shares, band, strict=True)
    ]
    lower = [f"{_x(share):.1f},{_y(low):.1f}" for share, (low, _) in zip(shares, band, strict=True)]
    area = " ".join([*upper, *reversed(lower)])
    return f'<polygon class="curve-band" points="{area}"/>{line}'


def _draw_axes() -> str:
    elements = []
    _, high = load_curves()["range"]
    for tenth in range(0, int(high * 10) + 1, 2):
        y = _y(tenth / 10)
        elements.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        elements.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>'
        )
    for percent in range(0, 101, 20):
        x = _x(percent / 100)
        elements.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{percent} %</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    elements.append(
        f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">tokens deleted, top first</text>'
    )
    return "".join(elements)


def _draw_legend(names: list[str]) -> str:
    elements = []
    for index, name in enumerate(names):
        y = HEIGHT - BOTTOM - 12 - 16 * (len(names) - 1 - index)
        css_class = f"curve-{name}" if index else "curve-own"
        elements.append(
            f'<line class="{css_class}" x1="{WIDTH - 150}" x2="{WIDTH - 128}" y1="{y}" y2="{y}"/>'
        )
        elements.append(f'<text x="{WIDTH - 122}" y="{y + 4}">{escape(name)}</text>')
    return "".join(elements)


def measure() -> dict[str, Any]:
    """Measure the deletion curve of every registered method that needs nothing but the text."""
    import tokenlight
    from tokenlight import Explainer, registry
    from tokenlight.datafiles import read_examples

    reviews = Path(tokenlight.__file__).parent / "bench" / "suites" / "quick.jsonl"
    texts = [example.text for example in read_examples(reviews)]
    explainer = Explainer.from_pretrained(MODEL)
    methods = {}
    shares: tuple[float, ...] = ()
    for name in registry.list_names("methods"):
        attributions = explainer.explain(texts, [(name, OPTIONS.get(name, {}))])
        evaluation = explainer.evaluate(attributions, "aopc")
        summary = evaluation.summary["aopc"]
        shares, points = evaluation.curves["aopc"]
        methods[name] = {
            "aopc": round(summary["mean"], 4),
            "interval": [round(summary["low"], 4), round(summary["high"], 4)],
            "curve": [round(point.mean, 4) for point in points],
            "band": [[round(point.low, 4), round(point.high, 4)] for point in points],
        }
        print(f"{name}: {summary['mean']:.3f}", flush=True)  # noqa: T201 - a script
    edges = [edge for method in methods.values() for pair in method["band"] for edge in pair]
    return {
        "model": MODEL,
        "texts": len(texts),
        "shares": list(shares),
        "range": [min(0.0, round(min(edges) - 0.05, 1)), round(max(edges) + 0.05, 1)],
        "methods": methods,
    }


def main() -> None:
    """Write what was measured, one line per method."""
    content = measure()
    methods = content.pop("methods")
    lines = [f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in methods.items()]
    head = json.dumps(content)[:-1]
    PATH.write_text(head + ',\n"methods": {\n' + ",\n".join(lines) + "\n}}\n", "utf-8")


if __name__ == "__main__":
    main()
