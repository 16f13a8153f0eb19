"""One self-contained HTML page, or a fragment for notebooks: no script, no outside resource. Every value
enters through a template that escapes it; the page's policy allows its one style sheet and nothing else."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tokenlight.errors import MissingExtra, short

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as missing:
    raise MissingExtra.naming("jinja2", "cli", "an HTML page") from missing

from tokenlight.data.attribution import Attribution
from tokenlight.plots import facts
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.colours import STEPS, VEIL, rules, step, step_name
from tokenlight.plots.scene import TextScene, by_words, scenes
from tokenlight.plots.views import Mark, layer_maps

COARSE = 128  # pixels below which a picture is shown with hard edges
FEW = 10  # texts in a cell of a notebook
MOST_COLUMNS = 300  # a book would make a page no browser opens


def page(
    attributions: Attribution | Iterable[Attribution],
    *,
    title: str | None = None,
    reference: str | None = None,
    words: bool | None = None,
) -> str:
    """The attributions as one page, grouped by text, then target, then method. ``reference``: the method
    whose difference from every other is shown too (Mask-LRP paper, figure 6). ``words`` opens it in its
    word view; not given, it opens so but for what a model writes."""
    found = [attributions] if isinstance(attributions, Attribution) else [*attributions]
    words = by_words(found) if words is None else words
    texts = scenes(found, reference=reference)
    pictures = any(text.first.row.image is not None for text in texts)
    title = short(" ".join(texts[0].first.text.split()), 70) if title is None else title
    seal = sealed(_style(), pictures=pictures)
    return _rendered("page.html.j2", texts, words=words, title=title, **seal)


def sealed(style: str, script: str = "", *, pictures: bool = False) -> dict[str, str]:
    """A page's style sheet and script, and a policy under which nothing but them is loaded or run."""
    policy = ["default-src 'none'", *["img-src data:"] * pictures]
    for kind, content in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
        policy += [f"{kind}-src 'sha256-{digest}'"] * bool(content)
    said = "; ".join([*policy, "base-uri 'none'", "form-action 'none'"])
    # Ours alone, no value of a user is in them: escaped, they would not be what the policy names.
    return {"style": Markup(style), "script": Markup(script), "policy": said}


def fragment(attributions: Attribution | Iterable[Attribution]) -> str:
    """The same picture for a notebook cell, of the first few texts; its style stays inside."""
    found = [attributions] if isinstance(attributions, Attribution) else [*attributions]
    texts, words = scenes(found), by_words(found)
    more = len(texts) - FEW
    return _rendered("fragment.html.j2", texts[:FEW], words=words, more=more, **sealed(_style()))


def _rendered(template: str, texts: Sequence[TextScene], **how: Any) -> str:
    how["both"] = any(len(method.views) > 1 for text in texts for method in text.methods)
    how["special"] = any(any(text.first.row.special) for text in texts)
    how["legend"] = [step_name(number) for number in range(-STEPS, STEPS + 1)]
    how["unfold"] = len(texts) == 1 and len(texts[0].methods) <= 4
    return _environment().get_template(template).render(texts=texts, **how)


def look(mark: Mark) -> str:
    """The classes of a mark in the style sheet."""
    bare = mark.score is None or mark.special
    return " ".join(filter(None, ["" if bare else "token", step_name(mark.strength), mark.looks]))


def shared(text: TextScene) -> list[tuple[str, str]]:
    """What was the same in the making of all explanations of a text."""
    known = [facts.provenance(method.attribution) for method in text.methods]
    return [fact for fact in known[0] if all(fact in other for other in known)]


def environment(room: str, **how: Any) -> Environment:
    """Where the templates of a room are found; every value in them is escaped, none may be missing."""
    how |= {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    made = Environment(loader=PackageLoader(room), autoescape=True, **how)
    made.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    return made


@cache
def _environment() -> Environment:
    made = environment("tokenlight.plots")
    own = (visible, in_line, facts.number, facts.weight, look, shared, step, layer_maps)
    made.filters |= {filter_.__name__: filter_ for filter_ in own}
    made.filters |= {
        "shade": lambda score, scale: step_name(step(score, scale)),
        # A bar has a colour however short it is, and a length in per cent.
        "bar_look": lambda s, scale: step_name(step(s, scale) or (s > 0) - (s < 0)),
        "width": lambda s, scale: round(min(1.0, abs(s) / scale) * 100, 1) if scale else 0.0,
        "largest": lambda maps: float(np.abs(maps).max()),
    }
    made.globals |= {"facts": facts, "STEPS": STEPS, "VEIL": VEIL}
    made.globals |= {"COARSE": COARSE, "MOST_COLUMNS": MOST_COLUMNS}
    return made


@cache
def _style() -> str:
    template = _environment().get_template("style.css.j2")
    plain, safe = Markup(rules("green_red")), Markup(rules("blue_orange"))
    return template.render(plain=plain, safe=safe)
