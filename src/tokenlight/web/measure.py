"""Measurements that take a while: trust in one explanation, its game, methods over a few texts, and
which methods work on a model at all. They pause between the passes that they need."""

import time
from collections.abc import Collection, Sequence
from typing import Any

from tokenlight.capture.altered import stages
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, TokenlightError, in_words
from tokenlight.evaluation.labels import read_labels
from tokenlight.evaluation.measure import Failure, Known, Record, check, measure
from tokenlight.evaluation.method_names import Kind, kind_of_method, method_names
from tokenlight.evaluation.preflight import attempt
from tokenlight.evaluation.results import Evaluation, built
from tokenlight.evaluation.trust import trusted
from tokenlight.methods._method import Method
from tokenlight.metrics._metric import Metric
from tokenlight.web.explain import Wanted, count_targets, explain_alone, read_row
from tokenlight.web.games import Play, bands, curves, told
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import Served
from tokenlight.web.options import spec, token_passes
from tokenlight.web.refusals import Refusal, caught, without_paths
from tokenlight.web.requests import AttentionAsked, EvaluateAsked, ExplainAsked
from tokenlight.web.store import Entry


def measured_trust(served: Served, attribution: Attribution, limits: ServerLimits) -> Attribution:
    """The attribution with ``extras["trust"]``; of a longer text fewer random orders are tried."""
    tokens = len(attribution)
    for orders, choices in ((50, 100), (20, 40)):
        # A random order asks about eleven texts, half as long.
        if tokens * (6 * orders + choices) <= limits.trust_passes:
            return trusted(served.explainer, attribution, orders=orders, choices=choices)
    raise Refusal(
        "too_costly",
        f"testing a text of {tokens} tokens would keep this server busy for minutes.",
        "Give a shorter text, or use: tokenlight explain --trust.",
    )


def play(served: Served, entries: Sequence[Entry], orders: int, seed: int) -> None:
    """Play the games of kept explanations; what was played lately is not asked again."""
    for group in _groups([entry for entry in entries if entry.curve is None]):
        made = curves(served, [Play.of(entry.attribution, entry.id) for entry in group])
        for entry, curve in zip(group, made, strict=True):
            entry.curve = curve
    for group in _groups([e for e in entries if orders and (orders, seed) not in e.bands]):
        made = bands(served, [Play.of(e.attribution, e.id) for e in group], orders, seed)
        for entry, band in zip(group, made, strict=True):
            entry.remember((orders, seed), band)


def played(entries: Sequence[Entry], orders: int, seed: int) -> list[dict[str, Any]] | None:
    """The games, where all of them were played."""
    found = []
    for entry in entries:
        band = entry.bands.get((orders, seed))
        if entry.curve is None or (orders and band is None):
            return None
        found.append(told(Play.of(entry.attribution, entry.id), entry.curve, band))
    return found


def play_own(served: Served, one: Play, orders: int, seed: int) -> list[dict[str, Any]]:
    """The game of an order that a person chose."""
    (curve,) = curves(served, [one])
    return [told(one, curve, bands(served, [one], orders, seed)[0] if orders else None)]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Short texts play together, in one batch; long ones take turns with what else waits."""
    groups: list[list[Entry]] = []
    for entry in entries:
        if groups and sum(len(e.attribution) for e in [*groups[-1], entry]) <= 512:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def evaluate(served: Served, asked: EvaluateAsked, limits: ServerLimits) -> dict[str, Any]:
    """Explain and measure text by text; what cannot be explained is said beside the numbers."""
    started = time.perf_counter()
    metrics = built([spec("metrics", one) for one in asked.metrics])
    labels = read_labels(asked.labels, served.explainer.live.head)
    check(metrics.values(), served.explainer.live.head, Known(labels, None))
    methods, kinds = _methods(served, asked)
    _check_size(served, asked, methods, metrics.values(), limits)
    names = method_names(kinds.values())
    records: list[Record] = []
    refused: list[dict[str, Any]] = []
    omitted: list[Failure] = []
    for number, text in enumerate(asked.asked):
        found: list[Attribution] = []
        how = {**text.model_dump(), "target": asked.target, "long": "truncate", "seed": asked.seed}
        for method, kind in kinds.items():
            try:
                wanted = Wanted.of(ExplainAsked(method=method, **how), served)
                found += explain_alone(served, wanted, limits.passes).attributions
            except (TokenlightError, Refusal) as why:
                refused.append({"text": number, "method": method, **caught(why).to_dict()})
                omitted.append(Failure(number, names[kind], refused[-1]["error"]["message"]))
        known = Known(labels, None, texts=[number] * len(found), names=names)
        if found:
            records += measure(served.explainer, found, metrics, known, progress=False)
    if not records:
        raise Refusal(*refused[0]["error"].values())
    evaluation = Evaluation(tuple(records), metrics, asked.seed, refusals=tuple(omitted))
    return {
        "model": served.name,
        **evaluation.to_dict(),
        "rows": evaluation.rows,
        "refused": refused,
        "table": evaluation.table(),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _methods(served: Served, asked: EvaluateAsked) -> tuple[list[Method], dict[str, Kind]]:
    """The methods that can be built, and what explanations of each will be; of one that is refused,
    text by text when its turn comes, what it was asked for as."""
    methods, kinds = [], {}
    for method in served.methods(asked.method):
        try:
            how = spec("methods", method, served.heads)
            built = Method.asked(*how, seed=asked.seed, model=served.explainer.live.model)
        except (TokenlightError, Refusal):
            kinds[method] = (method.partition(":")[0], method)
        else:
            kinds[method] = kind_of_method(built)
            methods.append(built)
    return methods, kinds


def _check_size(
    served: Served,
    asked: EvaluateAsked,
    methods: Sequence[Method],
    metrics: Collection[Metric],
    limits: ServerLimits,
) -> None:
    """Count every explanation, the further ones that a metric needs, and its changed texts."""
    changed = sum(len(metric.points) + 1 for metric in metrics if metric.asks)
    live = served.explainer.live
    more = {"randomised": len(stages(live)), "classes": len(live.head.labels)}
    further = sum(more.get(metric.further, 0) for metric in metrics)
    targets, cost = count_targets(asked.target, served), 0
    for text in asked.asked:
        try:
            tokens = len(read_row(served, text.inputs, "truncate"))
        except TokenlightError:
            continue  # it is said, text by text, when its turn comes
        explained = token_passes(methods, tokens, targets * (1 + further))
        cost += explained + tokens * changed * len(methods) * targets
    if cost > limits.evaluated_passes:
        raise Refusal(
            "too_costly",
            f"this costs about as much as sending {cost:,} tokens through the model, and at most "
            f"{limits.evaluated_passes:,} are served.",
            "Give fewer or shorter texts, methods or metrics; or use: tokenlight evaluate.",
        )


def attention_map(served: Served, asked: AttentionAsked, limits: ServerLimits) -> dict[str, Any]:
    """The attention map of one head, or of a layer's heads in the mean: ``query key``."""
    row = read_row(served, asked.inputs, "error")
    if len(row) > limits.attention_tokens:
        raise Refusal(
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
    why, seconds = attempt(served.explainer, name)
    said = None if why is None else without_paths(in_words(why))
    served.works[name] = {"works": why is None, "why": said, "ms": round(1000 * seconds)}
