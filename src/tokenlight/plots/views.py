"""What the HTML template shows, as plain values: it decides nothing, this does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenlight.attribution import Attribution
from tokenlight.plots.colours import step, step_name
from tokenlight.plots.groups import TextGroup, strongest
from tokenlight.plots.layers import SUM, layer_table
from tokenlight.plots.passages import Passage, Stretch, passages, stretch_score
from tokenlight.postprocess import merge_words

MOST_COLUMNS = 300  # of a heat map; a book would make a page no browser opens
MOST_LABELS = 8
LONG = 250  # tokens from which a text scrolls in its own box
TOP = 6


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters with their look and what hovering says; text between tokens has neither."""

    text: str
    look: str = ""
    hover: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One segment, with its name and share where the input is a pair."""

    marks: tuple[Mark, ...]
    name: str
    share: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, a number in words, and a bar of ``width`` per cent."""

    name: str
    number: str
    width: float
    look: str = ""


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map: column heads (name, special), and rows of (look, number, hover, special)."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, tuple[tuple[str, str, str, bool], ...]], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class View:
    """One reading of an attribution: by tokens or by words; ``kind`` is empty where both agree."""

    kind: str
    lines: tuple[Line, ...]
    long: bool
    top: tuple[Bar, ...]
    heat: Heat | None


def number(value: float) -> str:
    """A score with its sign, three digits, and the minus that is as wide as the plus."""
    return f"{value:+.3g}".replace("-", "−")


def views(attribution: Attribution, scale: float) -> tuple[View, ...]:
    """Token view and word view; one view where every word is one token."""
    merged = merge_words(attribution)
    if len(merged) == len(attribution):
        return (_view(attribution, scale, ""),)
    # A word may be stronger than any of its tokens: its full colour grows with it.
    growth = strongest(merged) / (strongest(attribution) or 1.0)
    return _view(attribution, scale, "tokens"), _view(merged, scale * growth, "words")


def _view(attribution: Attribution, scale: float, kind: str) -> View:
    shares = attribution.segment_shares()
    answer = _answer(attribution)
    found = passages(attribution.row)
    span = attribution.target.kind == "span"
    lines = []
    for passage in found:
        name, share = "", ""
        if len(found) > 1 and passage.segment is not None:
            pair = ("question", "context") if span else ("first", "second")
            name = pair[passage.segment] if passage.segment < 2 else f"part {passage.segment + 1}"
            share = f"{shares.get(passage.segment, 0.0):.0%}"
        lines.append(Line(_marks(attribution, passage, scale, answer), name, share))
    top = tuple(
        Bar(
            token,
            number(score),
            _percent(score, scale),
            step_name(step(score, scale) or _sign(score)),
        )
        for token, score in attribution.top(TOP)
        if score
    )
    return View(kind, tuple(lines), len(attribution) > LONG, top, _heat(attribution))


def _marks(
    attribution: Attribution, passage: Passage, scale: float, answer: frozenset[int]
) -> tuple[Mark, ...]:
    row, marks = attribution.row, []
    last = max(
        (n for n, s in enumerate(passage.stretches) if s.positions and not s.special), default=0
    )
    for place, stretch in enumerate(passage.stretches):
        if not stretch.positions:
            beyond = row.cut and place > last and stretch.text.strip()
            marks.append(Mark(stretch.text, "cut" if beyond else ""))
            continue
        score = stretch_score(attribution, stretch)
        looks = ["chip" if stretch.special else "token"]
        if not stretch.special:
            looks.append(step_name(step(score, scale)))
        if answer.intersection(stretch.positions):
            looks.append("answer")
        if not any(row.attention[position] for position in stretch.positions):
            looks.append("masked")
        hover = _hover(attribution, stretch, score)
        marks.append(Mark(stretch.text, " ".join(filter(None, looks)), hover))
    return tuple(marks)


