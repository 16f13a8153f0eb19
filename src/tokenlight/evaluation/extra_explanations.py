"""Further explanations that a metric needs, made with the recorded method, options and steps."""

from collections.abc import Callable, Sequence

from tokenlight import registry
from tokenlight.capture.altered import cascade
from tokenlight.data import postprocess
from tokenlight.data.answers import SpanTarget, Terms
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Contrast, TargetLike
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.method_names import Kind, kind_of
from tokenlight.explainer import Explainer
from tokenlight.explaining.stream import half_by_half
from tokenlight.metrics._metric import Case, Metric

_STEPS = ("absolute", "l1_normalise", "max_normalise", "without_special")
Further = list[list[Attribution] | TokenlightError]


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
    stages: list[Further] = [
        _explained_again(
            Explainer(
                model,
                explainer.tokenizer,
                name=f"{explainer.name}, {stage} randomised",
                pooling=explainer.live.pooling,
                similarity=explainer.live.similarity,
            ),
            cases,
            target_again,
        )
        for stage, model in cascade(explainer.live, getattr(metric, "seed", 0))
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
