"""Explain one text quickly first, then again with more passes."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import TargetLike
from tokenlight.data.tokens import LongTextPolicy
from tokenlight.errors import BadInput
from tokenlight.explaining.calls import build_options, explain_list
from tokenlight.explaining.default_method import AUTO_METHOD
from tokenlight.explaining.effort import (
    EFFORT_SAMPLES,
    check_effort,
    count_samples,
    list_sampling_specs,
)
from tokenlight.explaining.explain_options import Effort, list_texts, normalize_inputs
from tokenlight.explaining.session import Session
from tokenlight.explaining.text_result import iter_attributions
from tokenlight.explaining.token_targets import ENTITIES


def refine_explanation(
    session: Session,
    inputs: Any,
    target: Any = "predicted",
    *,
    effort: Effort | int = "thorough",
    long: LongTextPolicy = "error",
    seed: int = 0,
) -> Iterator[Attribution]:
    """Explain one text quickly first, then with more passes; see :meth:`Explainer.refine`.

    Args:
        session: The model, its tokenizer and its limits.
        inputs: One input.
        target: One target.
        effort: The highest effort to spend.
        long: What to do with a text that is longer than the model reads.
        seed: The seed of the samples.
    """
    check_effort(effort, None, AUTO_METHOD)
    texts, is_single_text = list_texts(normalize_inputs(inputs, None))
    if not is_single_text:
        raise BadInput(
            f"refine() explains one text, and {len(texts)} are given. Call it for each of them.",
            code="refine-needs-one-text",
        )
    if isinstance(target, list) or target in ("all", ENTITIES):
        raise BadInput(
            f"target={target!r} stands for several targets, and refine() explains one. Give a label.",
            code="refine-needs-one-target",
        )
    explain_with_effort = partial(_explain_once, session, texts, target, long=long, seed=seed)
    return _refine(session, texts[0], effort, explain_with_effort)


def _refine(
    session: Session, example: Any, effort: Effort | int, explain_with_effort: Any
) -> Iterator[Attribution]:
    """Yield the explanation of each effort up to ``effort``, each more expensive than the one before."""
    yield explain_with_effort(effort="instant")
    limit = count_samples(effort)
    if not limit or not list_sampling_specs(session, example):
        return
    for step, num_samples in EFFORT_SAMPLES.items():
        if 0 < num_samples < limit:
            yield explain_with_effort(effort=step)
    yield explain_with_effort(effort=effort)


def _explain_once(
    session: Session, texts: Sequence[Any], target: TargetLike, **options: Any
) -> Attribution:
    checked_options = build_options(session, **options)
    results = explain_list(session, texts, AUTO_METHOD, target, checked_options)
    return next(iter_attributions(results))
