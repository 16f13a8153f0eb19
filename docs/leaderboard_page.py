"""The leaderboard's page, charts and HTML, from docs/results/leaderboard.json, which the benchmark writes.

python docs/leaderboard_page.py        # write them anew; a test compares
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from svg import ACCENT, FAINT, GRID, INK, MUTED, WIDTH, dot, drawing, line, text

RESULTS = Path(__file__).parent / "results"
DATA = RESULTS / "leaderboard.json"
PAIRS = RESULTS / "pairs"
SORTING = Path(__file__).parent / "javascripts" / "sort.js"
DEFAULT = "AttnLRP"  # the method of explain() without a name
FLOOR = "Random"
FAITHFUL = "AOPC"
DECIDING_WORDS = (
    "Deciding word: the share of counterfactual pairs in which the method's top word is one that decides the "
    "next token of a language model, 1 being the best. It takes no part in the rank, which is over encoders; "
    "a dash was not measured."
)
COMMAND = "python benchmarks/leaderboard.py --models MODELS --data DATA --work WORK --device cuda"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1f2933}"
    ".charts{display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start}.charts svg{flex:1 1 20rem;max-width:34rem}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child,.words td,.words th{text-align:left}summary{cursor:pointer;margin:.6rem 0}"
    "th{vertical-align:bottom}th.sortable{cursor:pointer}.scroll td{white-space:nowrap}"
    ".words .scroll td{white-space:normal}.scroll td:first-child{position:sticky;left:0;background:#fff}"
    "@media(max-width:70rem){.scroll:not(.words *)::before{content:'scroll sideways for more →';color:#6b7785;"
    "font-size:.85em}}"
)


# --- tables ---------------------------------------------------------------------------------------


def rank_table(board: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of ranks."""
    titles = [measure["title"] for measure in board["measures"]]
    found = load_deciding_words()
    words_heads = [f"Deciding word, {model}" for model in found]
    heads = ["method", "mean rank", *titles, *words_heads, "passes per text", "ms per text"]
    rows = []
    for method in board["methods"]:
        cells = [_number(method["measures"].get(title)) for title in titles]
        cells += [_number(shares.get(method["label"]), 2) for shares in found.values()]
        cost = [_number(method["passes"]), _number(method["ms"])]
        rows.append([method["label"], _interval(method["rank"]), *cells, *cost])
    return heads, rows


def load_deciding_words() -> dict[str, dict[str, float]]:
    """By language model: the share of counterfactual pairs whose deciding word each method names first."""
    found: dict[str, dict[str, float]] = {}
    for path in sorted(PAIRS.glob("*.json")):
        results = json.loads(path.read_text("utf-8"))
        shares = {label: row["top"] for label, row in results["methods"].items()}
        found[results["model"]] = shares
    return found


