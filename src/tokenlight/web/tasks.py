"""What a model is asked to do: explain what several people asked, in as few passes as there are kinds of
asking; and what takes a while, and pauses between its passes: trust in one explanation, methods measured over
a few texts, the attention of a head, and which methods work on it at all."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tokenlight.capture.altered import stages
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Continuation
from tokenlight.data.tokens import Long, TokenRow
from tokenlight.errors import BadInput, TokenlightError, in_words
from tokenlight.evaluation.measure import Failure, Record, check, measure, short_names
from tokenlight.evaluation.preflight import attempt, read_labels
from tokenlight.evaluation.results import Evaluation, built
from tokenlight.evaluation.trust import trusted
from tokenlight.explaining.jobs import read
from tokenlight.explaining.options import How
from tokenlight.explaining.windows import OVERLAP, is_long
from tokenlight.inputs.encode import encode_windows
from tokenlight.inputs.prompt import Context
from tokenlight.methods._method import Method
from tokenlight.metrics._metric import Metric
from tokenlight.registry import spelled
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import Served
from tokenlight.web.options import slow, spec, token_passes
from tokenlight.web.refusals import Refusal, caught, too_costly, without_paths
from tokenlight.web.requests import AttentionAsked, EvaluateAsked, ExplainAsked

SMALL = 512  # tokens of a pass of lengthy work: others wait for one to end


@dataclass(frozen=True, eq=False)
class Wanted:
    """One checked request; ``key`` is equal for requests that can share a pass."""

    inputs: Any
    methods: dict[str, Method]  # by what they were asked for as
    target: Any
    how: dict[str, Any]  # keywords of explain(), of which one is long
    key: str

    @classmethod
    def of(cls, asked: ExplainAsked, served: Served) -> "Wanted":
        """Check methods and options before anything waits; one that is asked for twice counts once."""
        named = served.methods(asked.method, asked.inputs)
        specs = {one: spec("methods", one, served.heads) for one in named}
        model, seed = served.explainer.live.model, asked.seed
        methods = {one: Method.asked(*specs[one], seed=seed, model=model) for one in named}
        how = {"long": asked.long, "seed": seed, "progress": False}
        key = json.dumps([specs, seed], default=str)
        return cls(asked.inputs, methods, asked.wanted, how, key)

    @property
    def lengthy(self) -> bool:
        """Whether each pass of it would keep others waiting."""
        return self.how["long"] == "stride" or any(map(slow, self.methods.values()))


@dataclass(frozen=True, eq=False)
class Explained:
    """Attributions, method by method, and the methods that could not, with the reason."""

    attributions: tuple[Attribution, ...]
    refused: tuple[tuple[str, Refusal], ...] = ()


def count_targets(target: Any, served: Served) -> int:
    """How many targets an asked one stands for; a vocabulary is refused where it is read."""
    head = served.explainer.live.head
    return len(head.labels) or 1 if target == "all" and not head.writes else 1


def explain_batch(
    served: Served, wanted: Sequence[Wanted], passes: int
) -> list[Explained | Exception]:
    """An answer or an error for each; nobody's mistake touches another's answer."""
    answers: dict[int, Explained | Exception] = {}
    groups: dict[str, dict[int, Any]] = {}
    for number, one in enumerate(wanted):
        try:
            groups.setdefault(one.key, {})[number] = _read(served, one, passes)
        except (TokenlightError, Refusal) as refused:
            answers[number] = refused
    for rows in groups.values():
        with suppress(TokenlightError):  # then each by itself
            answers |= _together(served, {number: wanted[number] for number in rows}, rows)
        for number in rows.keys() - answers.keys():
            made = _each_method(served, wanted[number], rows[number])
            answers[number] = made if made.attributions else made.refused[0][1]
    return [answers[number] for number in range(len(wanted))]


def explain_alone(served: Served, one: Wanted, passes: int) -> Explained:
    """The same for one request alone, method by method, in small passes."""
    return _each_method(served, one, _read(served, one, passes), batch_tokens=SMALL)


def read_row(served: Served, inputs: Any, long: Long) -> TokenRow:
    """The text as the model reads it."""
    how = How((), "none", "tokenizer", long, 0, 1, False)
    return read(served.explainer, inputs, how)


def _read(served: Served, one: Wanted, passes: int) -> Any:
    """What explain() is given: the row, unless it is cut into windows or something is written behind it."""
    explainer, stride = served.explainer, one.how["long"] == "stride"
    row = read_row(served, one.inputs, "truncate" if stride else one.how["long"])
    windows = [len(row)]
    if stride and is_long(explainer, one.inputs):
        limit = explainer.max_tokens
        assert limit is not None
        overlap = int(limit * OVERLAP)
        cut = encode_windows(one.inputs, explainer.tokenizer, limit=limit, overlap=overlap)
        # Of a question all windows are read, and one is explained.
        windows = [len(row) for row, _ in cut][: 1 if served.task == "span" else None]
    check_cost(one, served, windows, passes)
    return one.inputs if stride or isinstance(one.inputs, Context) else row


def check_cost(one: Wanted, served: Served, windows: Sequence[int], most: int) -> None:
    """Refuse what would take this machine minutes; ``windows``: how many tokens each one has."""
    targets = count_targets(one.target, served)
    cost = sum(token_passes(one.methods.values(), tokens, targets) for tokens in windows)
    if isinstance(one.target, Continuation) and one.target.text is None:
        cost += one.target.tokens * len(one.methods) * sum(windows)  # each writes its answer first
    quick = 3 * max(windows) * len(one.methods)  # one pass of whatever the model reads is served
    too_costly(cost, max(most, quick), "a shorter text, fewer samples, targets or methods")


def _together(
    served: Served, asked: Mapping[int, Wanted], rows: Mapping[int, Any]
) -> dict[int, Explained]:
    """One pass for all; nothing where what comes back is not in the order that was thought."""
    first, targets = next(iter(asked.values())), [one.target for one in asked.values()]
    methods = [*first.methods.values()]
    found = served.explainer.explain([*rows.values()], methods, targets, **first.how)
    sizes = [len(methods) * count_targets(target, served) for target in targets]
    if len(found) != sum(sizes):
        return {}
    parts = iter(found)
    return {n: Explained(tuple(islice(parts, size))) for n, size in zip(asked, sizes, strict=True)}


def _each_method(served: Served, one: Wanted, given: Any, **how: Any) -> Explained:
    """What some methods refuse, others may explain; ``how``: more keywords of explain()."""
    found: list[Attribution] = []
    refused: list[tuple[str, Refusal]] = []
    for name, method in one.methods.items():
        try:
            found += served.explainer.explain([given], [method], [one.target], **one.how, **how)
        except TokenlightError as why:
            refused.append((name, caught(why)))
    return Explained(tuple(found), tuple(refused))


def measured_trust(served: Served, attribution: Attribution, limits: ServerLimits) -> Attribution:
    """The attribution with ``extras["trust"]``; of a longer text fewer random orders are tried."""
    tokens = len(attribution)
    for orders, choices in ((50, 100), (20, 40)):
        # A random order asks about eleven texts, half as long.
        if tokens * (6 * orders + choices) <= limits.trust_passes:
            return trusted(served.explainer, attribution, orders=orders, choices=choices)
    said = f"testing a text of {tokens} tokens would keep this server busy for minutes."
    raise Refusal("too_costly", said, "Give a shorter text, or use: tokenlight explain --trust.")


def evaluate(served: Served, asked: EvaluateAsked, limits: ServerLimits) -> dict[str, Any]:
    """Explain and measure text by text; what cannot be explained is said beside the numbers."""
    started, head = time.perf_counter(), served.explainer.live.head
    metrics = built([spec("metrics", one) for one in asked.metrics])
    labels = None if asked.labels is None else read_labels(asked.labels, head)
    check(metrics.values(), head, labelled=labels is not None, marked=False)
    how = {**asked.model_dump(include={"method", "target", "seed"}), "long": "truncate"}
    each = [ExplainAsked.model_validate({**text.model_dump(), **how}) for text in asked.asked]
    texts = [Wanted.of(text, served) for text in each]
    names = {one: spelled(own.name, own.options) for one, own in texts[0].methods.items()}
    _check_size(served, texts, [*metrics.values()], limits.evaluated_passes)
    records: list[Record] = []
    refused: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        try:
            made = explain_alone(served, text, limits.evaluated_passes)
        except (TokenlightError, Refusal) as why:
            made = Explained((), tuple((name, caught(why)) for name in text.methods))
        for name, refusal in made.refused:
            refused.append({"text": number, "method": name, **refusal.to_dict()})
        own, numbers = made.attributions, [number] * len(made.attributions)
        records += measure(served.explainer, own, metrics, numbers, labels=labels, progress=False)
    if not records:
        raise Refusal(*refused[0]["error"].values())
    told = ((one["text"], names[one["method"]], one["error"]["message"]) for one in refused)
    omitted = (Failure(*one) for one in told)
    named, omissions = short_names(records, omitted)
    evaluation = Evaluation(named, metrics, asked.seed, refusals=omissions)
    return {
        "model": served.name,
        **evaluation.to_dict(),
        "rows": evaluation.rows,
        "refused": refused,
        "table": evaluation.table(),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _check_size(served: Served, texts: Sequence[Wanted], metrics: list[Metric], most: int) -> None:
    """Count every explanation, the further ones that a metric needs, and its changed texts."""
    changed = sum(len(metric.points) + 1 for metric in metrics if metric.asks)
    live = served.explainer.live
    more = {"randomised": len(stages(live)), "classes": len(live.head.labels)}
    further = sum(more.get(metric.further, 0) for metric in metrics)
    cost = 0
    for text in texts:
        targets = count_targets(text.target, served)
        with suppress(TokenlightError):  # it is said, text by text, when its turn comes
            tokens = len(read_row(served, text.inputs, "truncate"))
            cost += token_passes(text.methods.values(), tokens, targets * (1 + further))
            cost += tokens * changed * len(text.methods) * targets
    too_costly(cost, most, "fewer or shorter texts, methods or metrics")


def attention_map(served: Served, asked: AttentionAsked, limits: ServerLimits) -> dict[str, Any]:
    """The attention map of one head, or of a layer's heads in the mean: ``query key``."""
    row = read_row(served, asked.inputs, "error")
    if len(row) > limits.attention_tokens:
        said = f"a map of {len(row)} × {len(row)} tokens is more than a page can show."
        hint = f"Give a text of at most {limits.attention_tokens} tokens."
        raise Refusal("too_costly", said, hint)
    live = served.explainer.live
    live.verify(row, maps=True)
    maps = record(live, [row], frozenset({Site.ATTENTION})).attention
    layers, heads = len(maps), int(maps[0].shape[1])
    if asked.layer >= layers or (asked.head is not None and asked.head >= heads):
        there = f"this model has layers 0 to {layers - 1} with heads 0 to {heads - 1}"
        raise BadInput(f"layer {asked.layer}, head {asked.head} does not exist: {there}.")
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
