"""Render explanations as one self-contained HTML page, or as a fragment for notebooks.

A page has no script and loads nothing from outside. Every value enters through a template that escapes
it, and the page's content security policy allows its one style sheet and nothing else.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tokenlight.errors import MissingExtra, truncate_text

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise MissingExtra.for_libraries("jinja2", "cli", "an HTML page") from error

from tokenlight.data.attribution import Attribution
from tokenlight.plots import descriptions
from tokenlight.plots.characters import make_visible, to_single_line
from tokenlight.plots.colours import (
    NUM_STEPS,
    OVERLAY_OPACITY,
    build_css_rules,
    score_to_step,
    step_class,
)
from tokenlight.plots.scene import TextScene, build_scenes, list_attributions, should_show_words
from tokenlight.plots.score_tables import compute_layer_maps
from tokenlight.plots.trust_charts import build_removal_charts
from tokenlight.plots.views import Mark

MIN_SMOOTH_PIXELS = 128  # a picture with fewer pixels on its longer side is shown with hard edges
MAX_NOTEBOOK_TEXTS = 10  # texts in a cell of a notebook
MAX_TABLE_COLUMNS = 300  # a table of a whole book would make a page that no browser opens
MAX_TITLE_LENGTH = 70  # characters of the text that are the title of its page
MAX_UNFOLDED_METHODS = 4  # with more methods, tables of layers are folded at first


def render_page(
    attributions: Attribution | Iterable[Attribution],
    *,
    title: str | None = None,
    reference: str | None = None,
    words: bool | None = None,
) -> str:
    """Render explanations as one HTML page, grouped by text, then by target, then by method.

    Args:
        attributions: One explanation or several.
        title: Title of the page; by default the beginning of the first text.
        reference: A method; its difference from every other method is shown too (Mask-LRP, figure 6).
        words: Open the page by words (True) or by tokens (False). By default words, but tokens if they
            explain what a model has written.

    Returns:
        The page, which loads nothing from outside.

    Raises:
        BadInput: There is no explanation.
        UnknownName: No explanation is by the method ``reference``.
    """
    attribution_list = list_attributions(attributions)
    if words is None:
        words = should_show_words(attribution_list)
    text_scenes = build_scenes(attribution_list, reference=reference)
    if title is None:
        text = " ".join(text_scenes[0].first.text.split())
        title = truncate_text(text, MAX_TITLE_LENGTH)
    has_images = any(text_scene.first.row.image is not None for text_scene in text_scenes)
    sealed = seal_page(_render_style(), has_images=has_images)
    return _render_template("page.html.j2", text_scenes, words=words, title=title, **sealed)


def seal_page(style: str, script: str = "", *, has_images: bool = False) -> dict[str, str]:
    """Return the style sheet and script of a page, and a policy that allows nothing but them.

    Args:
        style: The style sheet.
        script: The script, if the page has one.
        has_images: Whether the page holds images as ``data:`` addresses.

    Returns:
        The template variables ``style``, ``script`` and ``policy``.
    """
    policy = ["default-src 'none'"]
    if has_images:
        policy.append("img-src data:")
    for kind, content in (("style", style), ("script", script)):
        if content:
            digest = hashlib.sha256(content.encode("utf-8")).digest()
            policy.append(f"{kind}-src 'sha256-{base64.b64encode(digest).decode('ascii')}'")
    policy += ["base-uri 'none'", "form-action 'none'"]
    # Both are written by us and hold no value of a user. Escaped, they would not match their digests.
    return {"style": Markup(style), "script": Markup(script), "policy": "; ".join(policy)}


def render_fragment(attributions: Attribution | Iterable[Attribution]) -> str:
    """Render the first few texts for a notebook cell; the style does not leave the fragment."""
    attribution_list = list_attributions(attributions)
    text_scenes = build_scenes(attribution_list)
    return _render_template(
        "fragment.html.j2",
        text_scenes[:MAX_NOTEBOOK_TEXTS],
        words=should_show_words(attribution_list),
        more=len(text_scenes) - MAX_NOTEBOOK_TEXTS,
        **seal_page(_render_style()),
    )


def _render_template(template: str, text_scenes: Sequence[TextScene], **variables: Any) -> str:
    has_both_views = False
    has_special = False
    for text_scene in text_scenes:
        has_special |= any(text_scene.first.row.special_tokens_mask)
        has_both_views |= any(len(method.views) > 1 for method in text_scene.methods)
    is_short = len(text_scenes) == 1 and len(text_scenes[0].methods) <= MAX_UNFOLDED_METHODS
    legend = [step_class(step) for step in range(-NUM_STEPS, NUM_STEPS + 1)]
    return (
        _get_environment()
        .get_template(template)
        .render(
            texts=text_scenes,
            both=has_both_views,
            special=has_special,
            legend=legend,
            unfold=is_short,
            **variables,
        )
    )


def mark_classes(mark: Mark) -> str:
    """Return the classes of a mark in the style sheet."""
    classes = []
    if mark.score is not None and not mark.is_special:
        classes.append("token")
    classes += [step_class(mark.strength), mark.css_classes]
    return " ".join(filter(None, classes))


def shared_provenance(text_scene: TextScene) -> list[tuple[str, str]]:
    """Return the provenance that all explanations of a text have in common."""
    first, *others = [
        descriptions.list_provenance(method.attribution) for method in text_scene.methods
    ]
    return [fact for fact in first if all(fact in other for other in others)]


def make_environment(package: str, **options: Any) -> Environment:
    """Return an environment for the templates of a package.

    Every value is escaped, and a missing variable is an error.
    """
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    return environment


@cache
def _get_environment() -> Environment:
    environment = make_environment("tokenlight.plots")
    filters = (
        make_visible,
        to_single_line,
        descriptions.format_score,
        descriptions.format_error,
        descriptions.describe_share,
        descriptions.shorten_model_name,
        mark_classes,
        shared_provenance,
        score_to_step,
        compute_layer_maps,
    )
    for template_filter in filters:
        environment.filters[template_filter.__name__] = template_filter
    environment.filters["shade"] = _score_class
    environment.filters["bar_look"] = _bar_class
    environment.filters["width"] = _bar_width
    environment.filters["whisker"] = _whisker_ends
    environment.filters["largest"] = _max_magnitude
    environment.globals |= {
        "facts": descriptions,
        "build_removal_charts": build_removal_charts,
        "NUM_STEPS": NUM_STEPS,
        "OVERLAY_OPACITY": OVERLAY_OPACITY,
        "MIN_SMOOTH_PIXELS": MIN_SMOOTH_PIXELS,
        "MAX_TABLE_COLUMNS": MAX_TABLE_COLUMNS,
    }
    return environment


def _score_class(score: float, scale: float) -> str:
    """Return the class of a score's colour."""
    return step_class(score_to_step(score, scale))


def _bar_class(score: float, scale: float) -> str:
    """Return the class of a bar's colour; unlike a cell, even a very short bar has one."""
    sign = (score > 0) - (score < 0)
    return step_class(score_to_step(score, scale) or sign)


def _bar_width(score: float, scale: float) -> float:
    """Return the length of a bar in percent."""
    if not scale:
        return 0.0
    return round(min(1.0, abs(score) / scale) * 100, 1)


def _whisker_ends(score: float, error: float, scale: float) -> tuple[float, float]:
    """Return both ends of the whisker of a bar, one standard error to each side, in percent."""
    low = max(0.0, abs(score) - error)
    return _bar_width(low, scale), _bar_width(abs(score) + error, scale)


def _max_magnitude(values: np.ndarray) -> float:
    return float(np.abs(values).max())


@cache
def _render_style() -> str:
    template = _get_environment().get_template("style.css.j2")
    green_red = Markup(build_css_rules("green_red"))
    blue_orange = Markup(build_css_rules("blue_orange"))
    return template.render(plain=green_red, safe=blue_orange)
