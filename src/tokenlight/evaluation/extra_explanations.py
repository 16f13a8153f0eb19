"""What a metric needs of each text before it measures: further explanations, made with the recorded
method, options and steps; and searches that ask the model step by step, those of all texts together."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any
from weakref import WeakKeyDictionary

from tokenlight import registry
from tokenlight.capture.altered import cascade
from tokenlight.capture.perturbation import stream_logits
from tokenlight.data import postprocess
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import TargetLike
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.explainer import Explainer
from tokenlight.explaining.stream import half_by_half
from tokenlight.metrics._metric import Bounds, Case, Metric
from tokenlight.registry import spelled

_STEPS = ("absolute", "l1_normalise", "max_normalise", "without_special")
MOST = 100_000  # searches remembered for one explainer
Key = tuple[str, str, str, bytes]
_found: WeakKeyDictionary[Explainer, dict[Key, Bounds | TokenlightError]] = WeakKeyDictionary()


def label_of(attribution: Attribution) -> str:
    """Its method with options and steps: equal for explanations made the same way."""
    made = spelled(attribution.method, attribution.options)
    return " | ".join((made, *attribution.steps))


def completed(
    explainer: Explainer, cases: Sequence[Case], metric: Metric, batch_tokens: int | None
) -> Sequence[Case | TokenlightError]:
    """Each case with what its metric needs beside it, or why that cannot be had."""
    name, rounds = "others", list[Sequence[Any]]()
    if metric.searches:
        name, rounds = "bounds", [_extremes(explainer, cases, metric, batch_tokens)]
    elif metric.further == "classes":
        rounds = [_explained_again(explainer, cases, "all")]
    elif metric.further == "randomised":
        live = explainer.live
        how: dict[str, Any] = {"pooling": live.pooling, "similarity": live.similarity}
        for stage, model in cascade(live, getattr(metric, "seed", 0)):
            called = f"{explainer.name}, {stage} randomised"
            other = Explainer(model, explainer.tokenizer, name=called, **how)
            rounds.append(_explained_again(other, cases))
    if not rounds:
        return cases
    found: list[Case | TokenlightError] = []
    for case, *parts in zip(cases, *rounds, strict=True):
        refused = [part for part in parts if isinstance(part, TokenlightError)]
        filling: Any = {} if refused else {name: tuple(chain(*parts))}
        found.append(refused[0] if refused else replace(case, **filling))
    return found


def _explained_again(
    explainer: Explainer, cases: Sequence[Case], target: TargetLike | None = None
) -> list[list[Attribution] | TokenlightError]:
    """Explanations with the recorded method, options and steps, and the recorded target where none is
    given; batched where they are alike."""
    groups: dict[str, list[Attribution]] = {}
    for one in (case.attribution for case in cases):
        groups.setdefault(label_of(one), []).append(one)
    work = partial(_explained_batch, explainer, target)
    made = {name: iter(half_by_half(work, own, TokenlightError)) for name, own in groups.items()}
    return [next(made[label_of(case.attribution)]) for case in cases]


def _explained_batch(
    explainer: Explainer, target: TargetLike | None, attributions: Sequence[Attribution]
) -> list[list[Attribution]]:
    first = attributions[0]
    if not registry.has("methods", first.method):
        only = f"which only {first.method!r} could make, and which is not a tokenlight method"
        raise BadInput(f"this metric needs further explanations, {only}.")
    for step in first.steps:
        if step not in _STEPS:
            raise BadInput(f"the step {step!r} cannot be repeated on further explanations.")
    rows = [a.row for a in attributions]
    made = explainer.explain(
        rows,
        method=[(first.method, dict(first.options))],
        target=[target or a.target for a in attributions],
        seed=first.seed,
        progress=False,
    )
    for step in first.steps:
        made = [getattr(postprocess, step)(a) for a in made]
    share = len(made) // len(rows)
    return [made[i * share : (i + 1) * share] for i in range(len(rows))]


def _extremes(
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
    searches: dict[Key, Any] = {
        key: metric.search(case) for key, case in zip(keys, cases, strict=True) if key not in found
    }
    answers: dict[Key, Any] = dict.fromkeys(searches)  # to nothing yet
    while answers:
        asked = {}
        for key, said in answers.items():
            try:
                asked[key] = searches[key].send(said)
            except StopIteration as done:
                found[key] = done.value
            except TokenlightError as refused:
                found[key] = refused
        rows = (variant for variants in asked.values() for variant in variants)
        logits = stream_logits(explainer.live, rows, batch_tokens=batch_tokens)
        answers = {
            key: list(zip(variants, islice(logits, len(variants)), strict=True))
            for key, variants in asked.items()
        }
    return [found[key] for key in keys]
