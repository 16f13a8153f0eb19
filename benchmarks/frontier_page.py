"""The page docs/results/frontier from what benchmarks/frontier.py measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenlight.files.write import write_text

PAGE = Path("docs/results/frontier/README.md")
FIGURE = "frontier.png"
# Names of points that lie close together, in points from the mark.
LABEL_OFFSETS = {"cat:gradient=cp": (6, 3), "attnlrp": (-40, -1), "cp_lrp": (-38, -3)}
INTRODUCTION = """\
Which method should a person believe, given what they can pay? Every method is a point: how faithful its
scores are, and how many passes through the model they cost. The hypotheses, the texts and the rule that
picks a default were written down before the measurement ([ADR
0019](../../adr/0019-the-frontier-protocol.md)); the texts are held out from the trial that suggested the
method.

`subset_relevance` averages CAT's read-out of CP-LRP's gradient over the text and random sub-texts of it,
each token kept with probability 0.5 and the others deleted. With no sub-texts it is `cat:gradient=cp`.
Passes count a forward and a backward pass over the whole text as one and a forward pass alone as a half;
sub-texts are shorter than the text, so seconds grow more slowly than passes. AOPC, [MASK] in place of
deletion, sufficiency (lower is better) and comprehensiveness are those of [the
metrics](../../metrics/index.md). Intervals are 95 % bootstrap intervals of paired differences.
"""
LIMITS = """\
## What this does not show

Two tasks, two models of one size (MiniLM-L6). Pairs, questions, language models and images keep their
defaults: the protocol was not run on them. AOPC deletes words, and so does the method; by [MASK] the
gain over `attnlrp` is smaller but has the same sign on both tasks, and the lead over Shapley values on
SST-2 is within the noise. The GPU also ran another job, so compare seconds only within the table, and
roughly.
"""
TITLES = {
    "aopc": "AOPC",
    "aopc_mask": "AOPC by [MASK]",
    "sufficiency": "sufficiency ↓",
    "comprehensiveness": "comprehensiveness",
}


def write_page(paths: Sequence[Path]) -> None:
    """Write the page, one part per file of results."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    all_results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    draw_tasks(all_results[0]["tasks"], PAGE.parent / FIGURE)
    lines = ["# The most faithful answer at every price", "", INTRODUCTION]
    lines.append(f"![AOPC of every method against its passes, one panel per task]({FIGURE})")
    for results in all_results:
        lines += ["", *render_results(results)]
    lines += ["", LIMITS.rstrip()]
    write_text(PAGE, "\n".join(lines) + "\n")


def draw_tasks(tasks: dict[str, Any], path: Path) -> None:
    """Draw AOPC against passes; the points of subset_relevance are joined."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(tasks), figsize=(6.2 * len(tasks), 4.6), squeeze=False)
    for axis, (task, part) in zip(axes[0], tasks.items(), strict=True):
        joined = []
        for row in part["rows"]:
            passes, aopc = row["passes"], row["means"]["aopc"][0]
            label = row["label"]
            # Variants of an entry lie so close to it that their names would overlap; the table has them.
            if "readout" in label or label in ("cat:gradient=attnlrp", "attcat:gradient=cp"):
                continue
            if label.startswith("subset_relevance"):
                joined.append((passes, aopc))
                continue
            axis.plot(passes, aopc, "o", color="0.45", markersize=5)
            axis.annotate(
                label,
                (passes, aopc),
                textcoords="offset points",
                xytext=LABEL_OFFSETS.get(label, (6, -3)),
                fontsize=8,
            )
        joined.sort()
        axis.set_xlim(0.35, 3000)
        axis.plot(*zip(*joined, strict=True), "o-", color="C2", label="subset_relevance")
        axis.set(
            xscale="log", xlabel="passes", ylabel="AOPC", title=f"{task}, {part['texts']} texts"
        )
        axis.legend(loc="lower right")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def render_results(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one run: tables, hypotheses, choices."""
    facts = results["facts"]
    yield f"## Texts: {results['texts']}; {facts['device']}, commit {facts['commit']}"
    yield from ("", f"`{results['command']}`")
    for task, part in results["tasks"].items():
        yield from ("", f"### {task}, {part['texts']} texts", "")
        yield (
            "| method | passes | seconds | " + " | ".join(TITLES.values()) + " | ahead of attnlrp |"
        )
        yield "|---" * (len(TITLES) + 4) + "|"
        for row in sorted(part["rows"], key=lambda row: row["passes"]):
            means = [f"{row['means'][name][0]:.3f}" for name in TITLES]
            ahead = format_interval(row["ahead_of_attnlrp"])
            cells = [row["label"], f"{row['passes']:.1f}", f"{row['seconds']:.2f}", *means, ahead]
            yield f"| {' | '.join(cells)} |"
    yield from (
        "",
        "### Hypotheses",
        "",
        "| | comparison | measure | difference by task |",
        "|---|---|---|---|",
    )
    for test in results["hypotheses"]:
        parts = [f"{task} {format_interval(value)}" for task, value in test["differences"].items()]
        comparison = f"{test['this']} − {test['that']}"
        yield f"| {test['hypothesis']} | {comparison} | {TITLES[test['metric']]} | {'; '.join(parts)} |"
    yield from (
        "",
        "### What the rule chose",
        "",
        "| price | best mean rank | chosen | objections |",
        "|---|---|---|---|",
    )
    for choice in results["choices"]:
        objections = "; ".join(choice["objections"]) or "none"
        yield f"| {choice['price']} | {choice['best_rank']} | {choice['chosen']} | {objections} |"


def format_interval(interval: Sequence[float] | None) -> str:
    """Format a mean with its interval; a dash where something was not measured."""
    if interval is None:
        return "–"
    mean, low, high = interval
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
