"""Can a model do a method? It is tried on a short text, and what goes wrong is told in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenlight.data.target import TargetLike, TokenTarget
from tokenlight.data.tokens import Question
from tokenlight.evaluation.shard import in_words
from tokenlight.inputs.picture import Picture

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer, MethodLike

SENTENCE = "The plot is thin, yet the cast makes it a joy to watch."
QUESTION = "Who makes it a joy to watch?"


def attempt(explainer: Explainer, method: MethodLike, **how: Any) -> tuple[str | None, float]:
    """What goes wrong when ``method`` (a name, or name and options) explains a short text (None:
    nothing), and its seconds. ``how``: further keywords of explain()."""
    text, target = sample(explainer)
    given = {"long": "truncate", "progress": False, "target": target, **how}
    start = time.perf_counter()
    try:
        explainer.explain(text, method=method, **given)
    except Exception as refused:  # noqa: BLE001 - a doctor names every illness, known or not
        return in_words(refused), time.perf_counter() - start
    return None, time.perf_counter() - start


def sample(explainer: Explainer) -> tuple[Any, TargetLike]:
    """A short text of the kind this model reads, and a target it has."""
    head = explainer.live.head
    if head.kind == "span":
        return Question(question=QUESTION, context=SENTENCE), "predicted"
    if head.reads == "mask":
        blank = getattr(explainer.tokenizer, "mask_token", None) or ""
        return SENTENCE.replace("thin", blank), "predicted"
    if head.reads == "token":
        return SENTENCE, TokenTarget("cast")
    if head.reads == "image":
        shades = np.add.outer(np.arange(0, 128, 2), np.arange(0, 128, 2))
        colours = np.stack([shades, 255 - shades, shades // 2], axis=2)
        return Picture(colours.astype("u1")), head.usual
    if head.reads == "pair":
        return (SENTENCE, QUESTION), "predicted"
    return SENTENCE, head.usual
