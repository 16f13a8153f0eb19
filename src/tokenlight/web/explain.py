"""Explaining what several people asked of one model, in as few passes as there are kinds of asking."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import Long, TokenRow
from tokenlight.errors import TokenlightError
from tokenlight.explaining.jobs import read
from tokenlight.explaining.options import How
from tokenlight.explaining.windows import OVERLAP, is_long
from tokenlight.inputs.encode import encode_windows
from tokenlight.methods._method import Method
from tokenlight.web.models import Served
from tokenlight.web.options import Spec, slow, spec, token_passes
from tokenlight.web.refusals import Refusal, refusal
from tokenlight.web.requests import ExplainAsked, TextAsked, target_of

SMALL = 512  # tokens of a pass of lengthy work: others wait for one to end


@dataclass(frozen=True, eq=False)
class Wanted:
    """One checked request; ``key`` is equal for requests that can share a pass."""

    inputs: Any
    methods: tuple[Method, ...]
    named: tuple[str, ...]  # as they were asked for
    target: Any
    long: Long
    seed: int
    key: str

    @classmethod
    def of(cls, asked: ExplainAsked, served: Served) -> Wanted:
        """Check methods and options before anything waits; one that is asked for twice counts once."""
        named = served.methods(asked.methods, asked.inputs)
        specs = [spec("methods", one, served.heads) for one in named]
        model = served.explainer.live.model
        methods = tuple(Method.asked(*one, seed=asked.seed, model=model) for one in specs)
        return cls(
            inputs=asked.inputs,
            methods=methods,
            named=named,
            target=target_of(asked.target),
            long=asked.long,
            seed=asked.seed,
            key=key_of(specs, asked.seed),
        )

    @property
    def lengthy(self) -> bool:
        """Whether each pass of it would keep others waiting."""
        return self.long == "stride" or any(slow(method) for method in self.methods)

    def targets(self, served: Served) -> int:
        """How many targets each method explains."""
        return count_targets(self.target, served)


@dataclass(frozen=True, eq=False)
class Explained:
    """Attributions, method by method, and the methods that could not, with the reason; ``untested``:
    why trust is missing, by the attribution's id."""

    attributions: tuple[Attribution, ...]
    refused: tuple[tuple[str, Refusal], ...] = ()
    untested: Mapping[str, Refusal] = field(default_factory=dict)


def count_targets(target: Any, served: Served) -> int:
    """How many targets an asked one stands for; a vocabulary is refused where it is read."""
    head = served.explainer.live.head
    return len(head.labels) or 1 if target == "all" and not head.writes else 1


def key_of(specs: Sequence[Spec], seed: int) -> str:
    """Equal for equal methods, options and seed."""
    return json.dumps([specs, seed], sort_keys=True, default=str)


def explain_batch(
    served: Served, wanted: Sequence[Wanted], passes: int
) -> list[Explained | Exception]:
    """An answer or an error for each; nobody's mistake touches another's answer."""
    answers: list[Explained | Exception] = [Refusal(500, "internal", "unanswered")] * len(wanted)
    groups: dict[str, list[tuple[int, TokenRow]]] = {}
    for number, one in enumerate(wanted):
        try:
            row = read_row(served, one.inputs, one.long)
            check_cost(one, served, [len(row)], passes)
        except (TokenlightError, Refusal) as refused:
            answers[number] = refused
        else:
            groups.setdefault(one.key, []).append((number, row))
    for members in groups.values():
        asked = [wanted[number] for number, _ in members]
        found = _together(served, asked, [row for _, row in members])
        for (number, _), answer in zip(members, found, strict=True):
            answers[number] = answer
    return answers


def explain_alone(served: Served, one: Wanted, passes: int) -> Explained:
    """The same for one request alone, method by method, in small passes."""
    row = read_row(served, one.inputs, "truncate" if one.long == "stride" else one.long)
    stride = one.long == "stride" and is_long(served.explainer, one.inputs)
    check_cost(one, served, _windows(served, one.inputs) if stride else [len(row)], passes)
    return _each_method(served, one, one.inputs if one.long == "stride" else row, SMALL)


