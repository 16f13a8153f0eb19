"""What a metric needs of each text before it measures: further explanations, made with the recorded
method, options and steps; and searches that ask the model step by step, those of all texts together."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from tokenlight import registry
from tokenlight.capture.altered import cascade
from tokenlight.capture.perturbation import stream_logits
from tokenlight.data import postprocess
from tokenlight.data.answers import SpanTarget, Terms
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Contrast, TargetLike
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.method_names import Kind, kind_of
from tokenlight.explainer import Explainer
from tokenlight.explaining.stream import half_by_half
from tokenlight.metrics._metric import Bounds, Case, Metric

_STEPS = ("absolute", "l1_normalise", "max_normalise", "without_special")
Further = list[list[Attribution] | TokenlightError]
MOST = 100_000  # searches remembered for one explainer
Key = tuple[str, str, str, bytes]
_found: WeakKeyDictionary[Explainer, dict[Key, Bounds | TokenlightError]] = WeakKeyDictionary()


def further_explanations(explainer: Explainer, cases: Sequence[Case], metric: Metric) -> Further:
    """For each case the other explanations its metric needs, or why they cannot be made."""
    if metric.further == "classes":
        found = _explained_again(explainer, cases, lambda _: "all")
        return [
            others
            if isinstance(others, TokenlightError)
            else [other for other in others if other.target != case.attribution.target]
            for case, others in zip(cases, found, strict=True)
        ]
    live = explainer.live
    how: dict[str, Any] = {"pooling": live.pooling, "similarity": live.similarity}
    stages = [
        _explained_again(
            Explainer(
                model, explainer.tokenizer, name=f"{explainer.name}, {stage} randomised", **how
            ),
            cases,
            target_again,
        )
        for stage, model in cascade(live, getattr(metric, "seed", 0))
    ]
    joined: Further = []
    for of_one in zip(*stages, strict=True):
        refused = [part for part in of_one if isinstance(part, TokenlightError)]
        made = [one for part in of_one if isinstance(part, list) for one in part]
        joined.append(refused[0] if refused else made)
    return joined


def _explained_again(
    explainer: Explainer, cases: Sequence[Case], target: Callable[[Attribution], TargetLike]
) -> Further:
    """Explanations with the recorded method, options and steps, batched where they are alike."""
    groups: dict[Kind, list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault(kind_of(case.attribution), []).append(i)
    found: Further = [[] for _ in cases]
    for members in groups.values():
        made = half_by_half(
            lambda alike: _explained_batch(explainer, alike, target),
            [cases[i].attribution for i in members],
            TokenlightError,
        )
        for i, others in zip(members, made, strict=True):
            found[i] = others
    return found


def _explained_batch(
    explainer: Explainer,
    attributions: Sequence[Attribution],
    target: Callable[[Attribution], TargetLike],
) -> list[list[Attribution]]:
    first = attributions[0]
    if not registry.has("methods", first.method):
        raise BadInput(
            f"this metric needs further explanations, which only {first.method!r} could make, and "
            "which is not a tokenlight method."
        )
    for step in first.steps:
        if step not in _STEPS:
            raise BadInput(f"the step {step!r} cannot be repeated on further explanations.")
    rows = [a.row for a in attributions]
    made = explainer.explain(
        rows,
        method=[(first.method, dict(first.options))],
        target=[target(a) for a in attributions],
        seed=first.seed,
        progress=False,
    )
    for step in first.steps:
        made = [getattr(postprocess, step)(a) for a in made]
    share = len(made) // len(rows)
    return [made[i * share : (i + 1) * share] for i in range(len(rows))]


def target_again(attribution: Attribution) -> TargetLike:
    """The target of an explanation as something explain() takes."""
    terms = attribution.target.terms
    match "answer" if attribution.row.answer else attribution.target.kind:
        case "class":
            return terms[0][0][0]
        case "contrast":
            return Contrast(terms[0][0][0], terms[1][0][0])
        case "answer":
            return attribution.target
        case _:
            if any(weight < 0 for _, weight in terms):
                return Contrast(_span(terms, 1), _span(terms, -1))
            return _span(terms, 1)


def _span(terms: Terms, sign: int) -> SpanTarget:
    """The span whose sides have weights of one sign."""
    sides = {at[1]: at[0] for at, weight in terms if weight * sign > 0}
    return SpanTarget(start=sides.get(0), end=sides.get(1))


def extremes(
    explainer: Explainer, cases: Sequence[Case], metric: Metric, batch_tokens: int | None
) -> list[Bounds | TokenlightError]:
    """What the metric's search finds for each case; once for all explanations of one target."""
    # The logits tell a model whose weights have changed; rounded: another batch, other last digits.
    keys: list[Key] = [
        (metric.label, one.row.fingerprint, one.target.name, one.logits.round(1).tobytes())
        for one in (case.attribution for case in cases)
    ]
    found = _found.setdefault(explainer, {})
    if len(found) > MOST:
        found.clear()
    searches = {
        key: metric.search(case) for key, case in zip(keys, cases, strict=True) if key not in found
    }
    asked = {}
    for key, search in searches.items():
        try:
            asked[key] = next(search)
        except TokenlightError as refused:
            found[key] = refused
    while asked:
        rows = (variant for variants in asked.values() for variant in variants)
        logits = stream_logits(explainer.live, rows, batch_tokens=batch_tokens)
        following = {}
        for key, variants in asked.items():
            answers = list(zip(variants, islice(logits, len(variants)), strict=True))
            try:
                following[key] = searches[key].send(answers)
            except StopIteration as done:
                found[key] = done.value
            except TokenlightError as refused:
                found[key] = refused
        asked = following
    return [found[key] for key in keys]
