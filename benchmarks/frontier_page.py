"""The page docs/results/frontier from what the scripts of the frontier measured.

``benchmarks/frontier.py --report`` calls it. The first file is the run of the protocol; files beside it that
other scripts wrote (their names are in PARTS) become sections of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.files.write import write_text

FOLDER = Path("docs/results/frontier")
PAGE = FOLDER / "README.md"
FIGURE = "frontier.png"
TITLES = {
    "aopc": "AOPC",
    "aopc_mask": "AOPC by [MASK]",
    "sufficiency": "sufficiency ↓",
    "comprehensiveness": "comprehensiveness",
}
ABSTRACT = """\
Which method should a person believe, given what they can pay? We average a one-pass attribution over the
text and random sub-texts of it (`subset_relevance`) and compare it with {count} other rows on held-out texts
of two classifiers, by a protocol that was written down first
([ADR 0019](../../adr/0019-the-frontier-protocol.md)). With 8 sub-texts its mean AOPC is above that of every
one-pass method, of integrated gradients and of Shapley values, which cost thirty to eighty times as many
passes; 64 sub-texts are slightly better. At one pass no method is ahead of `attnlrp` on both tasks, and it
stays the default. By [MASK] in place of deletion the gains are smaller, and on SST-2 the lead over Shapley
values is within the noise. The same passes give each score an error bar.

**[A wider protocol](board.md)** (six tasks, eight measures, tuned models) confirms the gain for classified
texts, and little else: on pairs and questions sub-texts are not reliably better than one pass, and by [MASK]
they are level with Shapley values at best on most tasks. At one pass it finds `fullgrad_plus:gradient=libra`
ahead of `attnlrp` on five of six tasks. [A confirmation on fresh texts](confirmation.md) decided that
`attnlrp` stays: the better candidate costs more memory than a gradient should. `effort=` draws sub-texts
for texts alone.
"""
METHOD = """\
## Method

