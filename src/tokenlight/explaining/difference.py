"""Why this rather than that, where each is read by a pass of its own: two passages for one query, two texts
written after one prompt.

``y = y(A) − y(B)``. What both passes read scores ``s(A) − s(B)``, what A alone reads ``s(A)``, what B alone
reads ``−s(B)``; all of it stands in one Attribution. For a gradient this is exactly the gradient of ``y``.
"""

import dataclasses
from itertools import takewhile
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Above, Continuation, Contrast, Prediction, ResolvedTarget
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, BadTarget, short, way
from tokenlight.explaining.session import Session

INSTEAD = "instead"  # the name of what might have been written


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
        raise BadTarget(
            f"{target!r} compares a continuation with something else; give two continuations, or two "
            "single tokens."
        )
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
            f"this model has {len(head.labels)} outputs ({head.listed(6)}), so say which of them ranks: "
            + way("Above(…, label=…).", "--target LABEL.")
        )
    return (text, (text[0], target.than)), (label, label)


def differences(these: list[Attribution], those: list[Attribution]) -> list[Attribution]:
    """The first minus the second, over the tokens of both, method by method."""
    return [_difference(this, that) for this, that in zip(these, those, strict=True)]


def _difference(this: Attribution, that: Attribution) -> Attribution:
    a, b = this.row, that.row
    ranked = not a.answer
    pairs = zip(zip(a.texts, a.names or a.texts), zip(b.texts, b.names or b.texts))  # noqa: B905
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if a.texts == b.texts:
        raise BadTarget(
            f"both sides of the contrast are {a.texts[-1][:40]!r}; give two that differ."
        )
    border, other = (
        next(
            (i for i, own in enumerate(row.segments) if own is not None and own >= shared), len(row)
        )
        for row in (a, b)
    )
    if a.ids[:border] != b.ids[:other]:
        raise BadInput(
            "the two passes do not read the same tokens before what they differ in, since one was cut "
            "shorter; give texts that fit."
        )
    tail = b.take(range(border, len(b)))
    segments = tuple(None if own is None else own - shared for own in tail.segments)
    tail = dataclasses.replace(tail, segments=segments, texts=b.texts[shared:])
    written = (*a.names, *(INSTEAD if n == WRITTEN else n for n in b.names[shared:]))
    names = ("query", "above", "below") if ranked else written
    values = _value(this), _value(that)
    verb = "above" if ranked else "rather than"
    sides = tuple(_side(one, ranked) for one in (this, that))
    return dataclasses.replace(
        this,
        row=a.joined(tail, token_types=None, anchor=None, answer=(), names=names),
        scores=_subtracted(this.scores, that.scores, border),
        layers=None
        if this.layers is None or that.layers is None
        else _subtracted(this.layers, that.layers, border),
        target=ResolvedTarget("contrast", f" {verb} ".join(sides), (((0,), 1.0), ((1,), -1.0))),
        prediction=Prediction(f"{values[0]:.4g} against {values[1]:.4g}", 0, sides, ()),
        logits=np.array(values),
        notes=tuple(dict.fromkeys((*this.notes, *that.notes))),
        extras={"difference": {"border": border, "behind": len(a)}},
    )


def _subtracted(this: np.ndarray, that: np.ndarray, border: int) -> np.ndarray:
    both = this[..., :border] - that[..., :border]
    return np.concatenate([both, this[..., border:], -that[..., border:]], axis=-1)


def _value(a: Attribution) -> float:
    """The explained number; an answer's logits are kept first all chosen, then all others'."""
    logits = a.logits.reshape(2, -1).T if a.row.answer else a.logits
    return float(a.target.value(logits))


def _side(a: Attribution, ranked: bool) -> str:
    text = a.row.texts[-1].strip()
    return f"‘{short(text, 31)}’" if ranked else a.target.name