def read_row(served: Served, inputs: Any, long: Long) -> TokenRow:
    """The text as the model reads it."""
    how = How((), "none", "tokenizer", long, 0, 1, False)
    return read(served.explainer, inputs, how)


def read_text(served: Served, asked: TextAsked) -> TokenRow:
    """The text of a request; one that is too long is refused."""
    return read_row(served, asked.inputs, "error")


def _windows(served: Served, inputs: Any) -> list[int]:
    """How many tokens stand in each window of a long text that is explained; of a question all
    windows are read, and one is explained."""
    limit = served.explainer.max_tokens
    assert limit is not None
    overlap = int(limit * OVERLAP)
    cut = encode_windows(inputs, served.explainer.tokenizer, limit=limit, overlap=overlap)
    return [len(row) for row, _ in cut][: 1 if served.task == "span" else None]


def check_cost(one: Wanted, served: Served, windows: Sequence[int], most: int) -> None:
    """Refuse what would take this machine minutes; ``windows``: how many tokens each one has."""
    targets = one.targets(served)
    cost = sum(token_passes(one.methods, tokens, targets) for tokens in windows)
    quick = 3 * max(windows) * len(one.methods)  # one pass of whatever the model reads is served
    if cost > most and cost > quick:
        raise Refusal(
            422,
            "too_costly",
            f"this costs as much as sending {cost:,} tokens through the model, and at most "
            f"{most:,} are served.",
            "Give a shorter text, fewer samples or targets, or a method that needs one pass.",
        )


def _together(
    served: Served, asked: Sequence[Wanted], rows: Sequence[TokenRow]
) -> list[Explained | Exception]:
    first = asked[0]
    try:
        found = _explained(served, first, rows, first.methods, [one.target for one in asked])
    except TokenlightError as refused:
        if len(asked) == 1:
            return [_otherwise(served, first, rows[0], refused)]
        found = []
    if len(asked) == 1:
        return [Explained(tuple(found))]
    sizes = [len(one.methods) * one.targets(served) for one in asked]
    if len(found) != sum(sizes):  # not the order that was thought: nobody gets another's answer
        return [_together(served, [one], [row])[0] for one, row in zip(asked, rows, strict=True)]
    ends = list(accumulate(sizes, initial=0))
    return [Explained(tuple(found[start:end])) for start, end in pairwise(ends)]


def _otherwise(
    served: Served, one: Wanted, row: TokenRow, why: TokenlightError
) -> Explained | Exception:
    """What can be said where the methods together are refused: what each of them says alone."""
    if len(one.methods) == 1:
        return refusal(why)
    try:
        return _each_method(served, one, row)
    except Refusal as none_can:
        return none_can


def _each_method(
    served: Served, one: Wanted, given: Any, batch_tokens: int | None = None
) -> Explained:
    """What some methods refuse, others may explain."""
    found: list[Attribution] = []
    refused: list[tuple[str, Refusal]] = []
    for method, name in zip(one.methods, one.named, strict=True):
        try:
            found += _explained(served, one, [given], [method], [one.target], batch_tokens)
        except TokenlightError as why:
            refused.append((name, refusal(why)))
    if not found:
        raise refused[0][1]
    return Explained(tuple(found), tuple(refused))


def _explained(
    served: Served,
    one: Wanted,
    given: Sequence[Any],
    methods: Sequence[Method],
    targets: Sequence[Any],
    batch_tokens: int | None = None,
) -> list[Attribution]:
    found: list[Attribution] = served.explainer.explain(
        list(given),
        method=list(methods),
        target=list(targets),
        long=one.long,
        seed=one.seed,
        batch_tokens=batch_tokens,
        progress=False,
    )
    return found
