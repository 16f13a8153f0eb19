"""What the HTML template shows, as plain values: it decides nothing, this does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenlight.attribution import Attribution
from tokenlight.plots.classes import ClassTable, class_table
from tokenlight.plots.colours import step, step_name
from tokenlight.plots.facts import Bar, even, number
from tokenlight.plots.grids import Grid, grid
from tokenlight.plots.groups import strongest
from tokenlight.plots.layers import SUM, layer_table
from tokenlight.plots.passages import Passage, Stretch, passages, stretch_score
from tokenlight.plots.zoom import is_long, sentence_parts
from tokenlight.postprocess import merge_words
from tokenlight.segments import SegmentShare

Spans = Mapping[str, frozenset[int]]  # look of an answer -> its tokens
MOST_SENTENCES = 12  # that are seen at once
MOST_COLUMNS = 300  # of a heat map; a book would make a page no browser opens
TOP = 6
HALF = 0.5  # of the score on special tokens is worth saying


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters with their look and what hovering says; text between tokens has neither."""

    text: str
    look: str = ""
    hover: str | None = None
    chip: bool = False  # a special token, which is no part of the text and its direction


@dataclass(frozen=True, slots=True)
class Line:
    """One segment, with its name and what it weighs where the input is a pair."""

    marks: tuple[Mark, ...]
    name: str
    share: str


@dataclass(frozen=True, slots=True)
class SentenceBar:
    """One sentence of a long text: a bar, the sentence, and its tokens when it is opened."""

    part: str  # name of the segment where a new one begins
    text: str
    number: str
    width: float
    look: str
    marks: tuple[Mark, ...]
    opened: bool


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map: column heads (name, special), and rows of (look, number, hover, special).

    ``summed``: whether the last row is the sum of the others.
    """

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, tuple[tuple[str, str, str, bool], ...]], ...]
    left_out: int
    summed: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """One reading of an attribution: by tokens or by words; ``kind`` is empty where both agree."""

    kind: str
    lines: tuple[Line, ...]
    special: str  # what the special tokens weigh, where the input is a pair
    long: bool
    sentences: tuple[SentenceBar, ...]
    strongest: tuple[SentenceBar, ...]  # where there are too many to be seen at once
    top: tuple[Bar, ...]
    heat: Heat | None
    grid: Grid | None = None  # of a picture


def views(attribution: Attribution, scale: float) -> tuple[View, ...]:
    """Token view and word view; one view where every word is one token."""
    merged, answer = merge_words(attribution), spans_shown(attribution)
    if len(merged) == len(attribution):
        return (_view(attribution, scale, "", answer),)
    # A word may be stronger than any of its tokens: its full colour grows with it.
    growth = strongest(merged) / (strongest(attribution) or 1.0)
    words = _word_numbers(attribution)
    in_words = {look: frozenset(words[i] for i in places) for look, places in answer.items()}
    return (
        _view(attribution, scale, "tokens", answer),
        _view(merged, scale * growth, "words", in_words),
    )


def _word_numbers(attribution: Attribution) -> list[int]:
    """Where each token's word stands in the merged row."""
    numbers: list[int] = []
    for place, word in enumerate(attribution.row.words):
        joined = place > 0 and word is not None and word == attribution.row.words[place - 1]
        numbers.append(numbers[-1] if joined else numbers[-1] + 1 if numbers else 0)
    return numbers


def _view(attribution: Attribution, scale: float, kind: str, answer: Spans) -> View:
    found = passages(attribution.row)
    weights = {part.segment: part for part in attribution.segment_shares()}
    several = len(found) > 1
    lines = []
    for passage in found:
        part = weights.get(passage.segment) if several else None
        name, share = ("", "") if part is None else (part.name, weight(part))
        lines.append(Line(_marks(attribution, passage, scale, answer), name, share))
    own = weights.get(None)
    # Where special tokens carry most of the score, the words alone would tell another story.
    special = weight(own) if own is not None and (several or own.share > HALF) else ""
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
    names = {s: f"{part.name} · {weight(part)}" for s, part in weights.items() if several}
    bars = _sentences(attribution, scale, answer, names)
    widest = sorted(bars, key=lambda bar: -bar.width)[: TOP if len(bars) > MOST_SENTENCES else 0]
    few = {id(bar) for bar in widest}  # sentences may be equal
    return View(
        kind,
        tuple(lines),
        special,
        is_long(attribution),
        bars,
        tuple(bar for bar in bars if id(bar) in few),
        top,
        _heat(attribution),
        grid(attribution, scale),
    )


def weight(part: SegmentShare) -> str:
    """What a part of the input weighs, in words."""
    return f"{part.share:.0%} of the weight, sum {number(part.total)}".replace("%", " %")


def _sentences(
    attribution: Attribution, scale: float, answer: Spans, names: Mapping[int | None, str]
) -> tuple[SentenceBar, ...]:
    found = sentence_parts(attribution)
    largest = max((abs(part.score) for part in found), default=0.0)
    bars, segment = [], None
    for part in found:
        begins = part.segment != segment
        segment = part.segment
        bars.append(
            SentenceBar(
                names.get(segment, "") if begins else "",
                part.text,
                even(part.score, largest),
                _percent(part.score, largest),
                step_name(step(part.score, largest) or _sign(part.score)),
                _marks(attribution, Passage(segment, part.stretches), scale, answer),
                largest > 0 and abs(part.score) == largest,
            )
        )
    return tuple(bars)


def _marks(
    attribution: Attribution, passage: Passage, scale: float, answer: Spans
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
        looks += [look for look, places in answer.items() if places & {*stretch.positions}]
        if not any(row.attention[position] for position in stretch.positions):
            looks.append("masked")
        hover = _hover(attribution, stretch, score)
        marks.append(Mark(stretch.text, " ".join(filter(None, looks)), hover, stretch.special))
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


def spans_shown(attribution: Attribution) -> Spans:
    """Positions of the answer that a span target explains, and of the one it is held against."""
    if attribution.target.kind != "span":
        return {}
    if any(made.startswith("merge_words") for made in attribution.steps):
        return {}  # the target counts tokens
    found = {}
    for look, sign in (("answer", 1), ("rival", -1)):
        places = [at[0] for at, weight in attribution.target.terms if weight * sign > 0]
        if places:
            found[look] = frozenset(range(min(places), max(places) + 1))
    return found


def _heat(attribution: Attribution) -> Heat | None:
    if attribution.layers is None or attribution.row.image is not None:
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


def class_heat(attributions: Sequence[Attribution]) -> tuple[tuple[str, Heat], ...]:
    """One method's classes over the tokens, and over the words where these differ."""
    if attributions[0].row.image is not None:
        return ()  # heat maps over the picture say it better than a table of patches
    merged = [merge_words(a) for a in attributions]
    if len(merged[0]) == len(attributions[0]):
        return (("", _class_heat(class_table(attributions))),)
    readings = (("tokens", attributions), ("words", merged))
    return tuple((kind, _class_heat(class_table(found))) for kind, found in readings)


def _class_heat(whole: ClassTable) -> Heat:
    table = whole.strongest(MOST_COLUMNS)
    rows = tuple(
        (
            name,
            tuple(
                (
                    step_name(step(float(score), table.scale)),
                    number(float(score)) if not special else "",
                    f"{token}  {name}  {number(float(score))}",
                    special,
                )
                for score, token, special in zip(scores, table.columns, table.special, strict=True)
            ),
        )
        for name, scores in zip(table.rows, table.values, strict=True)
    )
    columns = tuple(zip(table.columns, table.special, strict=True))
    return Heat(columns, rows, table.left_out, summed=False)


def _percent(score: float, scale: float) -> float:
    return round(min(1.0, abs(score) / scale) * 100, 1) if scale else 0.0


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)
