"""One batch through the model: recorded once, seen from each target, made into Attributions.

Everything that does not wait for the scores is done while the device computes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight.capture.graph import NOTE, blocks_of
from tokenlight.capture.packing import in_halves
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Sites, Tape
from tokenlight.capture.transfer import Fetched
from tokenlight.capture.turns import pause
from tokenlight.data.attribution import Attribution, frozen
from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, NotFinite
from tokenlight.explaining.options import How, Job
from tokenlight.explaining.session import Session
from tokenlight.methods._method import Method
from tokenlight.progress import progress
from tokenlight.version import VERSION

BEHIND_SIGHT = "patches as the language model is given them; its vision tower is not followed"
SUNK = "each row of attention sums to less than one: this model leaves some to a sink, no token"


def explain_rows(
    session: Session, rows: Sequence[TokenRow], targets: Sequence[TargetLike], how: How
) -> list[list[Attribution]]:
    """One batch through the model; where memory does not suffice, in halves, and of a single text that
    is still too long each block is computed again on the way back."""

    def run(part: slice) -> list[list[Attribution]]:
        try:
            return explain_batch(session, rows[part], targets[part], how)
        except torch.OutOfMemoryError:
            if part.stop - part.start > 1 or not blocks_of(session.live.model):
                raise
        torch.cuda.empty_cache()  # behind the except: the error holds what was computed so far
        return explain_batch(session, rows[part], targets[part], how, recompute=True)

    return in_halves(run, len(rows))


def explain_packed(session: Session, jobs: Sequence[Job], how: How) -> list[list[Attribution]]:
    """The Attributions of each row, pack by pack."""
    done: list[list[Attribution]] = [[] for _ in jobs]
    with progress("explaining", len(jobs), how.progress) as advance:
        for pack in session.packs([row for row, _ in jobs], how):
            rows, targets = zip(*(jobs[i] for i in pack), strict=True)
            for i, found in zip(pack, explain_rows(session, rows, targets, how), strict=True):
                done[i] = found
            advance(len(pack))
            pause()
    return done


def explain_batch(
    session: Session,
    rows: Sequence[TokenRow],
    targets: Sequence[TargetLike],
    how: How,
    *,
    recompute: bool = False,
) -> list[list[Attribution]]:
    """The Attributions of each row, method by method, each by its targets in order."""
    sites: Sites = frozenset().union(*(method.sites for method in how.methods))
    masked = [session.masked(row, how) for row in rows]
    recording = record(session.live, masked, sites, budget=how.batch_tokens, recompute=recompute)
    # With [CLS] hidden a model says something else: the prediction is that of the text as it is.
    plain = recording if how.explain_mask == "none" else record(session.live, rows, frozenset())
    head = session.live.head
    # Where no target waits for the logits, the backward is under way before they are read.
    waits = any(head.depends_on_logits(target) for target in targets)
    logits = plain.shortened() if waits else [np.empty(0)] * len(rows)
    resolved = [
        head.resolve(target, values, row)
        for target, values, row in zip(targets, logits, rows, strict=True)
    ]
    found: list[dict[tuple[int, int], Attribution]] = [{} for _ in rows]
    rounds = max(len(options) for options in resolved)
    for turn in range(rounds):
        # Examples with fewer targets than others ride along with their last one.
        chosen = [options[min(turn, len(options) - 1)] for options in resolved]
        tape = recording.tape(chosen, last=turn == rounds - 1)
        # All is queued before scores are waited for; some methods ask the device a question first.
        queued = queued_by(how.methods, tape)
        seen = Seen(session, masked, recording.shortened(), plain.shortened(), recording.sunk)
        notes = [method.note(tape) for method in how.methods]
        extras = [method.extras(tape) for method in how.methods]
        checks = tape.checks
        del tape
        if turn == rounds - 1:
            del recording, plain  # taking the graph apart is work too
        for check in checks:
            check()
        for number, one in enumerate(queued):
            shared = shared_by(session, how, number, [notes[number], NOTE if recompute else None])
            columns = BatchColumns(seen, shared, chosen, *one.arrived(rows), extras[number])
            for i, options in enumerate(resolved):
                if turn < len(options):
                    found[i][number, turn] = Attribution.later(partial(columns.fields, i))
    return [[entry[key] for key in sorted(entry)] for entry in found]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the forward pass tells of each row, whatever is asked of it; ``said``: the logits of the
    text as it is, which predict."""

    session: Session
    rows: Sequence[TokenRow]
    logits: list[np.ndarray]
    said: list[np.ndarray]
    sunk: bool

    def fields(self, i: int) -> dict[str, Any]:
        row, values = self.rows[i], self.logits[i]
        return {
            "row": row,
            "prediction": self.session.live.head.predict(self.said[i], row),
            "logits": frozen(values.T.ravel() if values.ndim == 2 else values),
            "notes": (*self.session.row_notes(row), *((SUNK,) if self.sunk else ())),
        }


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The results of a batch by one method for one target an example, as they came from the device:
    ``sums`` ``batch token``, ``layers`` ``batch layer token``."""

    seen: Seen
    shared: dict[str, Any]
    targets: Sequence[ResolvedTarget]
    sums: np.ndarray
    layers: np.ndarray | None
    extras: Sequence[dict[str, Any]] | None

    def fields(self, i: int) -> dict[str, Any]:
        """All that the Attribution of one example holds."""
        own, tokens = self.seen.fields(i), len(self.seen.rows[i])
        shared = self.shared
        return {
            **shared,
            **own,
            "options": dict(shared["options"]),  # each its own: a user may write into them
            "versions": dict(versions()),
            "notes": (*shared["notes"], *own["notes"]),
            "target": self.targets[i],
            "scores": frozen(self.sums[i, :tokens]),
            "layers": None if self.layers is None else frozen(self.layers[i, :, :tokens]),
            "steps": (),
            "extras": self.extras[i] if self.extras else {},
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


def queued_by(methods: Sequence[Method], tape: Tape) -> list["Queued"]:
    """The scores of each method, on their way."""
    try:
        return [Queued(method, method.scores(tape), tape) for method in methods]
    except Exception:
        tape.recording.read  # noqa: B018 - where the model itself gave NaN, it says so and where
        raise


class Queued:
    """A method's scores, ``batch token``, and the terms they are the sum of, ``batch layer token``,
    where it has them: on their way from the device."""

    def __init__(self, method: Method, raw: torch.Tensor, tape: Tape) -> None:
        batch, tokens = tape.recording.real.shape
        if raw.ndim not in (2, 3) or (raw.shape[0], raw.shape[-1]) != (batch, tokens):
            raise BadInput(
                f"{method.name} gives scores of shape {tuple(raw.shape)} for {batch} texts of up to "
                f"{tokens} tokens; a method gives batch × token, or batch × layer × token."
            )
        self.name, self.dtype = method.name, tape.recording.logits.dtype
        self.values = Fetched(raw)

    def arrived(self, rows: Sequence[TokenRow]) -> tuple[np.ndarray, np.ndarray | None]:
        """The numbers; refused where one of a text's is not finite."""
        values = self.values.arrived()
        with np.errstate(over="ignore", invalid="ignore"):  # told below, in words
            sums, layers = (values.sum(axis=1), values) if values.ndim == 3 else (values, None)
        if np.isfinite(sums).all():  # no sum with NaN or infinity in it is finite
            return sums, layers
        for i, row in enumerate(rows):  # padding may be anything
            wrong = np.flatnonzero(~np.isfinite(sums[i, : len(row)]))
            if len(wrong):
                place = f"token {wrong[0]}"
                if layers is not None:
                    finite = np.isfinite(layers[i, :, wrong[0]])
                    place = place if finite.all() else f"layer {finite.argmin()}, {place}"
                raise NotFinite(
                    f"{self.name} gives NaN or infinity at {place} of a text of {len(row)} tokens; "
                    f"gradients or activations left the range of {self.dtype}, in which the model "
                    f"computes: load it in {_wider(self.dtype)}."
                )
        return sums, layers


def method_by_method(groups: list[list[Attribution]], methods: int) -> list[Attribution]:
    """The explanations of several rows of one text, each method's together."""
    return [
        attribution
        for number in range(methods)
        for group in groups
        for attribution in group[
            number * len(group) // methods : (number + 1) * len(group) // methods
        ]
    ]


def _wider(dtype: torch.dtype) -> str:
    narrow = dtype in (torch.float16, torch.bfloat16)
    return "float32 or bfloat16" if narrow else "float64, and look for huge weights"


@cache
def versions() -> dict[str, str]:
    """What computed this."""
    return {
        "tokenlight": VERSION,
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }
