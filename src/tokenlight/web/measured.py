"""Measurements that take a while, in steps: trust in one explanation, methods over a few texts, and
which methods work on a model at all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tokenlight.attribution import Attribution
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.evaluated import Evaluation, built, read_labels
from tokenlight.evaluation.measuring import Known, Record, check, measure
from tokenlight.trust import trusted
from tokenlight.web.allowed import spec
from tokenlight.web.asking import AttentionAsked, EvaluateAsked, TextAsked
from tokenlight.web.explaining import Wanted, explain_steps, read_text
from tokenlight.web.games import Play, bands, curves, told
from tokenlight.web.kept import Entry
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import Refusal, refusal
from tokenlight.web.serving import Served
from tokenlight.web.worker import Steps

VARIANTS = 22  # changed texts that a metric asks about, roughly, for the estimate of its cost


def trust_steps(served: Served, attribution: Attribution, limits: Limits) -> Steps:
    """The attribution with ``extras["trust"]``; of a longer text fewer random orders are tried."""
    yield
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


def game_steps(served: Served, entries: Sequence[Entry], orders: int, seed: int) -> Steps:
    """The games of kept explanations; what was played before is not asked again."""
    plays = {entry.id: Play.of(entry.attribution, entry.id) for entry in entries}
    for group in _groups([entry for entry in entries if entry.curve is None]):
        yield
        made = curves(served, [plays[entry.id] for entry in group])
        for entry, curve in zip(group, made, strict=True):
            entry.curve = curve
    key = (orders, seed)
    for group in _groups([entry for entry in entries if orders and key not in entry.bands]):
        yield
        made = bands(served, [plays[entry.id] for entry in group], orders, seed)
        for entry, band in zip(group, made, strict=True):
            entry.bands[key] = band
    return played(entries, orders, seed)


def played(entries: Sequence[Entry], orders: int, seed: int) -> list[dict[str, Any]] | None:
    """The games, where all of them were played before."""
    key = (orders, seed)
    if any(entry.curve is None or (orders and key not in entry.bands) for entry in entries):
        return None
    return [
        told(Play.of(entry.attribution, entry.id), entry.curve or {}, entry.bands.get(key))
        for entry in entries
    ]


def own_game_steps(served: Served, one: Play, orders: int, seed: int) -> Steps:
    """The game of an order that a person chose."""
    yield
    (curve,) = curves(served, [one])
    yield
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


def evaluate_steps(served: Served, asked: EvaluateAsked, limits: Limits) -> Steps:
    """Explain and measure text by text; what cannot be explained is said beside the numbers."""
    started = time.perf_counter()
    metrics = built([spec("metrics", one) for one in asked.metrics])
    labels = read_labels(asked.labels, served.explainer.live.head)
    check(metrics.values(), served.explainer.live.head, Known(labels, None))
    yield
    _check_size(served, asked, limits)
    records: list[Record] = []
    refused: list[dict[str, Any]] = []
    for number, text in enumerate(asked.asked):
        found: list[Attribution] = []
        for method in dict.fromkeys(asked.methods):
            yield
            try:
                found += (yield from _explained(served, asked, text, method, limits)).attributions
            except (TokenlightError, Refusal) as why:
                said = why if isinstance(why, Refusal) else refusal(why)
                refused.append({"text": number, "method": method, **said.to_dict()})
        yield
        known = Known(None if labels is None else [labels[number]], None, number)
        if found:
            records += measure(served.explainer, found, metrics, known, progress=False)
    if not records:
        why_not = refused[0]["error"]
        raise Refusal(422, why_not["code"], why_not["message"], why_not["hint"])
    evaluation = Evaluation(tuple(records), metrics, asked.seed)
    return {
        "model": served.name,
        **evaluation.to_dict(),
        "rows": evaluation.rows,
        "refused": refused,
        "table": evaluation.table(),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _explained(
    served: Served, asked: EvaluateAsked, text: TextAsked, method: str, limits: Limits
) -> Any:
    from tokenlight.web.asking import ExplainAsked

    one = ExplainAsked(
        **text.model_dump(), method=method, target=asked.target, long="truncate", seed=asked.seed
    )
    made = yield from explain_steps(served, Wanted.of(one, served), limits.passes)
    return made


def _check_size(served: Served, asked: EvaluateAsked, limits: Limits) -> None:
    tokens = 0
    for text in asked.asked:
        try:
            tokens += len(read_text(served, text))
        except TokenlightError:
            tokens += served.explainer.max_tokens or 0
    cost = tokens * len(asked.methods) * len(asked.metrics) * VARIANTS
    if cost > limits.evaluated_passes:
        raise Refusal(
            422,
            "too_costly",
            f"this would send about {cost:,} tokens through the model, and at most "
            f"{limits.evaluated_passes:,} are served.",
            "Give fewer or shorter texts, methods or metrics; or use: tokenlight evaluate.",
        )


def attention_steps(served: Served, asked: AttentionAsked, limits: Limits) -> Steps:
    """The attention map of one head, or of a layer's heads in the mean: ``query key``."""
    yield
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


def trial_steps(served: Served, name: str) -> Steps:
    """Try one method on a few words, as ``tokenlight doctor`` does."""
    yield
    asked = TextAsked(**served.brief)
    started = time.perf_counter()
    try:
        served.explainer.explain(asked.inputs, method=name, long="truncate", progress=False)
        why = None
    except TokenlightError as refused:
        why = refusal(refused).to_dict()["error"]["message"]
    except Exception as broken:  # noqa: BLE001 - a method that breaks is one that does not work
        why = f"it broke with {type(broken).__name__}"
    seconds = time.perf_counter() - started
    served.works[name] = {"works": why is None, "why": why, "ms": round(1000 * seconds)}