def _hover(attribution: Attribution, stretch: Stretch, score: float) -> str:
    row = attribution.row
    pieces = [
        f"{row.pieces[p]}"
        + (f" {number(attribution.scores[p])}" if len(stretch.positions) > 1 else "")
        for p in stretch.positions
    ]
    masked = "" if any(row.attention[p] for p in stretch.positions) else " · masked out"
    return f"{stretch.text}  {number(score)}  · piece {' + '.join(pieces)}{masked}"


def _answer(attribution: Attribution) -> frozenset[int]:
    """Positions of the answer that a span target explains, in a row of tokens or of words."""
    if attribution.target.kind != "span":
        return frozenset()
    if any(made.startswith("merge_words") for made in attribution.steps):
        return frozenset()  # the target counts tokens
    places = [at[0] for at, _ in attribution.target.terms]
    return frozenset(range(min(places), max(places) + 1))


def _heat(attribution: Attribution) -> Heat | None:
    if attribution.layers is None:
        return None
    table = layer_table(attribution).strongest(MOST_COLUMNS)
    shares, rows = table.normalised().values, []
    for name, scale, terms, parts in zip(
        table.rows, table.scales, table.values, shares, strict=True
    ):
        cells = tuple(
            (
                step_name(step(float(term), scale)),
                f"{part:+.2f}".replace("-", "−") if name == SUM else "",
                f"{token}  {name}  {number(float(term))}",
                special,
            )
            for term, part, token, special in zip(
                terms, parts, table.columns, table.special, strict=True
            )
        )
        rows.append((name, cells))
    return Heat(tuple(zip(table.columns, table.special, strict=True)), tuple(rows), table.left_out)


def prediction_bars(group: TextGroup) -> tuple[tuple[Bar, ...], int]:
    """Probability bars, most probable first, and how many labels are left out."""
    prediction = group.first.prediction
    targets = {target.name for target in group.targets}
    ranked = sorted(enumerate(prediction.probabilities), key=lambda pair: -pair[1])
    bars = []
    for index, chance in ranked[:MOST_LABELS]:
        name = prediction.labels[index]
        look = "predicted" if index == prediction.index else ""
        look += " explained" if name in targets else ""
        bars.append(Bar(name, percent(chance), round(100 * chance, 2), look.strip()))
    return tuple(bars), max(0, len(ranked) - MOST_LABELS)


def percent(chance: float) -> str:
    """A probability in per cent that never claims a certainty it does not have."""
    if 0.999 < chance < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < chance < 0.001 else f"{100 * chance:.1f} %"


def badges(attribution: Attribution) -> tuple[str, ...]:
    """What is known about how far to trust it: a verdict, and how much relevance was kept or
    how far the scores of a path method are from their sum."""
    found: list[str] = []
    trust: Any = attribution.extras.get("trust")
    if isinstance(trust, dict) and trust.get("verdict"):
        found.append(str(trust["verdict"]))
    kept: Any = attribution.extras.get("conservation")
    if isinstance(kept, list) and kept:
        found.append(f"relevance kept: {min(kept):.3f} to {max(kept):.3f} over the layers")
    path: Any = attribution.extras.get("convergence")
    if isinstance(path, dict) and "gap_percent" in path:
        found.append(f"sum of the scores off by {path['gap_percent']:.2g} %")
    return tuple(found)


def provenance(attribution: Attribution) -> tuple[tuple[str, str], ...]:
    """All that is needed to make it again, as name and value."""
    options = ", ".join(f"{name}={value}" for name, value in attribution.options.items())
    versions = ", ".join(f"{name} {version}" for name, version in attribution.versions.items())
    given = {
        "method": attribution.method,
        "options": options or "defaults",
        "target": attribution.target.name,
        "model": attribution.model,
        "tokens": str(len(attribution)),
        "seed": str(attribution.seed),
        "steps": ", ".join(attribution.steps),
        "versions": versions,
    }
    return tuple((name, value) for name, value in given.items() if value)


def _percent(score: float, scale: float) -> float:
    return round(min(1.0, abs(score) / scale) * 100, 1) if scale else 0.0


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)
