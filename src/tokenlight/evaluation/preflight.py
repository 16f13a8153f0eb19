"""What would be wrong for every text of a file is told once, before the first of them is read."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from tokenlight.data.target import Continuation, Contrast, Head, NextToken, TokenTarget
from tokenlight.data.tokenizer import Vocabulary
from tokenlight.data.units import types_of
from tokenlight.errors import BadInput, BadTarget, way
from tokenlight.evaluation.measure import Known, check
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining import jobs
from tokenlight.explaining.default import sample
from tokenlight.explaining.jobs import name_of
from tokenlight.explaining.token_labels import ENTITIES
from tokenlight.files.tables import Example
from tokenlight.metrics._metric import Metric


def attempt(explainer: Explainer, method: MethodLike, **how: Any) -> tuple[Exception | None, float]:
    """What goes wrong when ``method`` (a name, or name and options) explains a short text without fault
    (None: nothing), and its seconds. ``how``: further keywords of explain()."""
    text, target = sample(explainer)
    given = {"long": "truncate", "progress": False, "target": target, **how}
    start = time.perf_counter()
    try:
        explainer.explain(text, method=method, **given)
    except Exception as refused:  # noqa: BLE001 - a doctor names every illness, known or not
        return refused, time.perf_counter() - start
    return None, time.perf_counter() - start


def refused_options(
    explainer: Explainer, methods: Iterable[MethodLike], seed: int
) -> list[BadInput]:
    """Why methods refuse even a short text: their options are wrong for every text. A method that does
    not fit the model is none of these; it is told where it is used."""
    tried = (attempt(explainer, method, seed=seed)[0] for method in methods)
    return [refused for refused in tried if isinstance(refused, BadInput)]


def check_metrics(metrics: Iterable[Metric], head: Head, examples: Iterable[Example]) -> None:
    """Refuse metrics that this head, or texts without labels or marks, can give no number for."""
    listed = list(examples)
    labelled = any(example.label is not None for example in listed)
    marked = any(example.spans is not None for example in listed)
    check(metrics, head, Known(() if labelled else None, () if marked else None))


def check_target(explainer: Explainer, target: Any) -> None:
    """Refuse a target that this model has for no text; what depends on the text is not looked at."""
    head, name = explainer.live.head, name_of(explainer)
    jobs.check_target(explainer, target)
    if isinstance(target, TokenTarget):
        label = target.label  # one, two, or what B- and I- tags have in common
        sides = (label.this, label.that) if isinstance(label, Contrast) else (label,)
        if not all(side in types_of(head.labels) for side in sides):
            _check_labels(head, label)
    elif isinstance(target, Continuation):
        return
    elif head.reads == "token":
        if target not in ("all", ENTITIES):
            every = way("target='all'", "--target all")
            names = way(f"{ENTITIES!r}", ENTITIES)
            one = way("TokenTarget(word)", "--token WORD of tokenlight explain")
            raise BadTarget(
                f"{name} labels each token, so say which: {every} explains every word, {names} every "
                f"name, {one} one."
            )
    elif head.reads != "pair":
        _check_labels(head, target)


def _check_labels(head: Head, target: Any) -> None:
    head.takes(target)
    if head.kind == "span":  # an answer stands in one context and not in another
        return
    if isinstance(target, Contrast) and "predicted" in (target.this, target.that):
        if target.this != target.that:
            _check_label(head, target.that if target.this == "predicted" else target.this)
            return
    elif isinstance(head.labels, Vocabulary) and target not in ("predicted", "all"):
        both = (target.this, target.that) if isinstance(target, Contrast) else (target,)
        for label in both:
            _check_label(head, label.token if isinstance(label, NextToken) else label)
        if len(set(both)) == len(both):
            return
    no_row: Any = None
    head.resolve(target, np.zeros(len(head.labels), "f4"), no_row)


def _check_label(head: Head, label: Any) -> None:
    try:
        head.label_index(label)
    except BadTarget:
        # Behind a prompt that ends in a blank a word is another token.
        words = head.labels
        if not isinstance(label, str) or not isinstance(words, Vocabulary) or head.reads == "mask":
            raise
        with suppress(BadTarget):
            words.id_of(label, blank=False)
            return
        raise