def measure_table(measure: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of one measure: the rank, and the mean on each task."""
    heads = ["method", "rank", *(task["title"] for task in measure["tasks"])]
    rows = []
    for row in measure["rows"]:
        means = [_number(mean, 3) for mean in row["means"]]
        rows.append([row["label"], _interval(row["rank"]), *means])
    return heads, rows


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(rank: Iterable[float]) -> str:
    mean, low, high = rank
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


# --- charts ---------------------------------------------------------------------------------------


def draw_ranks(board: Mapping[str, Any]) -> str:
    """Mean rank with its interval, best method on top."""
    methods = board["methods"]
    left = 176
    right = 16
    top = 62
    step = 19
    bottom = top + step * len(methods)
    most = len(methods)

    def x(rank: float) -> float:
        return left + (rank - 1) / max(most - 1, 1) * (WIDTH - left - right)

    parts = [
        text(14, 24, "Mean rank over eight kinds of measure", size=15, weight="bold"),
        text(14, 42, f"1 is best of {most}; the line is the 95 % interval", fill=FAINT),
    ]
    for rank in [1, *range(5, most + 1, 5)]:
        parts.append(line((x(rank), top - 8), (x(rank), bottom - 8), GRID))
        parts.append(text(x(rank), bottom + 8, str(rank), anchor="middle", fill=FAINT))
    for row, method in enumerate(methods):
        y = top + step * row
        mean, low, high = method["rank"]
        colour = _colour(method["label"])
        weight = "bold" if method["label"] == DEFAULT else "normal"
        parts.append(text(left - 8, y + 4, method["label"], anchor="end", weight=weight, fill=INK))
        parts.append(line((x(low), y), (x(high), y), colour, 3))
        parts.append(dot(x(mean), y, colour, f"{method['label']}: {_interval(method['rank'])}"))
    parts.append(text(14, bottom + 30, "bold: the default of explain()", fill=FAINT))
    return drawing(parts, bottom + 44, "Mean rank of each method with its 95 % interval")


def _colour(label: str) -> str:
    if label == DEFAULT:
        return ACCENT
    return "#b45309" if label == FLOOR else "#3b6ea5"


def draw_cost(board: Mapping[str, Any]) -> str:
    """Faithfulness over the time per text, on a logarithmic axis."""
    means = _mean_of_measure(board, FAITHFUL)
    points = []
    for method in board["methods"]:
        if method["ms"] and method["label"] in means:
            points.append((method["label"], method["ms"], means[method["label"]]))
    left = 44
    right = 18
    top = 66
    height = 330
    bottom = top + height
    least = math.log10(min(ms for _, ms, _ in points)) - 0.08
    most = math.log10(max(ms for _, ms, _ in points)) + 0.08
    highest = math.ceil(max(mean for *_, mean in points) * 20) / 20
    lowest = math.floor(min(mean for *_, mean in points) * 10) / 10

    def x(ms: float) -> float:
        return left + (math.log10(ms) - least) / (most - least) * (WIDTH - left - right)

    def y(mean: float) -> float:
        return bottom - (mean - lowest) / (highest - lowest) * height

    parts = [
        text(14, 24, "Faithfulness against cost", size=15, weight="bold"),
        text(14, 42, "AOPC, mean over three tasks; upper left is better", fill=FAINT),
    ]
    for tenth in range(round(lowest * 10), math.floor(highest * 10) + 1):
        parts.append(line((left, y(tenth / 10)), (WIDTH - right, y(tenth / 10)), GRID))
        parts.append(
            text(left - 6, y(tenth / 10) + 4, f"{tenth / 10:.1f}", anchor="end", fill=FAINT)
        )
    for ms in (5, 10, 20, 50, 100, 200):
        if least <= math.log10(ms) <= most:
            parts.append(text(x(ms), bottom + 18, f"{ms} ms", anchor="middle", fill=FAINT))
    frontier = _frontier(points)
    corners = " ".join(f"{x(ms):.1f},{y(mean):.1f}" for _, ms, mean in frontier)
    parts.append(
        f'<polyline points="{corners}" fill="none" stroke="{ACCENT}" stroke-dasharray="4 4"/>'
    )
    shown = {label for label, *_ in frontier} | {
        DEFAULT,
        FLOOR,
        "Integrated gradients",
        "Occlusion",
        "LIME",
    }
    names = []
    for label, ms, mean in sorted(points, key=lambda point: point[0] in shown):
        colour = _colour(label) if label in shown else MUTED
        parts.append(dot(x(ms), y(mean), colour, f"{label}: AOPC {mean:.2f}, {ms:.1f} ms per text"))
        if label in shown:
            names.append((label, x(ms), y(mean)))
    parts += _place_names(names, [(x(ms), y(mean)) for _, ms, mean in points])
    parts.append(
        text(14, bottom + 40, "dashed: no method is both cheaper and more faithful", fill=FAINT)
    )
    return drawing(parts, bottom + 54, "Faithfulness of each method against its time per text")


def _mean_of_measure(board: Mapping[str, Any], title: str) -> dict[str, float]:
    """The mean of a measure over its tasks, by method."""
    for measure in board["measures"]:
        if measure["title"] == title:
            return {
                row["label"]: sum(row["means"]) / len(row["means"])
                for row in measure["rows"]
                if None not in row["means"]
            }
    return {}


def _frontier(points: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """The methods that no other one beats at the same or a lower cost, cheapest first."""
    frontier: list[tuple[str, float, float]] = []
    for point in sorted(points, key=lambda point: (point[1], -point[2])):
        if not frontier or point[2] > frontier[-1][2]:
            frontier.append(point)
    return frontier


def _place_names(
    names: list[tuple[str, float, float]], dots: list[tuple[float, float]]
) -> Iterator[str]:
    """Write each name beside its point, where neither another name nor a point is in the way."""
    name_boxes: list[tuple[float, float, float]] = []
    for label, x, y in sorted(names, key=lambda name: name[2]):
        width = 6.6 * len(label)
        best: tuple[int, float, float] | None = None
        for shift in (0, -12, 12, -18, 18, 26):
            for start in (x + 8, x - 8 - width):
                if start < 4 or start + width > WIDTH - 4:
                    continue
                baseline = y + 4 + shift
                crossed = _count_crossed(start, start + width, baseline, name_boxes, dots)
                if best is None or crossed < best[0]:
                    best = (crossed, start, baseline)
        if best is None:
            continue
        _, start, baseline = best
        name_boxes.append((start, start + width, baseline))
        weight = "bold" if label == DEFAULT else "normal"
        yield text(start, baseline, label, weight=weight)


def _count_crossed(
    start: float,
    end: float,
    baseline: float,
    name_boxes: list[tuple[float, float, float]],
    dots: list[tuple[float, float]],
) -> int:
    """Count the names and points that words between ``start`` and ``end`` would cover."""
    count = 0
    for other_start, other_end, other_baseline in name_boxes:
        count += 2 * (
            abs(baseline - other_baseline) < 13 and start < other_end and other_start < end
        )
    for x, y in dots:
        count += start - 3 < x < end + 3 and abs(baseline - 4 - y) < 10
    return count


# --- pages ----------------------------------------------------------------------------------------


def findings(board: Mapping[str, Any]) -> list[str]:
    """What the board says, in sentences made from its numbers."""
    methods = board["methods"]
    first = methods[0]
    level = [method["label"] for method in methods[1:] if method["rank"][1] <= first["rank"][2]]
    worse = [method["label"] for method in methods if method["rank"][0] > _rank_of(board, FLOOR)]
    leaders = {measure["rows"][0]["label"] for measure in board["measures"]}
    sentences = [f"**{first['label']}** leads with a mean rank of {first['rank'][0]:.1f}."]
    if level:
        sentences.append(f"The intervals of these reach into its own: {'; '.join(level)}.")
    if len(leaders) > 1:
        sentences.append(
            f"No method leads everywhere: {len(leaders)} methods lead one of the {len(board['measures'])} "
            "measures."
        )
    if worse:
        sentences.append(f"Behind random scores on the whole: {'; '.join(worse)}.")
    return sentences


def leader_table(board: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: what each measure asks, and who leads it."""
    rows = []
    for measure in board["measures"]:
        rows.append([measure["title"], measure["asked"], measure["rows"][0]["label"]])
    return ["measure", "what it asks", "leader"], rows


def _rank_of(board: Mapping[str, Any], label: str) -> float:
    ranks = [method["rank"][0] for method in board["methods"] if method["label"] == label]
    return float(ranks[0]) if ranks else math.inf


def _asked(measure: Mapping[str, Any]) -> str:
    return str(measure["asked"])


def _sources(measure: Mapping[str, Any]) -> str:
    tasks = ", ".join(f"{task['title']}: {task['texts']:,} texts" for task in measure["tasks"])
    return f"`{measure['label']}` of the suite `{measure['suite']}`. {tasks}."


def markdown(board: Mapping[str, Any]) -> str:
    """The page of the guide; a checkout shows it too."""
    heads, rows = rank_table(board)
    parts = [
        "# Leaderboard",
        f"{len(rows)} methods, {len(board['measures'])} kinds of measure, {board['num_tasks']} tasks. "
        "Click a head to sort by it (in the guide, and in [leaderboard.html](leaderboard.html)).",
        "![Mean rank of each method with its interval](leaderboard_ranks.svg)\n"
        "![Faithfulness of each method against its time per text](leaderboard_cost.svg)",
        "## What it says",
        "\n".join(f"- {sentence}" for sentence in findings(board)),
        _markdown_table(*leader_table(board)),
        "## Ranks",
        f"Of {len(rows)} methods: the mean over the measures with its 95 % interval, then the rank in each "
        "measure, 1 being the best. Cost takes no part in the rank.",
        f"{DECIDING_WORDS} See [which word decided?](pairs/README.md)",
        _markdown_table(heads, rows),
        "## Each measure",
    ]
    for measure in board["measures"]:
        title = f"<strong>{escape(measure['title'])}</strong>: {escape(_asked(measure))}"
        table = _markdown_table(*measure_table(measure))
        parts.append(
            f'<details markdown="1"><summary>{title}</summary>\n\n{_sources(measure)}\n\n{table}\n\n</details>'
        )
    parts += ["## How it is ranked", board["how"], f"    {COMMAND}"]
    parts += ["## How it was made", "\n".join(f"- {note}" for note in board["notes"])]
    return "\n\n".join(parts) + "\n"


def _markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, *rows]
    cells = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines
    ]
    cells.insert(1, "|" + "---|" * len(heads))
    return "\n".join(cells)


