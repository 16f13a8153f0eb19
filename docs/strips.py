"""One sentence as every method sees it: the picture on each method's page.

python docs/strips.py        # explain it anew, into docs/methods/sentence.json
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "methods" / "sentence.json"
SENTENCE = "The plot is thin, but the actors never let it become dull."
MODEL = "tokenlight/sentiment"
OPTIONS = {"context_cite": {"units": "word"}}  # by default it weighs whole sentences
_PUNCTUATION = re.compile(r"[^\w\s]+")


@cache
def load_sentence() -> dict[str, Any]:
    """The words of the sentence and, by method, a score for each, as they were last written."""
    content: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
    return content


def draw_picture(name: str) -> str:
    """The sentence in a method's colours, and how to read it; empty for a method that is not in the file."""
    if name not in load_sentence()["methods"]:
        return ""
    from tokenlight import registry

    cls: Any = registry.load_class("methods", name)
    predicted_label = load_sentence()["predicted"]
    if not cls.signed:
        legend = (
            "The darker a word, the more it matters; this method does not tell for from against."
        )
    else:
        legend = (
            f"Green words speak for *{predicted_label}*, the prediction; red ones speak against it."
        )
    return f"{draw_strip(name)}\n\n{legend} Hover over a word for its score."


def draw_strip(name: str) -> str:
    """The sentence in a method's colours: one line of HTML."""
    from tokenlight.plots.colours import score_to_step, step_colour, text_colour, to_hex
    from tokenlight.plots.descriptions import format_score

    scores = load_sentence()["methods"][name]
    scale = max(map(abs, scores))
    spans = []
    for word, score in zip(load_sentence()["words"], scores, strict=True):
        blank = "" if not spans or _PUNCTUATION.fullmatch(word) else " "
        strength = score_to_step(score, scale)
        paper = step_colour(strength)
        colours = f"background:{to_hex(paper)};color:{to_hex(text_colour(paper))}"
        styled = f' style="{colours}"' if strength else ""
        spans.append(f'{blank}<span title="{format_score(score)}"{styled}>{escape(word)}</span>')
    return f'<p class="strip">{"".join(spans)}</p>'


def draw_all_strips() -> str:
    """The sentence by every method, a row each."""
    rows = [
        f"| [`{name}`]({name}.md) | {draw_strip(name)} |" for name in load_sentence()["methods"]
    ]
    content = load_sentence()
    return "\n".join(
        [
            "## The same sentence by every method",
            "",
            f"`{MODEL}` calls it *{content['predicted']}* ({content['probability']:.2f}). "
            "Each row has its own scale.",
            "",
            "| method | |",
            "|---|---|",
            *rows,
        ]
    )


def main() -> None:
    """Explain the sentence by every registered method that needs nothing but the text."""
    from tokenlight import Explainer, registry

    explainer = Explainer.from_pretrained(MODEL)
    methods = [(name, OPTIONS.get(name, {})) for name in registry.list_names("methods")]
    attributions = explainer.explain(SENTENCE, methods)
    first = attributions[0]
    content = {
        "sentence": SENTENCE,
        "model": MODEL,
        "predicted": first.prediction.label,
        "probability": round(float(first.prediction.probability or 0), 4),
        "words": [word for word, _ in first.words()],
        "methods": {
            attribution.method: [float(f"{score:.4g}") for _, score in attribution.words()]
            for attribution in attributions
        },
    }
    lines = [
        json.dumps(name) + ": " + json.dumps(scores) for name, scores in content["methods"].items()
    ]
    head = {name: value for name, value in content.items() if name != "methods"}
    text = (
        json.dumps(head, indent=1)[:-2] + ',\n "methods": {\n  ' + ",\n  ".join(lines) + "\n }\n}\n"
    )
    PATH.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
