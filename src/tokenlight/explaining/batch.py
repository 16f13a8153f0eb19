"""One batch through the model: recorded once, seen from each target, made into Attributions.

Everything that does not wait for the scores is done while the device computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight.capture.packing import in_halves
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Recording, Sites, Tape
from tokenlight.capture.transfer import Fetched
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, NotFinite
from tokenlight.explaining.options import How
from tokenlight.explaining.session import Session
from tokenlight.methods._method import Method
from tokenlight.version import VERSION

SUNK = "each row of attention sums to less than one: this model leaves some to a sink, no token"


def explain_rows(
    session: Session, rows: Sequence[TokenRow], targets: Sequence[TargetLike], how: How
) -> list[list[Attribution]]:
    """One batch through the model; where memory does not suffice, in halves."""
    return in_halves(lambda part: explain_batch(session, rows[part], targets[part], how), len(rows))


def explain_batch(
    session: Session, rows: Sequence[TokenRow], targets: Sequence[TargetLike], how: How
) -> list[list[Attribution]]:
    """The Attributions of each row, method by method, each by its targets in order."""
    sites: Sites = frozenset().union(*(method.sites for method in how.methods))
    masked = [session.masked(row, how) for row in rows]
    recording = record(session.live, masked, sites, budget=how.batch_tokens)
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
    seen: list[dict[str, Any]] = []
    found: list[dict[tuple[int, int], Attribution]] = [{} for _ in rows]
    rounds = max(len(options) for options in resolved)
    for turn in range(rounds):
        # Examples with fewer targets than others ride along with their last one.
        chosen = [options[min(turn, len(options) - 1)] for options in resolved]
        tape = recording.tape(chosen, last=turn == rounds - 1)
        # All is queued before scores are waited for; some methods ask the device a question first.
        queued = _queued(how.methods, tape)
        seen = seen or _seen(session, recording, plain)
        drafts = [_drafts(session, method, tape, seen, how) for method in how.methods]
        extras = [method.extras(tape) or [{} for _ in rows] for method in how.methods]
        del tape
        if turn == rounds - 1:
            del recording, plain  # taking the graph apart is work too
        for number, one in enumerate(queued):
            sums, layers = one.arrived(rows)
            for i, draft in enumerate(drafts[number]):
                if turn < len(resolved[i]):
                    terms = None if layers is None else layers[i, :, : len(rows[i])]
                    scores = sums[i, : len(rows[i])]
                    found[i][number, turn] = draft.scored(scores, terms, extras[number][i])
    return [[entry[key] for key in sorted(entry)] for entry in found]


def _seen(session: Session, recording: Recording, plain: Recording) -> list[dict[str, Any]]:
    """What the forward pass tells of each row, whatever is asked of it; ``plain`` predicts."""
    head = session.live.head
    both = zip(recording.rows, recording.shortened(), plain.shortened(), strict=True)
    return [
        {
            "row": row,
            "prediction": head.predict(said, row),
            "logits": values.T.ravel() if values.ndim == 2 else values,
            "notes": (*session.row_notes(row), *((SUNK,) if recording.sunk else ())),
        }
        for row, values, said in both
    ]


def _drafts(
    session: Session, method: Method, tape: Tape, seen: list[dict[str, Any]], how: How
) -> list[Attribution]:
    """The Attributions of a batch by one method, their scores still zero."""
    why = how.why[1] if how.why is not None and how.why[0] == method.name else None
    notes = tuple(note for note in (why, method.note(tape)) if note)
    shared: dict[str, Any] = {"method": method.name, "model": session.name, "seed": how.seed}
    options = method.options
    return [
        Attribution(
            **shared,
            options=dict(options),  # each its own: a user may write into them
            versions=dict(versions()),
            **each | {"notes": (*notes, *each["notes"])},
            scores=np.zeros(len(each["row"])),
            target=target,
        )
        for each, target in zip(seen, tape.targets, strict=True)
    ]


def _queued(methods: Sequence[Method], tape: Tape) -> list[_Queued]:
    try:
        return [_Queued(method, method.scores(tape), tape) for method in methods]
    except Exception:
        tape.recording.read  # noqa: B018 - where the model itself gave NaN, it says so and where
        raise


class _Queued:
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