Let r_i(x) be a token's share of the target by one forward and one rewritten backward pass over the text x:
gradient × hidden state summed over layers (CAT's read-out), where attention maps and the deviation of norms
are constants and the slope of an activation is output over input (CP-LRP's gradient, which equals
LibraGrad's). A sub-text keeps each token with probability ½ and deletes the others; special tokens stay. The
score is the mean of r_i over the text and the sub-texts that hold token i. With no sub-texts it is
`cat:gradient=cp`. It lies between a gradient, which knows the whole text alone, and a Shapley value, which
knows all parts of it ([what it estimates](../../../src/tokenlight/methods/subset_relevance.py)).

Draws are balanced, so that every token is in half of the sub-texts. A score's standard error is the deviation
over the sub-texts that hold the token, divided as for a mean in which the whole text is no random draw.
"""
PROTOCOL = """\
## Protocol

Hypotheses, texts, measures and the rule that picks a default at each price stand in the ADR. The texts begin
behind those of the trial that suggested the method. Passes count a forward and a backward pass over the whole
text as one and a forward pass alone as a half; sub-texts are shorter than the text, so seconds grow more
slowly than passes. Measures are those of [the metrics](../../metrics/index.md) with their defaults; intervals
are 95 % bootstrap intervals of paired differences, 2,000 resamples. `subset_relevance` was run with three
seeds.
"""
COMMANDS = """\
## Make it again

```console
$ export TOKENLIGHT_DATA=DATA     # a folder with sst2/dev.jsonl.gz and ag_news/test.jsonl.gz
$ python benchmarks/frontier.py --device cuda --out docs/results/frontier/frontier.json
$ python benchmarks/frontier.py --report docs/results/frontier/frontier.json    # this page and its figure
```
"""
NOT_SHOWN = """\
## What does not hold, and what is not here

- **Hypothesis 1 fails**: `cat:gradient=cp` is ahead of `attnlrp` on SST-2 and level with it on AG News, where
  its sufficiency is worse. The trial's figures, on texts that had been looked at, were better.
- **Hypothesis 5 holds in part**: by [MASK] the lead over `attnlrp` is a little smaller, and that over
  Shapley values on SST-2 is within the noise: +0.001 [−0.006, +0.007].
- **The read-out is not settled**: on AG News the embeddings alone (`readout=embeddings`) are ahead of CAT's
  sum over layers by 0.017 AOPC, on SST-2 behind by 0.021. The default was chosen before and stays.
- **Two tasks, two models of one size** (MiniLM-L6). [The wider protocol](board.md) has six tasks, tuned
  models, planted words, human rationales, signs, randomised weights and paraphrases.
- **AOPC deletes words, and so does the method.** That favours it; [MASK] is the check, not a proof.
- **Other kinds of input** (masked words, next tokens, similar texts, pictures, encoder-decoders) have a
  [page of their own](kinds.md), and so has [the trial's table](trial.md), made again by one command.
- The GPU ran another job at the time: compare seconds only within a table, and roughly. Rows of rewritten
  gradients were counted as 1.5 passes then; they take one backward pass now, so 1.
- **TokenTM** (Wu et al., CVPR 2024) is not here. Its weights (the length of a transformed token and a
  normalized exponential of its direction) and their aggregation were not checked against the paper or its
  code, and a twin written from memory would test the memory.
- **DecompX** (Modarressi et al., ACL 2023) without biases is `cp_lrp`: attention and the norms' deviation are
  constants there, and activations lines through zero, so that a token's decomposed vector is a linear image
  of its embedding. `tests/twins/test_decompx_twin.py` carries the vectors forward and finds the same shares.
  The paper's default also spreads the biases over the tokens, which is not here.
- **Libra FullGrad+** is `fullgrad_plus:preset=libra`, **Libra AttCAT** `attcat:preset=libra` (LibraGrad,
  Mehri et al., CVPR 2025). Their gradient equals CP-LRP's; a twin checks that the shares of a layer and of
  all biases behind it sum to the logit.
"""


ERRORS_LEGEND = """\
*clear*: scores of at least two standard errors; *wrong sign*: of these, those that have the other sign in the
mean; *stated*: the stability that one seed states; *real*: the share of the top 5 that two seeds have in
common. Normal errors of known size would lie within one standard error in 68 % and within two in 95 % of
cases. With 8 sub-texts a token's error rests on four values, and is too small more often than that.
"""


def write_page(paths: Sequence[Path]) -> None:
    """Write the page and its figure from the file of the protocol, and those that lie beside it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = json.loads(paths[0].read_text(encoding="utf-8"))
    draw_tasks(results["tasks"], FOLDER / FIGURE)
    count = len(next(iter(results["tasks"].values()))["rows"]) - 1
    lines = ["# The most faithful answer at every price", "", ABSTRACT.format(count=count)]
    lines += [METHOD, PROTOCOL, *render_results(results)]
    for name, render in PARTS.items():
        path = paths[0].parent / name
        if path.is_file():
            lines += ["", *render(json.loads(path.read_text(encoding="utf-8")))]
    lines += ["", NOT_SHOWN, COMMANDS.rstrip()]
    write_text(PAGE, "\n".join(lines) + "\n")


def draw_tasks(tasks: dict[str, Any], path: Path) -> None:
    """Draw AOPC against passes and against seconds, every row a point; sub-texts are joined."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(tasks), figsize=(7.4 * len(tasks), 10.4), squeeze=False)
    for column, (task, part) in enumerate(tasks.items()):
        for axis, cost in zip(axes[:, column], ("passes", "seconds"), strict=True):
            draw_frontier(axis, part["rows"], cost)
            axis.set_title(f"{task}, {part['texts']} texts", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def draw_frontier(axis: Any, rows: Sequence[dict[str, Any]], cost: str) -> None:
    """Draw one panel: points with names, the joined sub-texts, and the line that nothing lies above."""
    points = [(row[cost], row["means"]["aopc"][0], row["label"]) for row in rows]
    costs = [point[0] for point in points]
    axis.set_xscale("log")
    axis.set_xlim(min(costs) / 12, max(costs) * 12)
    values = [point[1] for point in points]
    axis.set_ylim(min(values) - 0.03, max(values) + 0.04)
    best = -np.inf
    front = []
    for x, y, _ in sorted(points):
        if y > best:
            best = y
            front.append((x, y))
    front.append((max(costs) * 12, best))
    axis.step(*zip(*front, strict=True), where="post", color="0.75", linewidth=1.2, zorder=1)
    sampled = sorted(point for point in points if is_joined(point[2]))
    xs = [point[0] for point in sampled]
    ys = [point[1] for point in sampled]
    axis.plot(xs, ys, "o-", color="C2", zorder=3, label="subset_relevance, by sub-texts")
    for x, y, label in sampled:
        number = label.split(", ")[1].removesuffix(" sub-texts")
        axis.annotate(
            number,
            (x, y),
            xytext=(0, -13),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="C2",
        )
    axis.legend(loc="lower right", fontsize=8)
    others = [point for point in points if not is_joined(point[2])]
    axis.scatter([x for x, _, _ in others], [y for _, y, _ in others], s=22, color="0.35", zorder=2)
    middle = float(np.sqrt(min(costs) * max(costs)))
    place_labels(axis, [point for point in others if point[0] < middle / 3], side=-1)
    place_labels(axis, [point for point in others if point[0] >= middle / 3], side=1)
    axis.set(xlabel=f"{cost} (log)", ylabel="AOPC")
    axis.grid(alpha=0.25)


def is_joined(label: str) -> bool:
    """Return whether a row is subset_relevance with its defaults, and so a point of the green line."""
    return label.startswith("subset_relevance") and "=" not in label


def place_labels(axis: Any, points: Sequence[tuple[float, float, str]], side: int) -> None:
    """Write the names of points in a column at one side of the panel, apart from each other."""
    low, high = axis.get_ylim()
    gap = (high - low) / 30
    left, right = axis.get_xlim()
    column = left * 1.1 if side < 0 else right / 1.1
    ordered = sorted(points, key=lambda point: -point[1])
    positions: list[float] = []
    for _, y, _ in ordered:
        positions.append(min(y, positions[-1] - gap) if positions else y)
    # What ran out at the bottom is pushed up again.
    floor = low + gap / 2
    for index in reversed(range(len(positions))):
        positions[index] = max(positions[index], floor)
        floor = positions[index] + gap
    for (x, y, label), position in zip(ordered, positions, strict=True):
        axis.annotate(
            label.replace("subset_relevance, ", ""),
            (x, y),
            xytext=(column, position),
            fontsize=7.5,
            color="C2" if label.startswith("subset") else "0.15",
            ha="left" if side < 0 else "right",
            va="center",
            arrowprops={"arrowstyle": "-", "color": "0.8", "linewidth": 0.5},
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            zorder=2,
        )


def render_results(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the protocol's run: figure, tables, hypotheses, choices."""
    facts = results["facts"]
    yield "## Results"
    yield from ("", f"![AOPC of every method against its passes and its seconds]({FIGURE})")
    yield from ("", f"Texts: {results['texts']}; {facts['device']}, commit {facts['commit']}.")
    yield f"`{results['command']}`"
    yield from render_choices(results["choices"])
    yield from render_hypotheses(results["hypotheses"])
    yield from render_tables(results["tasks"])


def render_tables(tasks: dict[str, Any]) -> Iterator[str]:
    """Yield one table per task."""
    for task, part in tasks.items():
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


def render_hypotheses(tests: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of hypotheses, each with its verdict."""
    yield from ("", "### Hypotheses", "")
    yield "| | comparison | measure | difference by task | ahead on every task |"
    yield "|---|---|---|---|---|"
    for test in tests:
        parts = [f"{task} {format_interval(value)}" for task, value in test["differences"].items()]
        comparison = f"{test['this']} − {test['that']}"
        lows = [value[1] for value in test["differences"].values() if value is not None]
        verdict = "yes" if lows and min(lows) > 0 else "no"
        yield (
            f"| {test['hypothesis']} | {comparison} | {TITLES[test['metric']]} | {'; '.join(parts)} "
            f"| {verdict} |"
        )


def render_choices(choices: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what the rule chose at each price, and the effort that stands for it."""
    yield from ("", "### What the rule chose", "")
    yield "| price | `effort=` | best mean rank | chosen | objections |"
    yield "|---|---|---|---|---|"
    for choice, effort in zip(choices, ("instant", "normal", "thorough"), strict=True):
        objections = "; ".join(choice["objections"]) or "none"
        yield (
            f"| {choice['price']} | `{effort}` | {choice['best_rank']} | {choice['chosen']} | {objections} |"
        )


def render_added(results: dict[str, Any]) -> Iterator[str]:
    """Yield the one-pass methods that were added after the protocol's run."""
    facts = results["facts"]
    yield from ("## One-pass methods that were added later", "")
    yield f"Held-out texts again, fewer of them ({facts['device']}, commit {facts['commit']}):"
    yield f"`{results['command']}`. They were no candidates of the rule's run."
    yield from render_tables(results["tasks"])


def render_ablation(results: dict[str, Any]) -> Iterator[str]:
    """Yield the options of subset_relevance, on the trial's texts, as differences from its defaults."""
    facts = results["facts"]
    yield from ("## Ablation", "")
    yield "Options of `subset_relevance` (8 sub-texts, one seed) on the trial's texts"
    yield f"({facts['device']}, commit {facts['commit']}): `{results['command']}`."
    yield "None of them was changed after the evidence was seen."
    yield from render_tables(results["tasks"])


def render_errors(results: dict[str, Any]) -> Iterator[str]:
    """Yield how far the error bars can be believed."""
    yield from ("## Are the error bars right?", "")
    yield f"`{results['command']}`: each text is explained with several seeds,"
    yield "and their mean stands for what more samples would give."
    yield from (
        "",
        "| task | sub-texts | within 1 SE | within 2 SE | clear | wrong sign | stated | real |",
    )
    yield "|---|---|---|---|---|---|---|---|"
    for task, figures_by_samples in results["tasks"].items():
        for samples, figures in figures_by_samples.items():
            names = (
                "within_one", "within_two", "marked_clear", "wrong_sign", "stability", "shared_top",
            )  # fmt: skip
            cells = [f"{100 * figures[name]:.1f} %" for name in names]
            yield f"| {task} | {samples} | {' | '.join(cells)} |"
    yield from ("", ERRORS_LEGEND.rstrip())


def render_cost(results: dict[str, Any]) -> Iterator[str]:
    """Yield what sub-texts cost beside one attnlrp."""
    facts = results["facts"]
    yield from ("## Cost", "")
    yield f"{results['shape']} tokens, {results['model']}, {facts['device']}, commit {facts['commit']},"
    yield f"medians of {results['rounds']} rounds (`python benchmarks/subset_cost.py`). Goal: at most"
    yield f"{results['goal']} × for 8 sub-texts, which hold as many tokens as four texts. Other jobs ran"
    yield "on the machine, hence the range over rounds."
    yield from ("", "| method | seconds | × attnlrp | range |", "|---|---|---|---|")
    for row in results["rows"]:
        low, high = row["range"]
        yield f"| {row['method']} | {row['seconds']:.3f} | {row['ratio']:.2f} | {low:.2f}–{high:.2f} |"


def render_count(results: dict[str, Any]) -> Iterator[str]:
    """Render how sub-texts are packed into passes."""
    from subset_cost import render_counts

    yield "## Passes over sub-texts"
    yield ""
    yield "How the sub-texts of one call are packed, counted without a clock"
    yield f"(`python benchmarks/subset_cost.py --count`, commit {results['facts']['commit']})."
    yield "On a GPU a pass whose shape was seen before is launched at once, as a CUDA graph; any other is"
    yield "launched kernel by kernel. Packed by length, each call has shapes of its own; packed for replay,"
    yield "five calls with other texts share a few. The pass over the whole texts is replayed, too. The"
    yield "multiples of `attnlrp` on a GPU (BERT-base, above) were measured before that."
    yield ""
    yield from render_counts(results)


PARTS = {
    "added.json": render_added,
    "ablation.json": render_ablation,
    "errors.json": render_errors,
    "cost.json": render_cost,
    "cost_cuda.json": render_cost,
    "count.json": render_count,
}


def format_interval(interval: Sequence[float] | None) -> str:
    """Format a mean with its interval; a dash where something was not measured."""
    if interval is None:
        return "–"
    mean, low, high = interval
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