def page(board: Mapping[str, Any]) -> str:
    """The same as one HTML file: nothing from outside, all escaped, tables that sort."""
    heads, rows = rank_table(board)
    sentences = "".join(f"<li>{_bold(sentence)}</li>" for sentence in findings(board))
    parts = [
        "<h1>Leaderboard</h1>",
        f'<div class="charts">{draw_ranks(board)}{draw_cost(board)}</div>',
        f'<ul>{sentences}</ul><div class="words">{_html_table(*leader_table(board))}</div>',
        f"<h2>Ranks</h2><p>Click a head to sort by it. {escape(DECIDING_WORDS)}</p>",
        _html_table(heads, rows),
    ]
    for measure in board["measures"]:
        title = f"<strong>{escape(measure['title'])}</strong>: {escape(_asked(measure))}"
        table = _html_table(*measure_table(measure))
        sources = escape(_sources(measure)).replace("`", "")
        parts.append(f"<details><summary>{title}</summary><p>{sources}</p>{table}</details>")
    parts.append(f"<p>{escape(board['how'])}</p>")
    parts += [f"<p>{escape(note)}</p>" for note in board["notes"]]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Leaderboard</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}"
        f"<script>{SORTING.read_text('utf-8')}</script></body></html>\n"
    )


def _bold(sentence: str) -> str:
    before, _, remainder = escape(sentence).partition("**")
    name, _, after = remainder.partition("**")
    return f"{before}<strong>{name}</strong>{after}" if remainder else before


def _html_table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = ""
    for row in rows:
        body += "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def load_board() -> dict[str, Any]:
    """The board as the benchmark left it."""
    board: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return board


def render_files(board: Mapping[str, Any]) -> dict[str, str]:
    """File name to content of everything that is made from the board."""
    return {
        "leaderboard.md": markdown(board),
        "leaderboard.html": page(board),
        "leaderboard_ranks.svg": draw_ranks(board),
        "leaderboard_cost.svg": draw_cost(board),
    }


def main() -> None:
    """Write the files."""
    for name, content in render_files(load_board()).items():
        (RESULTS / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main()
