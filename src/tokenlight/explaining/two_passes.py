"""Two passes in one Attribution: what makes two texts alike, and why this rather than that.

Likeness: ``cos(e(A), e(B)) = ê(A) · ê(B)`` of sentence embeddings (or their dot product). The tokens of A
are scored with ê(B) held fixed, those of B with ê(A) held fixed: for a gradient this is exactly the gradient
of the cosine, since it is the sum of the two. A stands as segment 0 and B as segment 1.

Difference of two passages for one query, or of two texts written after one prompt: ``y = y(A) − y(B)``. What
both passes read scores ``s(A) − s(B)``, what A alone reads ``s(A)``, what B alone reads ``−s(B)``. For a
gradient this is exactly the gradient of ``y``.
"""

import dataclasses
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from tokenlight.capture.rewired import rewired
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Above, Continuation, Contrast, Prediction, ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel, few, short, way
from tokenlight.explaining.batch import explain_packs
from tokenlight.explaining.jobs import check_target, name_of
from tokenlight.explaining.options import How, Job
from tokenlight.explaining.session import Session
from tokenlight.inputs.encode import encode

INSTEAD = "instead"  # the name of what might have been written


def _merged(a: Attribution, b: Attribution, border: int, sign: float, **own: Any) -> Attribution:
    """One Attribution over the tokens of both, of which those before ``border`` are the same."""

    def both(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        alone = one[..., border:], sign * other[..., border:]
        return np.concatenate([one[..., :border] + sign * other[..., :border], *alone], axis=-1)

    layers = None
    if a.layers is not None and b.layers is not None:
        layers = both(a.layers, b.layers)
    notes = tuple(dict.fromkeys((*a.notes, *b.notes)))
    scores = both(a.scores, b.scores)
    return dataclasses.replace(a, scores=scores, layers=layers, notes=notes, **own)


def explain_likeness(session: Session, text: Any, target: Any, how: How) -> list[Attribution]:
    """One Attribution a method, over the tokens of both texts."""
    head = session.live.head
    if not isinstance(text, tuple) or len(text) != 2:
        raise UnsupportedModel(
            f"{name_of(session)} has no head, so one input alone has no output to explain: "
            f"{head.does}, or load a model fine-tuned with a head."
        )
    check_target(session, target)
    tokenizer, limit = session.tokenizer, session.max_tokens
    read = [encode(part, tokenizer, limit=limit, long=how.long) for part in text]
    rows = [session.prepared(row, how) for row in read]
    vectors = _vectors(session, [session.masked(row, how) for row in rows])
    anchored = [
        dataclasses.replace(row, anchor=tuple(map(float, vector)))
        for row, vector in zip(rows, reversed(vectors), strict=True)
    ]
    session.verify(anchored[0], how)
    # Each alone: a text gives the same scores whatever it is compared beside.
    jobs: list[Job] = [(row, "predicted") for row in anchored]
    (first,), (second,) = (own for _, own in explain_packs(session, jobs, [[0], [1]], how))
    return [_both(a, b) for a, b in zip(first, second, strict=True)]


def _vectors(session: Session, rows: list[TokenRow]) -> list[np.ndarray]:
    """The sentence embedding of each row, of length one for a cosine."""
    live = session.live
    found = []
    for row in rows:
        nothing = dataclasses.replace(row, anchor=(0.0,))  # only the vector itself is read
        arguments, _, filler = live.inputs([nothing])
        with rewired(live.model, attention="own", gradients=False, filler=filler):
            vector = live.pooled(live.call(arguments), arguments)[0].cpu().double()
        length = float(torch.linalg.vector_norm(vector)) if live.similarity == "cosine" else 1.0
        if not length > 0:
            raise BadInput(f"the embedding of {row.texts[0][:40]!r} is zero; it is like nothing.")
        found.append((vector / length).numpy())
    return found


def _both(first: Attribution, second: Attribution) -> Attribution:
    """The two halves side by side."""
    shared = {k: v for k, v in first.extras.items() if k in second.extras and v == second.extras[k]}
    row = first.row.joined(
        second.row,  # for reading; no model ever read them so
        token_types=(0,) * len(first.row) + (1,) * len(second.row),
        cut=first.row.cut + second.row.cut,
        anchor=None,
        names=("first text", "second text"),
    )
    extras = {**shared, "likeness": {"border": len(first.row)}}
    return _merged(first, second, 0, 1.0, row=row, extras=extras)


def two_passes(
    session: Session, text: Any, target: Any
) -> tuple[tuple[Any, Any], tuple[Any, Any]] | None:
    """The two texts and the two targets whose difference is asked for; None where one pass answers."""
    if isinstance(target, Above):
        return _ranked(session, text, target)
    if not isinstance(target, Contrast):
        return None
    both = target.this, target.that
    writes = [isinstance(one, Continuation) for one in both]
    if not any(writes):
        return None
    if not all(writes):
        raise BadTarget(f"{target!r} is not of two continuations; give two, or two tokens.")
    this, that = (dataclasses.replace(one, together=True) for one in both)  # type: ignore[type-var]
    return (text, text), (this, that)


def _ranked(session: Session, text: Any, target: Above) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    head = session.live.head
    if not isinstance(text, tuple) or len(text) != 2 or head.reads not in ("text", "pair"):
        given = way(f"Above({target.than[:20]!r})", "--above")
        raise BadTarget(
            f"{given} compares two second texts of a pair, a query's passages for example; give "
            + way("(query, passage)", "QUERY and --pair PASSAGE")
            + f" to a model that scores pairs. This one: {head.does}."
        )
    label: Any = target.label
    if label == "predicted" and len(head.labels) > 1:
        raise BadTarget(
            f"this model has {len(head.labels)} outputs ({few(head.labels, 6)}); say which of them ranks: "
            + way("Above(…, label=…).", "--target LABEL.")
        )
    return (text, (text[0], target.than)), (label, label)


def difference(this: Attribution, that: Attribution) -> Attribution:
    """The first minus the second, over the tokens of both."""
    a, b = this.row, that.row
    if a.texts == b.texts:
        raise BadTarget(f"both sides of the contrast are {a.texts[-1][:40]!r}; give others.")
    pairs = zip(zip(a.texts, a.names or a.texts), zip(b.texts, b.names or b.texts))  # noqa: B905
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    border, other = (
        next((i for i, own in enumerate(r.segments) if own is not None and own >= shared), len(r))
        for r in (a, b)
    )
    if a.ids[:border] != b.ids[:other]:
        raise BadInput("one of the two was cut before what they differ in; give texts that fit.")
    tail = b.take(range(border, len(b)))
    segments = tuple(None if own is None else own - shared for own in tail.segments)
    tail = dataclasses.replace(tail, segments=segments, texts=b.texts[shared:])
    # What is explained; an answer's logits are kept first all chosen, then all others'.
    values = [
        float(one.target.value(one.logits.reshape(2, -1).T if one.row.answer else one.logits))
        for one in (this, that)
    ]
    if a.answer:
        verb, sides = "rather than", (this.target.name, that.target.name)
        names = (*a.names, *(INSTEAD if n == WRITTEN else n for n in b.names[shared:]))
    else:
        first, second = (f"‘{short(row.texts[-1].strip(), 31)}’" for row in (a, b))
        verb, sides, names = "above", (first, second), ("query", "above", "below")
    return _merged(
        this,
        that,
        border,
        -1.0,
        row=a.joined(tail, token_types=None, anchor=None, answer=(), names=names),
        target=ResolvedTarget("contrast", f" {verb} ".join(sides), (((0,), 1.0), ((1,), -1.0))),
        prediction=Prediction(f"{values[0]:.4g} against {values[1]:.4g}", 0, sides, ()),
        logits=np.array(values),
        extras={"difference": {"border": border, "behind": len(a)}},
    )
