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

PLACE = Path(__file__).parent / "methods" / "sentence.json"
SENTENCE = "The plot is thin, but the actors never let it become dull."
MODEL = "tokenlight/sentiment"
OPTIONS = {"context_cite": {"units": "word"}}  # by default it weighs whole sentences
_PUNCTUATION = re.compile(r"[^\w\s]+")


@cache
def explained() -> dict[str, Any]:
    """The words of the sentence and, by method, a score for each, as they were last written."""
    found: dict[str, Any] = json.loads(PLACE.read_text("utf-8"))
    return found


def picture(name: str) -> str:
    """The sentence in a method's colours, and how to read it; empty for a method that is not in the file."""
    if name not in explained()["methods"]:
        return ""
    from tokenlight import registry

    cls: Any = registry.load_class("methods", name)
    said = explained()["predicted"]
    if not cls.signed:
        reads = (
            "The darker a word, the more it matters; this method does not tell for from against."
        )
    else:
        reads = f"Green words speak for *{said}*, the prediction; red ones speak against it."
    return f"{strip(name)}\n\n{reads} Hover over a word for its score."


def strip(name: str) -> str:
    """The sentence in a method's colours: one line of HTML."""
    from tokenlight.plots.colours import score_to_step, step_colour, text_colour, to_hex
    from tokenlight.plots.facts import format_score

    scores = explained()["methods"][name]
    scale = max(map(abs, scores))
    parts = []
    for word, score in zip(explained()["words"], scores, strict=True):
        blank = "" if not parts or _PUNCTUATION.fullmatch(word) else " "
        strength = score_to_step(score, scale)
        paper = step_colour(strength)
        look = f"background:{to_hex(paper)};color:{to_hex(text_colour(paper))}"
        styled = f' style="{look}"' if strength else ""
        parts.append(f'{blank}<span title="{format_score(score)}"{styled}>{escape(word)}</span>')
    return f'<p class="strip">{"".join(parts)}</p>'


def strips() -> str:
    """The sentence by every method, a row each."""
    rows = [f"| [`{name}`]({name}.md) | {strip(name)} |" for name in explained()["methods"]]
    said = explained()
    return "\n".join(
        [
            "## The same sentence by every method",
            "",
            f"`{MODEL}` calls it *{said['predicted']}* ({said['probability']:.2f}). "
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
    found = explainer.explain(SENTENCE, methods)
    first = found[0]
    content = {
        "sentence": SENTENCE,
        "model": MODEL,
        "predicted": first.prediction.label,
        "probability": round(float(first.prediction.probability or 0), 4),
        "words": [word for word, _ in first.words()],
        "methods": {
            one.method: [float(f"{score:.4g}") for _, score in one.words()] for one in found
        },
    }
    lines = [json.dumps(name) + ": " + json.dumps(own) for name, own in content["methods"].items()]
    head = {name: value for name, value in content.items() if name != "methods"}
    text = (
        json.dumps(head, indent=1)[:-2] + ',\n "methods": {\n  ' + ",\n  ".join(lines) + "\n }\n}\n"
    )
    PLACE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
