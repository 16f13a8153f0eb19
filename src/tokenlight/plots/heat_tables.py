"""Tables of coloured cells as the HTML template shows them: layer by layer, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.plots.classes import ClassTable, class_table
from tokenlight.plots.colours import step, step_name
from tokenlight.plots.facts import number
from tokenlight.plots.layers import SUM, layer_table
from tokenlight.plots.roles import LATER

MOST_COLUMNS = 300  # a book would make a page no browser opens
WIDE = 40  # columns from which a reader opens the table himself


@dataclass(frozen=True, slots=True)
class Cell:
    """A colour, a number or none, what hovering says, and whether a special token's."""

    look: str
    number: str
    hover: str
    special: bool


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map: column heads (name, special) and rows of cells.

    ``summed``: whether the last row is the sum of the others.
    """

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    left_out: int
    summed: bool = True

    @property
    def wide(self) -> bool:
        """Whether it is too wide to be shown unasked."""
        return len(self.columns) > WIDE

    @property
    def saturates(self) -> bool:
        """Whether special tokens stand in it, which the colour scale does not count."""
        return any(special for _, special in self.columns) and not all(
            special for _, special in self.columns
        )


def layer_heat(attribution: Attribution, *, rollout: bool = False) -> Heat | None:
    """The per-layer terms of a text, with their product if so wished; None where there are none."""
    if attribution.layers is None or attribution.row.image is not None:
        return None
    table = layer_table(attribution, rollout=rollout).strongest(MOST_COLUMNS)
    shares, rows = table.normalised().values, []
    for name, scale, terms, parts in zip(
        table.rows, table.scales, table.values, shares, strict=True
    ):
        cells = tuple(
            Cell(
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


def class_heats(attributions: Sequence[Attribution]) -> tuple[tuple[str, Heat], ...]:
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
                Cell(LATER, "", f"{token}  {name}  not yet written", special)
                if unread
                else Cell(
                    step_name(step(float(score), table.scale)),
                    number(float(score)) if not special else "",
                    f"{token}  {name}  {number(float(score))}",
                    special,
                )
                for score, unread, token, special in zip(
                    scores, behind, table.columns, table.special, strict=True
                )
            ),
        )
        for name, scores, behind in zip(table.rows, table.values, table.unread, strict=True)
    )
    columns = tuple(zip(table.columns, table.special, strict=True))
    return Heat(columns, rows, table.left_out, summed=False)
