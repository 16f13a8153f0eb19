"""Downloads: attributions as JSON, as one HTML page, or as a figure."""

from collections.abc import Sequence
from typing import Literal

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.errors import BadInput
from tokenlight.files.write import json_text
from tokenlight.plots.charts import plain_png, svg
from tokenlight.plots.figures import bars, heat_map
from tokenlight.plots.html import page

Format = Literal["json", "html", "svg", "png"]
Figure = Literal["bars", "layers"]
KINDS: dict[Format, str] = {
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}

MOST_NAMES = 1_000  # rows and columns of a heat map: each name takes milliseconds to draw


def download(
    attributions: Sequence[Attribution], form: Format, figure: Figure, words: bool
) -> bytes:
    """The attributions as one file."""
    given = [merge_words(a) if words and not a.steps else a for a in attributions]
    if form == "json":
        values = [a.to_dict() for a in given]
        return json_text(values if len(values) > 1 else values[0]).encode("utf-8")
    if form == "html":
        return page(list(attributions), words=words).encode("utf-8")
    return _drawn(given, form, figure)


def _drawn(given: Sequence[Attribution], form: Format, figure: Figure) -> bytes:
    if figure == "layers":
        if len(given) != 1:
            raise BadInput("a heat map of layers shows one explanation; give one id.")
        if given[0].layers is not None and sum(given[0].layers.shape) > MOST_NAMES:
            raise BadInput(
                f"a heat map of {' × '.join(map(str, given[0].layers.shape))} layers and tokens is "
                f"more than a figure can show; together at most {MOST_NAMES:,}."
            )
        drawing = heat_map(given[0])
    else:
        drawing = bars(list(given))
    return svg(drawing) if form == "svg" else plain_png(drawing, 150)
