"""What the HTML template shows, as plain values: it decides nothing, this does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.segments import SegmentShare
from tokenlight.data.tokens import TokenRow
from tokenlight.plots.colours import step, step_name
from tokenlight.plots.continuation import unread_whole
from tokenlight.plots.facts import chance_of_written, even, number, weight_on_special
from tokenlight.plots.grids import Grid, grid
from tokenlight.plots.groups import strongest
from tokenlight.plots.heat_tables import Heat, layer_heat
from tokenlight.plots.passages import Passage, Stretch, passages, stretch_score
from tokenlight.plots.pieces import TOP, Piece, strongest_pieces
from tokenlight.plots.roles import EXPLAINED, LATER, Roles, token_roles, with_roles, word_roles
from tokenlight.plots.zoom import is_long, sentence_parts

MOST_SENTENCES = 12  # that are seen at once


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
class TopBar:
    """One of the strongest tokens: the piece in its word, its score, and a bar."""

    piece: Piece
    number: str
    width: float
    look: str


@dataclass(frozen=True, slots=True)
class View:
    """One reading of an attribution: by tokens or by words; ``kind`` is empty where both agree."""

    kind: str
    lines: tuple[Line, ...]
    special: str  # what the special tokens weigh, where the input is a pair
    long: bool
    sentences: tuple[SentenceBar, ...]
    strongest: tuple[SentenceBar, ...]  # where there are too many to be seen at once
    top: tuple[TopBar, ...]
    heat: Heat | None
    grid: Grid | None = None  # of a picture


def views(attribution: Attribution, scale: float, *, rollout: bool = False) -> tuple[View, ...]:
    """Token view and word view; one view where every word is one token. ``rollout``: the layers'
    product among their rows."""
    merged, roles = merge_words(attribution), token_roles(attribution)
    heat = layer_heat(attribution, rollout=rollout)
    if len(merged) == len(attribution):
        return (_view(attribution, scale, "", roles, heat),)
    # A word may be stronger than any of its tokens: its full colour grows with it.
    growth = strongest(merged) / (strongest(attribution) or 1.0)
    of_words = layer_heat(merged, rollout=rollout)
    return (
        _view(attribution, scale, "tokens", roles, heat),
        _view(merged, scale * growth, "words", word_roles(attribution), of_words),
    )


def _view(
    attribution: Attribution, scale: float, kind: str, roles: Roles, heat: Heat | None
) -> View:
    found = passages(attribution.row)
    weights = {part.segment: part for part in attribution.segment_shares()}
    several = len(found) > 1
    lines = []
    for passage in found:
        part = weights.get(passage.segment) if several else None
        name, share = ("", "") if part is None else (part.name, weight(part))
        if part is not None and unread_whole(attribution, passage.segment):
            share = "nothing yet"
        lines.append(Line(_marks(attribution, passage, scale, roles), name, share))
    special = weight_on_special(attribution, always=several)
    names = {s: f"{part.name} · {weight(part)}" for s, part in weights.items() if several}
    bars = _sentences(attribution, scale, roles, names)
    widest = sorted(bars, key=lambda bar: -bar.width)[: TOP if len(bars) > MOST_SENTENCES else 0]
    few = {id(bar) for bar in widest}  # sentences may be equal
    return View(
        kind,
        tuple(lines),
        "" if special is None else weight(special),
        is_long(attribution),
        bars,
        tuple(bar for bar in bars if id(bar) in few),
        tuple(_top_bar(piece, score, scale) for piece, score in strongest_pieces(attribution)),
        heat,
        grid(attribution, scale),
    )


def weight(part: SegmentShare) -> str:
    """What a part of the input weighs, in words."""
    return f"{part.share:.0%} of the weight, sum {number(part.total)}".replace("%", " %")


def _sentences(
    attribution: Attribution, scale: float, roles: Roles, names: Mapping[int | None, str]
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
                _marks(attribution, Passage(segment, part.stretches), scale, roles),
                largest > 0 and abs(part.score) == largest,
            )
        )
    return tuple(bars)


def _marks(
    attribution: Attribution, passage: Passage, scale: float, roles: Roles
) -> tuple[Mark, ...]:
    row, marks = attribution.row, []
    for stretch, played in with_roles(attribution, passage, roles):
        hover = _said_of(attribution, played)
        if not stretch.positions:
            marks.append(Mark(stretch.text, " ".join(played), hover))
            continue
        score = stretch_score(attribution, stretch)
        looks = ["chip" if stretch.special else "token"]
        if not stretch.special:
            looks.append(step_name(step(score, scale)))
        looks += played
        if hover is None or _seen(row, stretch):  # a word may be half written
            masked = not _seen(row, stretch)
            looks += ["masked"] * masked
            of_score = _hover(attribution, stretch, score) + " · masked out" * masked
            hover = of_score if hover is None else f"{of_score} · {hover}"
        marks.append(Mark(stretch.text, " ".join(filter(None, looks)), hover, stretch.special))
    return tuple(marks)


def _said_of(attribution: Attribution, played: tuple[str, ...]) -> str | None:
    """What hovering says of a token that was not read."""
    if EXPLAINED in played:
        return f"explained here: {chance_of_written(attribution) or attribution.target.name}"
    return "not yet written" if LATER in played else None


def _hover(attribution: Attribution, stretch: Stretch, score: float) -> str:
    row = attribution.row
    pieces = [
        f"{row.pieces[p]}"
        + (f" {number(attribution.scores[p])}" if len(stretch.positions) > 1 else "")
        for p in stretch.positions
    ]
    return f"{stretch.text}  {number(score)}  · piece {' + '.join(pieces)}"


def _seen(row: TokenRow, stretch: Stretch) -> bool:
    return any(row.attention[position] for position in stretch.positions)


def _top_bar(piece: Piece, score: float, scale: float) -> TopBar:
    look = step_name(step(score, scale) or _sign(score))
    return TopBar(piece, number(score), _percent(score, scale), look)


def _percent(score: float, scale: float) -> float:
    return round(min(1.0, abs(score) / scale) * 100, 1) if scale else 0.0


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)
