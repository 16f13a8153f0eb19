"""Explaining what several people asked of one model, in as few passes as there are kinds of asking."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from tokenlight.web.models import Served
from tokenlight.web.options import slow, spec, token_passes
from tokenlight.web.refusals import Refusal, caught
from tokenlight.web.requests import ExplainAsked

SMALL = 512  # tokens of a pass of lengthy work: others wait for one to end


@dataclass(frozen=True, eq=False)
class Wanted:
    """One checked request; ``key`` is equal for requests that can share a pass."""

    inputs: Any
    methods: tuple[Method, ...]
    named: tuple[str, ...]  # as they were asked for
    target: Any
    long: Long
    how: dict[str, Any]  # keywords of explain(), of which one is long
    key: str

    @classmethod
    def of(cls, asked: ExplainAsked, served: Served) -> "Wanted":
        """Check methods and options before anything waits; one that is asked for twice counts once."""
        named = served.methods(asked.method, asked.inputs)
        specs = [spec("methods", one, served.heads) for one in named]
        model = served.explainer.live.model
        methods = tuple(Method.asked(*one, seed=asked.seed, model=model) for one in specs)
        how = {"long": asked.long, "seed": asked.seed, "progress": False}
        key = json.dumps([specs, asked.seed], sort_keys=True, default=str)
        return cls(asked.inputs, methods, named, asked.wanted, asked.long, how, key)

    @property
    def lengthy(self) -> bool:
        """Whether each pass of it would keep others waiting."""
        return self.long == "stride" or any(slow(method) for method in self.methods)

    def read_as(self, row: TokenRow) -> Any:
        """What explain() is given: the row, where nothing is to be written behind it."""
        return self.inputs if self.long == "stride" or isinstance(self.inputs, Context) else row


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
            row = read_row(served, one.inputs, one.long)
            check_cost(one, served, [len(row)], passes)
        except (TokenlightError, Refusal) as refused:
            answers[number] = refused
        else:
            groups.setdefault(one.key, {})[number] = one.read_as(row)
    for rows in groups.values():
        with suppress(TokenlightError):  # then each by itself
            answers |= _together(served, {number: wanted[number] for number in rows}, rows)
        for number, row in rows.items():
            if number not in answers:
                try:
                    answers[number] = _each_method(served, wanted[number], row)
                except Refusal as none_can:
                    answers[number] = none_can
    return [answers[number] for number in range(len(wanted))]


def explain_alone(served: Served, one: Wanted, passes: int) -> Explained:
    """The same for one request alone, method by method, in small passes."""
    explainer, stride = served.explainer, one.long == "stride"
    row = read_row(served, one.inputs, "truncate" if stride else one.long)
    tokens = [len(row)]
    if stride and is_long(explainer, one.inputs):
        limit = explainer.max_tokens
        assert limit is not None
        overlap = int(limit * OVERLAP)
        cut = encode_windows(one.inputs, explainer.tokenizer, limit=limit, overlap=overlap)
        # Of a question all windows are read, and one is explained.
        tokens = [len(row) for row, _ in cut][: 1 if served.task == "span" else None]
    check_cost(one, served, tokens, passes)
    return _each_method(served, one, one.read_as(row), batch_tokens=SMALL)


def read_row(served: Served, inputs: Any, long: Long) -> TokenRow:
    """The text as the model reads it."""
    how = How((), "none", "tokenizer", long, 0, 1, False)
    return read(served.explainer, inputs, how)


def check_cost(one: Wanted, served: Served, windows: Sequence[int], most: int) -> None:
    """Refuse what would take this machine minutes; ``windows``: how many tokens each one has."""
    targets = count_targets(one.target, served)
    cost = sum(token_passes(one.methods, tokens, targets) for tokens in windows)
    if isinstance(one.target, Continuation) and one.target.text is None:
        cost += one.target.tokens * len(one.methods) * sum(windows)  # each writes its answer first
    quick = 3 * max(windows) * len(one.methods)  # one pass of whatever the model reads is served
    if cost > most and cost > quick:
        raise Refusal(
            "too_costly",
            f"this costs as much as sending {cost:,} tokens through the model, and at most "
            f"{most:,} are served.",
            "Give a shorter text, fewer samples or targets, or a method that needs one pass.",
        )


def _together(
    served: Served, asked: Mapping[int, Wanted], rows: Mapping[int, Any]
) -> dict[int, Explained]:
    """One pass for all; nothing where what comes back is not in the order that was thought."""
    first, targets = next(iter(asked.values())), [one.target for one in asked.values()]
    found = served.explainer.explain([*rows.values()], [*first.methods], targets, **first.how)
    sizes = [len(first.methods) * count_targets(target, served) for target in targets]
    if len(found) != sum(sizes):
        return {}
    parts = iter(found)
    return {n: Explained(tuple(islice(parts, size))) for n, size in zip(asked, sizes, strict=True)}


def _each_method(served: Served, one: Wanted, given: Any, **how: Any) -> Explained:
    """What some methods refuse, others may explain; ``how``: more keywords of explain()."""
    found: list[Attribution] = []
    refused: list[tuple[str, Refusal]] = []
    for method, name in zip(one.methods, one.named, strict=True):
        try:
            found += served.explainer.explain([given], [method], [one.target], **one.how, **how)
        except TokenlightError as why:
            refused.append((name, caught(why)))
    if not found:
        raise refused[0][1]
    return Explained(tuple(found), tuple(refused))
