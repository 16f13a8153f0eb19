"""What to use when, as one picture: docs/images/which_method.svg, from the measurements of the package.

python docs/which_method.py        # draw it anew; a test compares
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from svg import ACCENT, FAINT, GRID, INK, WIDTH, box, drawing, line, text

DOCS = Path(__file__).parent
PATH = DOCS / "images" / "which_method.svg"
FRONTIER = DOCS / "results" / "frontier" / "frontier.json"
ROW = 62


class Advice(NamedTuple):
    """What a person has or wants, what to write, and what that measured."""

    situation: str
    method: str
    why: str
    value: float | None = None
    cost: str = ""


def advise() -> list[Advice]:
    """The rows of the picture, their numbers from the package's tables."""
    from tokenlight import registry
    from tokenlight.explaining.default_method import load_measured_results
    from tokenlight.methods.base import describe_cost

    kinds = load_measured_results()["kinds"]
    text_means = kinds["text"]["means"]

    def cost(name: str) -> str:
        return describe_cost(registry.build("methods", name))

    default = kinds["text"]["method"]
    image = kinds["image"]
    cosine = kinds["cosine"]
    measured = _frontier_means()
    return [
        Advice(
            "A text, a pair, a question, a prompt",
            "leave it out",
            f"{default}: one backward pass, signed",
            text_means[default],
            cost(default),
        ),
        Advice(
            "The most faithful words, ten times the price",
            "subset_relevance",
            f"AOPC {measured['subset_relevance']:.2f} beside {measured['attnlrp']:.2f} of attnlrp",
            measured["subset_relevance"],
            cost("subset_relevance"),
        ),
        Advice(
            "A model without relevance rules",
            "integrated_gradients",
            "needs a gradient, nothing else",
            text_means["integrated_gradients"],
            cost("integrated_gradients"),
        ),
        Advice(
            "A model without gradients",
            "occlusion",
            "leaves out a word and looks again",
            measured["occlusion"],
            cost("occlusion"),
        ),
        Advice(
            "An image",
            image["method"],
            f"insertion − deletion {image['means'][image['method']]:.2f}",
            None,
            cost(image["method"]),
        ),
        Advice(
            "Two texts by their embeddings",
            cosine["method"],
            "one of the two best where there is no class",
            None,
            cost(cosine["method"]),
        ),
        Advice(
            "Which document the answer came from",
            "context_cite",
            "leaves out documents; gives intervals",
            None,
            cost("context_cite"),
        ),
        Advice(
            "Your own texts, and twenty of them at hand",
            'method="best"',
            "measures eight methods on them and chooses",
        ),
    ]


def _frontier_means() -> dict[str, float]:
    """AOPC on SST-2, held-out texts, by method: what each is compared with at its price."""
    content = json.loads(FRONTIER.read_text("utf-8"))
    rows: list[dict[str, Any]] = content["tasks"]["sst2"]["rows"]
    by_label = {row["label"]: row["means"]["aopc"][0] for row in rows}
    return {
        "attnlrp": by_label["attnlrp"],
        "occlusion": by_label["occlusion:window=1"],
        "subset_relevance": by_label["subset_relevance, 8 sub-texts"],
    }


def draw(rows: list[Advice]) -> str:
    """One row per situation: what you have, what to write, why, how faithful, at which price."""
    top = 58
    parts = [
        text(14, 24, "What to use when", size=16, weight="bold"),
        text(14, 43, "bar: faithfulness (AOPC), random scores reach 0.2", fill=FAINT),
    ]
    for index, row in enumerate(rows):
        y = top + ROW * index
        if index:
            parts.append(line((14, y - 4), (WIDTH - 14, y - 4), GRID))
        parts.append(text(14, y + 14, row.situation, size=13, weight="bold", fill=INK))
        width = 8.7 * len(row.method) + 14
        parts.append(box(14, y + 22, (width, 22), ACCENT))
        parts.append(text(21, y + 37, row.method, fill="#ffffff", weight="bold", size=13))
        parts.append(text(14 + width + 8, y + 37, row.why, fill=FAINT, size=11.5))
        if row.cost:
            parts.append(text(WIDTH - 14, y + 14, row.cost, anchor="end", fill=FAINT, size=11.5))
        if row.value is not None:
            parts.append(box(14, y + 48, (WIDTH - 28, 4), GRID, 2))
            parts.append(box(14, y + 48, ((WIDTH - 28) * row.value, 4), ACCENT, 2))
    height = top + ROW * len(rows) + 20
    parts.append(
        text(14, height - 12, "F forward pass, B backward pass, n tokens", fill=FAINT, size=11.5)
    )
    return drawing(
        parts,
        height,
        "What to use when: " + "; ".join(f"{row.situation}: {row.method}" for row in rows),
    )


def main() -> None:
    """Write the picture."""
    PATH.write_text(draw(advise()), "utf-8")


if __name__ == "__main__":
    main()
