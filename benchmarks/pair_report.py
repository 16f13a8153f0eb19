"""Write the page of the counterfactual pairs from the measured JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = """\
# Which word decided?

Two prompts that differ in one word, and the model gives both their right, different answers: "The capital of
France is" → Paris, "The capital of Italy is" → Rome. The word that differs decided. {pairs:,} such pairs
(capitals, languages, opposites, professions, number, gender, who gives to whom, dates, facts in the prompt,
two steps …) come from templates that were written for this page,
[`benchmarks/pair_data.py`]({source}); a model is asked only about those that it answers right.

Scores of tokens are summed by word. *Top* is the share of prompts in which the deciding word has the highest
score, with Wilson's 95 % interval; *rank* is its mean rank; *share* its part of all absolute scores; *cost*
the processor time relative to one forward and backward pass of the bare model. Peers run with their own
defaults. Our own methods explain the logit of the answer minus those of the 20 likeliest other tokens,
weighted by their probabilities (the default target of a next token); *logit* marks those that explain its
logit alone.
"""
SOURCE = "../../../benchmarks/pair_data.py"
CONCLUSION = Path(__file__).with_name("pair_conclusion.md")


def write_page(folder: Path, conclusion: Path = CONCLUSION) -> None:
    """Write README.md beside the JSON files of ``folder``: one table per model, then what follows."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    num_pairs = max(result["written"] for result in results)
    sections = [HEAD.format(pairs=num_pairs, source=SOURCE)]
    sections.extend(format_model(result) for result in results)
    sections.append(conclusion.read_text("utf-8"))
    (folder / "README.md").write_text("\n".join(sections), encoding="utf-8")


def format_model(result: dict[str, Any]) -> str:
    """Return the section of one model: methods, best first, and the families of the best ones."""
    rows = sorted(result["rows"].items(), key=lambda item: -item[1]["top"])
    lines = [
        f"## {result['model']}",
        "",
        f"{result['pairs']:,} pairs were asked, {result['answered']:,} are answered right; "
        f"{result['prompts']:,} of their prompts were measured, {result['words']:.1f} words long on average.",
        "",
        "| method | prompts | top | 95 % interval | rank | share | cost |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in rows:
        lines.append(
            f"| {label} | {row['prompts']} | {row['top']:.2f} | {row['low']:.2f}–{row['high']:.2f} | "
            f"{row['rank']:.2f} | {row['share']:.2f} | {row['cost']:.1f} × |"
        )
    shown = [label for label, row in rows if row["prompts"] == result["prompts"]][:4]
    families = sorted({name for label in shown for name in result["rows"][label]["families"]})
    lines += [
        "",
        "Share of prompts with the deciding word on top, by family:",
        "",
        f"| family | {' | '.join(shown)} |",
        f"|---|{'---|' * len(shown)}",
    ]
    for family in families:
        values = [result["rows"][label]["families"].get(family) for label in shown]
        cells = ["–" if value is None else f"{value:.2f}" for value in values]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
