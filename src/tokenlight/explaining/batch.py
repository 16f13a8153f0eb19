"""One batch through the model: recorded once, seen from each target, made into Attributions.

In two steps: all that the device shall do is queued, then its answers are collected. Between the two
the next batch is queued.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from tokenlight.capture.live import Inputs, LiveModel
from tokenlight.capture.objective import Predicted, shortened
from tokenlight.capture.recording import record
from tokenlight.capture.replay import Unread
from tokenlight.capture.rewired import NOTE, blocks_of
from tokenlight.capture.tape import Recording, Site, Sites, Tape
from tokenlight.capture.transfer import Answer, Fetched, repeating
from tokenlight.capture.turns import pause
from tokenlight.data.attribution import Attribution, frozen
from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import NotFinite
from tokenlight.explaining.memory import check_memory, maps_are_large
from tokenlight.explaining.options import How, Job
from tokenlight.explaining.repeat import repeat_of
from tokenlight.explaining.scores import Queued, queued_by
from tokenlight.explaining.session import Session
from tokenlight.progress import progress
from tokenlight.version import VERSION

BEHIND_SIGHT = "patches as the language model is given them; its vision tower is not followed"
MANY = 100  # values
SUNK = "each row of attention sums to less than one: this model leaves some to a sink, no token"


@contextmanager
def making(count: int) -> Iterator[None]:
    """Within, so many values are made and kept, for each of which Python would sooner or later look through
    all that it holds, for cycles: it looks at what is new alone, where :func:`tidied` says so."""
    paused = count >= MANY and gc.isenabled()
    if paused:
        gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def tidied() -> None:
    """What was dropped of late goes, cycles and all."""
    if not gc.isenabled():
        gc.collect(1)


def explain_packed(session: Session, jobs: Sequence[Job], how: How) -> list[list[Attribution]]:
    """The Attributions of each row, pack by pack."""
    done: list[list[Attribution]] = [[] for _ in jobs]
    rows = [row for row, _ in jobs]
    check_memory(session.live, rows, how)
    packs = session.packs(rows, how)
    with progress("explaining", len(jobs), how.progress) as advance:
        for pack, found in explain_packs(session, jobs, packs, how):
            for i, group in zip(pack, found, strict=True):
                done[i] = group
            advance(len(pack))
            pause()
    return done


def explain_packs(
    session: Session, jobs: Sequence[Job], packs: Sequence[Sequence[int]], how: How
) -> Iterator[tuple[Sequence[int], list[list[Attribution]]]]:
    """Each pack, places of rows that go through the model together, with the Attributions of each row.

    A pack is queued before the one ahead of it is waited for, so that the device never waits for
    Python; its graph is gone by then. A pack that memory does not hold goes in halves, and of a single
    text that is still too long each block is computed again on the way back.
    """
    waiting, ahead = [*reversed(packs)], None

    def queued(pack: Sequence[int], *, recompute: bool = False) -> tuple[Sequence[int], Batch]:
        rows, targets = zip(*[jobs[i] for i in pack], strict=True)
        alone = len(packs) == 1
        return pack, queue_batch(session, rows, targets, how, recompute=recompute, alone=alone)

    while waiting or ahead:
        pack, behind, fits = waiting.pop() if waiting else (), None, True
        try:
            behind = queued(pack) if pack else None
        except torch.OutOfMemoryError:
            if len(pack) == 1 and not blocks_of(session.live.model):
                raise
            fits = False
        if ahead:
            yield ahead[0], ahead[1].results()
        if not fits:
            session.live.replays.forget()
            torch.cuda.empty_cache()  # behind the except: the error holds what was computed so far
            half = len(pack) // 2
            if half:
                waiting += [pack[half:], pack[:half]]
            else:
                behind = queued(pack, recompute=True)
        ahead = behind


def queue_batch(
    session: Session,
    rows: Sequence[TokenRow],
    targets: Sequence[TargetLike],
    how: How,
    *,
    recompute: bool = False,
    alone: bool = True,
) -> "Batch":
    """All that the device shall do for a batch, ``alone`` or one of several; it is waited for where a
    target, or a method, must know what the model says before it can go on."""
    masked = rows if how.explain_mask == "none" else [session.masked(row, how) for row in rows]
    live, read = session.live, (rows, masked)
    repeat = None if recompute else repeat_of(live, masked, targets, how, alone=alone)
    recorded = repeat is not None and live.replays.holds(repeat.key)  # and the memory it takes
    if recompute or (not recorded and maps_are_large(live, masked, how)):
        batch = _queued(session, read, targets, how, recompute=True)
        return replace(batch, notes=[NOTE] if recompute else [])
    if repeat is None:
        return _queued(session, read, targets, how)

    def work(given: Sequence[Tensor]) -> Batch:
        asking = replace(how, methods=tuple(m for m in how.methods if m.sites))
        return _queued(session, read, targets, asking, given=repeat.inputs(given))

    batch = live.replays.run(repeat, work)
    return batch.of(masked, repeat.targets, how, repeat.given[-1])


def _queued(
    session: Session,
    read: tuple[Sequence[TokenRow], Sequence[TokenRow]],
    targets: Sequence[TargetLike],
    how: How,
    *,
    given: Inputs | None = None,
    recompute: bool = False,
) -> "Batch":
    """``read``: the rows as they are, and as they are explained."""
    (rows, masked), live = read, session.live
    sites: Sites = frozenset().union(*(method.sites for method in how.methods))
    budget = how.batch_tokens
    recording = record(live, masked, sites, budget=budget, recompute=recompute, given=given)
    if repeating():
        recording = replace(recording, rows=Unread(masked))
    # With [CLS] hidden a model says something else: the prediction is that of the text as it is.
    plain = recording if how.explain_mask == "none" else record(live, rows, frozenset())
    turns, counts = _turns(session, rows, targets, plain)
    queued = []
    for number, chosen in enumerate(turns):
        tape = recording.tape(chosen, last=number == len(turns) - 1)
        queued.append((tape.targets, queued_by(how.methods, tape), tape.checks))
    passes = Pass(masked, recording.fetched, recording.sunk), Pass(rows, plain.fetched)
    return Batch(session, how, *passes, counts, queued, [])


def _turns(
    session: Session, rows: Sequence[TokenRow], targets: Sequence[TargetLike], said: Recording
) -> tuple[list[Sequence[ResolvedTarget]], list[int]]:
    """Targets that are explained one after the other, one an example each time; and how many of them
    each example has: those with fewer than others ride along with their last one."""
    head = session.live.head
    if Predicted.choose(head, targets) and said.logits.dim() == 2:
        return [Predicted.of(head, said.logits, said.fetched)], [1] * len(rows)
    # Where no target waits for the logits, the backward is under way before they are read.
    waits = any(head.depends_on_logits(target) for target in targets)
    logits = shortened(head, said.read, said.rows) if waits else [np.empty(0)] * len(rows)
    resolved = [
        head.resolve(target, values, row)
        for target, values, row in zip(targets, logits, rows, strict=True)
    ]
    counts = [len(options) for options in resolved]
    turns = range(max(counts))
    return [[own[min(turn, len(own) - 1)] for own in resolved] for turn in turns], counts


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass says of each row, on its way from the device; no graph is held."""

    rows: Sequence[TokenRow]
    logits: Fetched
    sunk: bool = False

    def read(self, live: LiveModel, sites: Sites) -> list[np.ndarray]:
        """The logits of each row; here the device is waited for."""
        values = self.logits.arrived()
        if not np.isfinite(values).all():
            record(live, self.rows, sites).read  # noqa: B018 - which says where it went wrong
            raise NotFinite("the model gives NaN or infinity for a text of the batch.")
        return shortened(live.head, values, self.rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that the device works at. ``own``: the pass that is explained; ``plain``: that of the texts
    as they are, which predicts; ``queued``: turn by turn targets, scores by method, and what is to be
    asked before they are believed; ``counts``: how many turns each row has."""

    session: Session
    how: How
    own: Pass
    plain: Pass
    counts: list[int]
    queued: list[tuple[Sequence[ResolvedTarget], list[Queued], list[Answer]]]
    notes: list[str]

    def numbers(self) -> list[np.ndarray]:
        """All that the device computed; here it is waited for."""
        fetched = [one.values for _, scores, _ in self.queued for one in scores]
        return [one.arrived() for one in (self.own.logits, *fetched)]

    def again(self) -> "Batch":
        """With the numbers that a replay leaves."""
        said = self.own.logits.again()
        queued = [
            (
                targets.again(said) if isinstance(targets, Predicted) else targets,
                [one.again() for one in scores],
                [check.again() for check in checks],
            )
            for targets, scores, checks in self.queued
        ]
        own, plain = (replace(one, logits=said) for one in (self.own, self.plain))
        return replace(self, own=own, plain=plain, queued=queued)

    def of(
        self, rows: Sequence[TokenRow], targets: Sequence[ResolvedTarget], how: How, real: Tensor
    ) -> "Batch":
        """As the batch of ``rows``: with their targets, and with the scores of methods that ask nothing
        of the model."""
        own, plain = (replace(one, rows=rows) for one in (self.own, self.plain))
        ((chosen, scores, checks),) = self.queued
        chosen = targets or chosen
        if len(scores) < len(how.methods):
            live, asked = self.session.live, iter(scores)
            seen = tuple(rows), real, real.new_empty(0, dtype=live.dtype), own.logits
            tape = Tape(Recording(*seen, (), (), (), frozenset(), live, 0), chosen)
            scores = [
                next(asked) if method.sites else Queued(method, method.scores(tape), tape)
                for method in how.methods
            ]
        return replace(self, how=how, own=own, plain=plain, queued=[(chosen, scores, checks)])

    def results(self) -> list[list[Attribution]]:
        """The Attributions of each row, method by method, each by its targets in order: made while the device
        works, and handed out when their numbers are there."""
        session, rows = self.session, self.own.rows
        seen, shared = (session, rows, self.own.sunk), partial(shared_by, session, self.how)
        columns = {
            (number, turn): BatchColumns(*seen, targets, shared(number, [one.note, *self.notes]))
            for turn, (targets, scores, _) in enumerate(self.queued)
            for number, one in enumerate(scores)
        }
        in_order = [(turn, columns[number, turn]) for number, turn in sorted(columns)]
        found = [
            [Attribution.later(partial(own.fields, i)) for turn, own in in_order if turn < count]
            for i, count in enumerate(self.counts)
        ]
        tidied()
        sites = frozenset[Site]().union(*(method.sites for method in self.how.methods))
        logits = self.own.read(session.live, sites)
        alike = self.plain.logits is self.own.logits
        said = logits if alike else self.plain.read(session.live, frozenset())
        for turn, (targets, scores, checks) in enumerate(self.queued):
            for check in checks:
                check(targets)
            for number, one in enumerate(scores):
                extras = one.extras() if isinstance(one.extras, Answer) else one.extras
                columns[number, turn].numbers.extend((logits, said, *one.arrived(rows), extras))
        return found


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The results of a batch by one method for one target an example. ``numbers`` come last: the logits;
    those of the text as it is, which predict; sums, ``batch token``; layers, ``batch layer token``; and
    extras."""

    session: Session
    rows: Sequence[TokenRow]
    sunk: bool
    targets: Sequence[ResolvedTarget]
    shared: dict[str, Any]
    numbers: list[Any] = field(default_factory=list)

    def fields(self, i: int) -> dict[str, Any]:
        row, shared, sunk = self.rows[i], self.shared, (SUNK,) if self.sunk else ()
        logits, said, sums, layers, extras = self.numbers
        values = logits[i]
        return {
            **shared,
            "row": row,
            "prediction": self.session.live.head.predict(said[i], row),
            "logits": frozen(values.T.ravel() if values.ndim == 2 else values),
            "options": dict(shared["options"]),  # each its own: a user may write into them
            "versions": dict(versions()),
            "notes": (*shared["notes"], *self.session.row_notes(row), *sunk),
            "target": self.targets[i],
            "scores": frozen(sums[i, : len(row)]),
            "layers": None if layers is None else frozen(layers[i, :, : len(row)]),
            "steps": (),
            "extras": extras[i] if extras else {},
        }


def shared_by(
    session: Session, how: How, number: int, notes: Sequence[str | None]
) -> dict[str, Any]:
    """What all explanations of a batch by one method have in common."""
    method = how.methods[number]
    why = how.why[1] if how.why is not None and how.why[0] == method.name else None
    if session.live.sight is not None and method.needs:
        notes = [*notes, BEHIND_SIGHT]
    return {
        "method": method.name,
        "model": session.name,
        "seed": how.seed,
        "options": method.options,
        "notes": tuple(one for one in (why, *notes) if one),
    }


def method_by_method(groups: list[list[Attribution]], methods: int) -> list[Attribution]:
    """The explanations of several rows of one text, each method's together."""
    sized = [(group, len(group) // methods) for group in groups]
    return [
        attribution
        for number in range(methods)
        for group, size in sized
        for attribution in group[number * size : (number + 1) * size]
    ]


@cache
def versions() -> dict[str, str]:
    """What computed this."""
    return {
        "tokenlight": VERSION,
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }
