"""Explaining what several people asked of one model, in as few passes as there are kinds of asking."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Continuation
from tokenlight.data.tokens import Long, TokenRow
from tokenlight.errors import TokenlightError
from tokenlight.explaining.jobs import read
from tokenlight.explaining.options import How
from tokenlight.explaining.windows import OVERLAP, is_long
from tokenlight.inputs.context import Context
from tokenlight.inputs.encode import encode_windows
from tokenlight.methods._method import Method
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import Served
from tokenlight.web.options import slow, spec, token_passes
from tokenlight.web.refusals import Refusal, refusal
from tokenlight.web.requests import ExplainAsked, answer_of

_WRITTEN = ServerLimits().written
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
    def of(cls, asked: ExplainAsked, served: Served) -> "Wanted":
        """Check methods and options before anything waits; one that is asked for twice counts once."""
        named = served.methods(asked.method, asked.inputs)
        specs = [spec("methods", one, served.heads) for one in named]
        model = served.explainer.live.model
        methods = tuple(Method.asked(*one, seed=asked.seed, model=model) for one in specs)
        return cls(
            inputs=asked.inputs,
            methods=methods,
            named=named,
            target=answer_of(asked, _WRITTEN),
            long=asked.long,
            seed=asked.seed,
            key=json.dumps([specs, asked.seed], sort_keys=True, default=str),
        )

    @property
    def lengthy(self) -> bool:
        """Whether each pass of it would keep others waiting."""
        return self.long == "stride" or any(slow(method) for method in self.methods)

    def read_as(self, row: TokenRow) -> Any:
        """What explain() is given: the row, where nothing is to be written behind it."""
        return self.inputs if self.long == "stride" or isinstance(self.inputs, Context) else row

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


def explain_batch(
    served: Served, wanted: Sequence[Wanted], passes: int
) -> list[Explained | Exception]:
    """An answer or an error for each; nobody's mistake touches another's answer."""
    answers: dict[int, Explained | Exception] = {}
    groups: dict[str, dict[int, Any]] = {}
    for number, one in enumerate(wanted):
        try:
            row = read_row(served, one.inputs, one.long)
            check_cost(one, served, [len(row)], passes)
        except (TokenlightError, Refusal) as refused:
            answers[number] = refused
        else:
            groups.setdefault(one.key, {})[number] = one.read_as(row)
    for rows in groups.values():
        found = _together(served, [wanted[number] for number in rows], list(rows.values()))
        answers |= zip(rows, found, strict=True)
    return [answers[number] for number in range(len(wanted))]


def explain_alone(served: Served, one: Wanted, passes: int) -> Explained:
    """The same for one request alone, method by method, in small passes."""
    row = read_row(served, one.inputs, "truncate" if one.long == "stride" else one.long)
    stride = one.long == "stride" and is_long(served.explainer, one.inputs)
    check_cost(one, served, _windows(served, one.inputs) if stride else [len(row)], passes)
    return _each_method(served, one, one.read_as(row), SMALL)


def read_row(served: Served, inputs: Any, long: Long) -> TokenRow:
    """The text as the model reads it."""
    how = How((), "none", "tokenizer", long, 0, 1, False)
    return read(served.explainer, inputs, how)


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
    if isinstance(one.target, Continuation) and one.target.text is None:
        cost += one.target.tokens * len(one.methods) * sum(windows)  # each writes its answer first
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
    served: Served, asked: Sequence[Wanted], rows: Sequence[Any]
) -> list[Explained | Exception]:
    """One pass for all; where it is refused, each by itself."""
    first, targets = asked[0], [one.target for one in asked]
    with suppress(TokenlightError):
        found = _explained(served, first, rows, first.methods, targets)
        sizes = [len(one.methods) * one.targets(served) for one in asked]
        if len(found) == sum(sizes):  # else not the order that was thought
            parts = iter(found)
            return [Explained(tuple(islice(parts, size))) for size in sizes]
    answers: list[Explained | Exception] = []
    for one, row in zip(asked, rows, strict=True):
        try:
            answers.append(_each_method(served, one, row))
        except Refusal as none_can:
            answers.append(none_can)
    return answers


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
