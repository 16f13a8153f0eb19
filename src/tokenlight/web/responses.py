"""Explanations as the page reads them, and as files to download: JSON, an HTML page, or a figure."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.ranks import compute_normalized_ranks
from tokenlight.data.trust import OUTDATED_VERDICT, UNTESTED, is_outdated
from tokenlight.data.units import group_by_word
from tokenlight.errors import BadInput
from tokenlight.files.write import dump_json
from tokenlight.plots.charts import render_figure
from tokenlight.plots.descriptions import describe_attention_sink
from tokenlight.plots.figures import draw_heat_map, draw_token_bars
from tokenlight.plots.html import render_page
from tokenlight.plots.prompt_parts import describe_deciding_part
from tokenlight.registry import format_spec
from tokenlight.web.attribution_store import StoredAttribution

DownloadFormat = Literal["json", "html", "svg", "png"]
FigureKind = Literal["bars", "layers"]
MEDIA_TYPES: dict[DownloadFormat, str] = {
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
FIGURE_DPI = 150
MAX_HEAT_MAP_NAMES = 1_000  # rows and columns of a heat map; drawing each name takes milliseconds


def serialize_entry(
    entry: StoredAttribution, *, words: bool = False, layers: bool = True
) -> dict[str, Any]:
    """Return one explanation as the page reads it.

    Args:
        entry: The explanation.
        words: Whether to merge tokens into words.
        layers: Whether to include the scores per layer.
    """
    attribution = entry.attribution
    is_merged = any(step.startswith("merge_words") for step in attribution.steps)
    values = attribution.to_dict()
    if words and not is_merged:
        values = merge_words(attribution).to_dict()
    if not layers:
        values = {**values, "layers": None}
    if is_outdated(attribution):
        trust = {"grade": UNTESTED, "verdict": OUTDATED_VERDICT, "health": []}
        values = {**values, "extras": {**values["extras"], "trust": trust}}
    return {
        "id": entry.id,
        "method": format_method_name(attribution),
        "target": attribution.target.name,
        "question": attribution.question,
        "words": _serialize_words(attribution),
        "has_layers": attribution.layers is not None,
        "attribution": values,
        "deciding_part": describe_deciding_part(attribution),
        "remarks": _list_remarks(attribution),
    }


def _list_remarks(attribution: Attribution) -> list[str]:
    """Return what the first token takes, as pictures say it."""
    remark = describe_attention_sink(attribution)
    return [remark] if remark else []


def format_method_name(attribution: Attribution) -> str:
    """Return the method with its options; a head map is not written out."""
    options: dict[str, Any] = {}
    for name, value in attribution.options.items():
        options[name] = "given" if isinstance(value, dict | list) else value
    return format_spec(attribution.method, options)


def compute_agreement(attributions: Sequence[Attribution]) -> dict[str, Any] | None:
    """Return Spearman's correlation between the methods that explain the first text and target.

    Returns:
        Names of the methods and their matrix of correlations; None with fewer than two methods, or if a
        method occurs twice.
    """
    first = attributions[0]
    comparable: list[Attribution] = []
    for attribution in attributions:
        has_same_target = attribution.target.name == first.target.name
        if has_same_target and attribution.row.ids == first.row.ids:
            comparable.append(attribution)
    ranks_by_method: dict[str, np.ndarray | None] = {}
    for attribution in comparable:
        ranks_by_method[format_method_name(attribution)] = compute_normalized_ranks(attribution)
    if len(ranks_by_method) < 2 or len(ranks_by_method) != len(comparable):
        return None
    matrix: list[list[float | None]] = []
    for ranks in ranks_by_method.values():
        matrix.append([_correlate(ranks, others) for others in ranks_by_method.values()])
    return {"methods": list(ranks_by_method), "target": first.target.name, "matrix": matrix}


def _correlate(ranks: np.ndarray | None, other_ranks: np.ndarray | None) -> float | None:
    """Return the correlation of normalized ranks; None if all scores of one method are equal."""
    if ranks is None or other_ranks is None:
        return None
    return round(float(np.clip(ranks @ other_ranks, -1, 1)), 6)


def _serialize_words(attribution: Attribution) -> list[dict[str, Any]]:
    """Return the words in order, each with its tokens, its score (their sum) and its span of the text."""
    row = attribution.row
    words: list[dict[str, Any]] = []
    for positions in group_by_word(row):
        if row.special_tokens_mask[positions[0]]:
            continue
        start, end = row.get_span(positions) or (None, None)
        # A word without a span in the text is shown by its pieces.
        text = row.extract_text(positions) or "".join(row.pieces[i] for i in positions)
        words.append(
            {
                "text": text,
                "positions": positions,
                "score": float(attribution.scores[positions].sum()),
                "segment": row.segments[positions[0]],
                "start": start,
                "end": end,
            }
        )
    return words


def render_download(
    attributions: Sequence[Attribution],
    file_format: DownloadFormat,
    figure: FigureKind,
    words: bool,
) -> bytes:
    """Return explanations as the content of one file.

    Args:
        attributions: The explanations.
        file_format: Format of the file.
        figure: The figure of an SVG or PNG file.
        words: Whether to merge tokens into words.
    """
    if file_format == "html":
        return render_page(attributions, words=words).encode("utf-8")
    processed = list(attributions)
    if words:
        processed = [item if item.steps else merge_words(item) for item in attributions]
    if file_format == "json":
        values = [attribution.to_dict() for attribution in processed]
        content = values if len(values) > 1 else values[0]
        return dump_json(content).encode("utf-8")
    if figure == "bars":
        return render_figure(draw_token_bars(processed), file_format, FIGURE_DPI)
    if len(processed) != 1:
        raise BadInput(
            f"A heat map of layers shows one explanation, and {len(processed)} were given. Give one id.",
            code="heat-map-of-several",
        )
    _check_heat_map_size(processed[0])
    return render_figure(draw_heat_map(processed[0]), file_format, FIGURE_DPI)


def _check_heat_map_size(attribution: Attribution) -> None:
    if attribution.layers is None:  # draw_heat_map says why there are none
        return
    shape = attribution.layers.shape
    if sum(shape) > MAX_HEAT_MAP_NAMES:
        raise BadInput(
            f"A heat map of {' × '.join(map(str, shape))} layers and tokens is too large for a figure. "
            f"Together they may be at most {MAX_HEAT_MAP_NAMES:,}; give a shorter text.",
            code="heat-map-too-large",
        )
