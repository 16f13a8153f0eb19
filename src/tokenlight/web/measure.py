"""Measurements that take a while: trust in one explanation, its game, methods over a few texts, and
which methods work on a model at all. They pause between the passes that they need."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from tokenlight.capture.randomised import stages
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.labels import read_labels
from tokenlight.evaluation.measure import Failure, Known, Record, check, measure
from tokenlight.evaluation.method_names import Kind, kind_of_method, method_names
from tokenlight.evaluation.results import Evaluation, built
from tokenlight.evaluation.trust import trusted
from tokenlight.methods._method import Method
from tokenlight.metrics._metric import Metric
from tokenlight.web.explain import (
    Explained,
    Wanted,
    count_targets,
    explain_alone,
    read_row,
    read_text,
)
from tokenlight.web.games import Play, bands, curves, told
from tokenlight.web.limits import Limits
from tokenlight.web.models import Served
from tokenlight.web.options import spec, token_passes
from tokenlight.web.refusals import Refusal, caught
from tokenlight.web.requests import AttentionAsked, EvaluateAsked, ExplainAsked, TextAsked
from tokenlight.web.store import Entry


def measured_trust(served: Served, attribution: Attribution, limits: Limits) -> Attribution:
    """The attribution with ``extras["trust"]``; of a longer text fewer random orders are tried."""
    tokens = len(attribution)
    for orders, choices in ((50, 100), (20, 40)):
        # Leave-one-out asks about every token; a random order about eleven texts, half as long.
        if tokens * (tokens + 6 * orders + choices) <= limits.trust_passes:
            return trusted(served.explainer, attribution, orders=orders, choices=choices)
    raise Refusal(
        422,
        "too_costly",
        f"testing a text of {tokens} tokens would keep this server busy for minutes.",
        "Give a shorter text, or use: tokenlight explain --trust.",
    )


def play(served: Served, entries: Sequence[Entry], orders: int, seed: int) -> list[dict[str, Any]]:
    """The games of kept explanations; what was played lately is not asked again."""
    plays = {entry.id: Play.of(entry.attribution, entry.id) for entry in entries}
    key = (orders, seed)
    chance = {entry.id: entry.bands.get(key) for entry in entries}
    for group in _groups([entry for entry in entries if entry.curve is None]):
        made = curves(served, [plays[entry.id] for entry in group])
        for entry, curve in zip(group, made, strict=True):
            entry.curve = curve
    for group in _groups([entry for entry in entries if orders and chance[entry.id] is None]):
        made = bands(served, [plays[entry.id] for entry in group], orders, seed)
        for entry, band in zip(group, made, strict=True):
            chance[entry.id] = band
            entry.remember(key, band)
    return [told(plays[entry.id], entry.curve or {}, chance[entry.id]) for entry in entries]


def played(entries: Sequence[Entry], orders: int, seed: int) -> list[dict[str, Any]] | None:
    """The games, where all of them were played before."""
    found = [(entry, entry.curve, entry.bands.get((orders, seed))) for entry in entries]
    if any(curve is None or (orders and band is None) for _, curve, band in found):
        return None
    return [
        told(Play.of(entry.attribution, entry.id), curve or {}, band)
        for entry, curve, band in found
    ]


def play_own(served: Served, one: Play, orders: int, seed: int) -> list[dict[str, Any]]:
    """The game of an order that a person chose."""
    (curve,) = curves(served, [one])
    band = bands(served, [one], orders, seed)[0] if orders else None
    return [told(one, curve, band)]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Short texts play together, in one batch; long ones take turns with what else waits."""
    groups: list[list[Entry]] = []
    for entry in entries:
        if groups and sum(len(e.attribution) for e in groups[-1]) + len(entry.attribution) <= 512:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def evaluate(served: Served, asked: EvaluateAsked, limits: Limits) -> dict[str, Any]:
    """Explain and measure text by text; what cannot be explained is said beside the numbers."""
    started = time.perf_counter()
    metrics = built([spec("metrics", one) for one in asked.metrics])
    labels = read_labels(asked.labels, served.explainer.live.head)
    check(metrics.values(), served.explainer.live.head, Known(labels, None))
    _check_size(served, asked, metrics.values(), limits)
    kinds = {method: _kind(served, asked, method) for method in served.methods(asked.methods)}
    names = method_names(kinds.values())
    records: list[Record] = []
    refused: list[dict[str, Any]] = []
    omitted: list[Failure] = []
    for number, text in enumerate(asked.asked):
        found: list[Attribution] = []
        for method, kind in kinds.items():
            try:
                found += _explained(served, asked, text, method, limits).attributions
            except (TokenlightError, Refusal) as why:
                refused.append({"text": number, "method": method, **caught(why).to_dict()})
                omitted.append(Failure(number, names[kind], refused[-1]["error"]["message"]))
        truth = None if labels is None else [labels[number]]
        known = Known(truth, None, number, texts=[0] * len(found), names=names)
        if found:
            records += measure(served.explainer, found, metrics, known, progress=False)
    if not records:
        why_not = refused[0]["error"]
        raise Refusal(422, why_not["code"], why_not["message"], why_not["hint"])
    evaluation = Evaluation(tuple(records), metrics, asked.seed, refusals=tuple(omitted))
    return {
        "model": served.name,
        **evaluation.to_dict(),
        "rows": evaluation.rows,
        "refused": refused,
        "table": evaluation.table(),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _built(served: Served, asked: EvaluateAsked, method: str) -> Method:
    name, options = spec("methods", method, served.heads)
    return Method.asked(name, options, seed=asked.seed, model=served.explainer.live.model)


def _kind(served: Served, asked: EvaluateAsked, method: str) -> Kind:
    """What explanations of a method will be; of one that is refused, what it was asked for as."""
    try:
        return kind_of_method(_built(served, asked, method))
    except (TokenlightError, Refusal):
        return method.partition(":")[0], method


def _explained(
    served: Served, asked: EvaluateAsked, text: TextAsked, method: str, limits: Limits
) -> Explained:
    one = ExplainAsked(
        **text.model_dump(), method=method, target=asked.target, long="truncate", seed=asked.seed
    )
    return explain_alone(served, Wanted.of(one, served), limits.passes)


def _check_size(
    served: Served, asked: EvaluateAsked, metrics: Collection[Metric], limits: Limits
) -> None:
    """Count every explanation, the further ones that a metric needs, and its changed texts."""
    changed = sum(len(metric.points) + 1 for metric in metrics if metric.asks)
    further = sum(_further(served, metric) for metric in metrics)
    methods = []
    for one in served.methods(asked.methods):
        with suppress(TokenlightError, Refusal):  # it is said, text by text, when its turn comes
            methods.append(_built(served, asked, one))
    targets, cost = count_targets(asked.target, served), 0
    for text in asked.asked:
        try:
            tokens = len(read_row(served, text.inputs, "truncate"))
        except TokenlightError:
            continue  # likewise
        explained = token_passes(methods, tokens, targets * (1 + further))
        cost += explained + tokens * changed * len(methods) * targets
    if cost > limits.evaluated_passes:
        raise Refusal(
            422,
            "too_costly",
            f"this costs about as much as sending {cost:,} tokens through the model, and at most "
            f"{limits.evaluated_passes:,} are served.",
            "Give fewer or shorter texts, methods or metrics; or use: tokenlight evaluate.",
        )


def _further(served: Served, metric: Metric) -> int:
    """How many further explanations a metric needs of each."""
    live = served.explainer.live
    if metric.further == "randomised":
        return len(stages(live))
    return len(live.head.labels) if metric.further == "classes" else 0


def attention_map(served: Served, asked: AttentionAsked, limits: Limits) -> dict[str, Any]:
    """The attention map of one head, or of a layer's heads in the mean: ``query key``."""
    row = read_text(served, asked)
    if len(row) > limits.attention_tokens:
        raise Refusal(
            422,
            "too_costly",
            f"a map of {len(row)} × {len(row)} tokens is more than a page can show.",
            f"Give a text of at most {limits.attention_tokens} tokens.",
        )
    live = served.explainer.live
    live.verify(row, maps=True)
    maps = record(live, [row], frozenset({Site.ATTENTION})).attention
    layers, heads = len(maps), int(maps[0].shape[1])
    if asked.layer >= layers or (asked.head is not None and asked.head >= heads):
        raise BadInput(
            f"layer {asked.layer}, head {asked.head} does not exist: this model has layers 0 to "
            f"{layers - 1} with heads 0 to {heads - 1}."
        )
    chosen = maps[asked.layer][0].detach()
    weights = chosen.mean(dim=0) if asked.head is None else chosen[asked.head]
    return {
        "model": served.name,
        "layer": asked.layer,
        "head": asked.head,
        "tokens": list(row.surface),
        "special": list(row.special),
        "weights": weights.double().cpu().numpy().round(6).tolist(),
    }


def try_method(served: Served, name: str) -> None:
    """Try one method on a few words, as ``tokenlight doctor`` does."""
    asked = TextAsked(**served.brief)
    started = time.perf_counter()
    try:
        usual = served.explainer.live.head.usual
        served.explainer.explain(
            asked.inputs, method=name, target=usual, long="truncate", progress=False
        )
        why = None
    except TokenlightError as refused:
        why = caught(refused).to_dict()["error"]["message"]
    except Exception as broken:  # noqa: BLE001 - a method that breaks is one that does not work
        why = f"it broke with {type(broken).__name__}"
    seconds = time.perf_counter() - started
    served.works[name] = {"works": why is None, "why": why, "ms": round(1000 * seconds)}
