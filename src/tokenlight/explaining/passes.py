"""What one pass over one row does not answer: what makes two texts alike, why this rather than that, and each
token of a continuation from those before it.

Likeness: ``cos(e(A), e(B)) = ê(A) · ê(B)`` of sentence embeddings (or their dot product). The tokens of A
are scored with ê(B) held fixed, those of B with ê(A) held fixed: for a gradient this is exactly the gradient
of the cosine, since it is the sum of the two. A stands as segment 0 and B as segment 1.

Difference of two passages for one query, or of two texts written after one prompt: ``y = y(A) − y(B)``. What
both passes read scores ``s(A) − s(B)``, what A alone reads ``s(A)``, what B alone reads ``−s(B)``. For a
gradient this is exactly the gradient of ``y``.

Continuations: no token of a causal model sees those behind it, so the logits of a whole text are those of
each of its beginnings, and so are gradients at its embeddings: one forward serves all of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from tokenlight.capture.recording import record
from tokenlight.capture.rewired import rewired
from tokenlight.capture.tape import Site, Sites
from tokenlight.capture.turns import pause
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import (
    Above,
    Continuation,
    Contrast,
    NextToken,
    Prediction,
    ResolvedTarget,
)
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel, few, short, way
from tokenlight.explaining.batch import BatchColumns, explain_packs, shared_by
from tokenlight.explaining.jobs import check_target, name_of
from tokenlight.explaining.options import How, Job
from tokenlight.explaining.scores import queued_by
from tokenlight.explaining.session import Session
from tokenlight.inputs.encode import encode
from tokenlight.methods._method import Method

TwoPasses = tuple[tuple[Any, Any], tuple[Any, Any]]  # texts, and the targets asked of them
INSTEAD = "instead"  # the name of what might have been written
# What methods may read for their scores to be the same; attention received, for one, is a mean over all.
ALIKE = frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT, Site.RELEVANCE_GRADIENT})


def _merged(a: Attribution, b: Attribution, border: int, sign: float, **own: Any) -> Attribution:
    """One Attribution over the tokens of both, of which those before ``border`` are the same."""

    def both(one: Any, other: Any) -> Any:
        if one is None or other is None:
            return None
        alone = one[..., border:], sign * other[..., border:]
        return np.concatenate([one[..., :border] + sign * other[..., :border], *alone], axis=-1)

    scores, layers = both(a.scores, b.scores), both(a.layers, b.layers)
    notes = tuple(dict.fromkeys((*a.notes, *b.notes)))
    return replace(a, scores=scores, layers=layers, notes=notes, **own)


def explain_likeness(session: Session, text: Any, target: Any, how: How) -> list[Attribution]:
    """One Attribution a method, over the tokens of both texts."""
    if not isinstance(text, tuple) or len(text) != 2:
        does = session.live.head.does
        raise UnsupportedModel(f"{name_of(session)} has no head to explain of one input: {does}.")
    check_target(session, target)
    tokenizer, limit = session.tokenizer, session.max_tokens
    read = (encode(part, tokenizer, limit=limit, long=how.long) for part in text)
    rows = [session.prepared(row, how) for row in read]
    vectors = [_vector(session, session.masked(row, how)) for row in rows]
    # Each alone: a text gives the same scores whatever it is compared beside.
    jobs: list[Job] = [
        (replace(row, anchor=tuple(map(float, other))), "predicted")
        for row, other in zip(rows, reversed(vectors), strict=True)
    ]
    session.verify(jobs[0][0], how)
    (first,), (second,) = (own for _, own in explain_packs(session, jobs, [[0], [1]], how))
    return [_both(a, b) for a, b in zip(first, second, strict=True)]


def _vector(session: Session, row: TokenRow) -> np.ndarray:
    """The sentence embedding of a row, of length one for a cosine."""
    live = session.live
    nothing = replace(row, anchor=(0.0,))  # only the vector itself is read
    arguments, _, filler = live.inputs([nothing])
    with rewired(live.model, attention="own", gradients=False, filler=filler):
        vector = live.pooled(live.call(arguments), arguments)[0].cpu().double()
    length = float(torch.linalg.vector_norm(vector)) if live.similarity == "cosine" else 1.0
    if not length > 0:
        raise BadInput(f"the embedding of {row.texts[0][:40]!r} is zero; it is like nothing.")
    return (vector / length).numpy()


def _both(first: Attribution, second: Attribution) -> Attribution:
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


def two_passes(session: Session, text: Any, target: Any) -> TwoPasses | None:
    """The two texts and the two targets whose difference is asked for; None where one pass answers."""
    if isinstance(target, Above):
        return _ranked(session, text, target)
    both = (target.this, target.that) if isinstance(target, Contrast) else ()
    written = [replace(o, together=True) for o in both if isinstance(o, Continuation)]
    if len(written) == 1:
        raise BadTarget(f"{target!r} is not of two continuations; give two, or two tokens.")
    return ((text, text), (written[0], written[1])) if written else None


def _ranked(session: Session, text: Any, target: Above) -> TwoPasses:
    head, label = session.live.head, target.label
    if not isinstance(text, tuple) or len(text) != 2 or head.reads not in ("text", "pair"):
        given = way(f"Above({target.than[:20]!r})", "--above")
        give = way("(query, passage)", "QUERY and --pair PASSAGE")
        raise BadTarget(f"{given} compares two second texts of a pair; give {give}. {head.does}.")
    if label == "predicted" and len(head.labels) > 1:
        give, outputs = way("Above(…, label=…)", "--target LABEL"), few(head.labels, 6)
        raise BadTarget(f"this model has outputs {outputs}; say which of them ranks: {give}.")
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
    tail = replace(tail, segments=segments, texts=b.texts[shared:])
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


def share_a_forward(session: Session, asked: Sequence[Job], how: How) -> bool:
    """Whether these are beginnings of one text, of which every method reads the same. What stands behind a
    token is padding to it: a model that is not proof against that gets a row for each."""
    if len(asked) < 2 or how.explain_mask != "none" or not all(map(reads_alike, how.methods)):
        return False
    whole = asked[-1][0]
    begun = (isinstance(target, NextToken) and row.texts == whole.texts for row, target in asked)
    if whole.image is not None or not all(begun):
        return False
    session.verify(whole, how)
    return session.live.padding_proof


def reads_alike(method: Method) -> bool:
    """Whether its scores come from the one recorded pass, and from what beginnings have in common."""
    return bool(method.needs) and method.sites <= ALIKE and method.cost(1).forwards == 1


def explain_written(session: Session, jobs: Sequence[Job], how: How) -> list[Attribution]:
    """Method by method an Attribution for each token, by one forward, and one backward a token."""
    rows, targets = zip(*jobs, strict=True)
    whole, head = rows[-1], session.live.head
    places = replace(whole, asked=tuple(len(row) - 1 for row in rows))
    sites: Sites = frozenset().union(*(method.sites for method in how.methods))
    recording = record(session.live, [places], sites, budget=how.batch_tokens)
    logits = list(recording.read[0])
    resolved = [head.resolve(*one)[0] for one in zip(targets, logits, rows, strict=True)]
    found = []
    for number, target in enumerate(resolved):
        terms = tuple(((number, *place), weight) for place, weight in target.terms)
        last = number == len(rows) - 1
        tape = recording.tape([replace(target, terms=terms)], last=last)
        found.append([one.arrived([whole])[0][0] for one in queued_by(how.methods, tape)])
        for check in tape.checks:
            check(tape.targets)
        pause()
    seen = session, rows, recording.sunk, resolved
    made = []
    for i, method in enumerate(how.methods):
        shared = shared_by(session, how, i, [method.note(tape)])
        sums = np.array([own[i] for own in found])
        columns = BatchColumns(*seen, shared, [logits, logits, sums, None, None])
        made += [Attribution.later(partial(columns.fields, place)) for place in range(len(rows))]
    return made
