"""Attributions as the page reads them (with ids, words in their places, and how far methods agree), and
as files: JSON, one HTML page, or a figure."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.units import word_groups
from tokenlight.errors import BadInput
from tokenlight.files.write import json_text
from tokenlight.metrics._ranking import unit_ranks
from tokenlight.plots.charts import file_of
from tokenlight.plots.figures import bars, heat_map
from tokenlight.plots.html import page
from tokenlight.registry import spelled
from tokenlight.web.store import Entry

Format = Literal["json", "html", "svg", "png"]
Figure = Literal["bars", "layers"]
KINDS: dict[Format, str] = {
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}

MOST_NAMES = 1_000  # rows and columns of a heat map: each name takes milliseconds to draw


def shown(entry: Entry, *, words: bool = False, layers: bool = True) -> dict[str, Any]:
    """One attribution with its id and its words."""
    attribution = entry.attribution
    done = any(step.startswith("merge_words") for step in attribution.steps)
    values = (merge_words(attribution) if words and not done else attribution).to_dict()
    return {
        "id": entry.id,
        "method": method_name(attribution),
        "target": attribution.target.name,
        "words": _words(attribution),
        "has_layers": attribution.layers is not None,
        "attribution": values if layers else {**values, "layers": None},
    }


def method_name(attribution: Attribution) -> str:
    """Method with its options; a head map is not written out."""
    options = attribution.options.items()
    told = {name: "given" if isinstance(v, dict | list) else v for name, v in options}
    return spelled(attribution.method, told)


def agreement(attributions: Sequence[Attribution]) -> dict[str, Any] | None:
    """Spearman's correlation between methods of one text and target; None where there are no two."""
    first = attributions[0].target.name, attributions[0].row.ids
    alike = [a for a in attributions if (a.target.name, a.row.ids) == first]
    ranks = {method_name(a): unit_ranks(a) for a in alike}
    if not 1 < len(ranks) == len(alike):
        return None
    found = list(ranks.values())
    matrix = [
        [None if a is None or b is None else round(float(np.clip(a @ b, -1, 1)), 6) for b in found]
        for a in found
    ]
    return {"methods": list(ranks), "target": first[0], "matrix": matrix}


def _words(attribution: Attribution) -> list[dict[str, Any]]:
    """Words in order with their tokens, their score (the tokens' sum) and their place."""
    row, found = attribution.row, []
    for group in word_groups(row):
        if not row.special[group[0]]:
            start, end = row.span(group) or (None, None)
            word = {
                "text": row.written(group) or "".join(row.pieces[i] for i in group),
                "positions": group,
                "score": float(attribution.scores[group].sum()),
                "segment": row.segments[group[0]],
            }
            found.append({**word, "start": start, "end": end})
    return found


def download(kept: Sequence[Attribution], form: Format, figure: Figure, words: bool) -> bytes:
    """Kept attributions as one file."""
    given = [merge_words(a) if words and not a.steps else a for a in kept]
    if form == "json":
        values = [a.to_dict() for a in given]
        return json_text(values if len(values) > 1 else values[0]).encode("utf-8")
    if form == "html":
        return page(kept, words=words).encode("utf-8")
    if figure == "bars":
        return file_of(bars(given), form, 150)
    if len(given) != 1:
        raise BadInput("a heat map of layers shows one explanation; give one id.")
    size = () if given[0].layers is None else given[0].layers.shape
    if sum(size) > MOST_NAMES:
        said = f"a heat map of {' × '.join(map(str, size))} layers and tokens is more than a figure"
        raise BadInput(f"{said} can show; together at most {MOST_NAMES:,}.")
    return file_of(heat_map(given[0]), form, 150)
