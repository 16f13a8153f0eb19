"""Texts longer than the model reads: overlapping windows, stitched into one Attribution.

The explained number is the mean logit over the windows, so a token's score is
``s_i = (1/W) Σ_w s_i^w`` over the windows w that hold it: one linear target, nothing invented.
A span head answers in one window; that window alone is explained, with weight 1.
"""

import dataclasses
from typing import Any

import numpy as np

from tokenlight.capture.pauses import pause
from tokenlight.capture.perturbation import stream_logits
from tokenlight.data.answers import SpanTarget, answer_places, as_span
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Contrast, Head, Prediction, ResolvedTarget
from tokenlight.data.tokens import TextInput, TokenRow
from tokenlight.errors import BadInput, BadTarget, long_way
from tokenlight.explaining.batch import explain_rows
from tokenlight.explaining.jobs import check_kind
from tokenlight.explaining.options import How
from tokenlight.explaining.session import Session
from tokenlight.inputs.encode import encode, encode_windows

OVERLAP = 0.25  # of a window is shared with the one before it


def is_long(session: Session, text: Any) -> bool:
    """Whether a text has more tokens than the model reads, so that windows are asked for.

    A prompt has none: it goes to where prompts are laid out, which refuses one that is too long.
    """
    limit, reads = session.max_tokens, session.live.head.reads
    if isinstance(text, TokenRow) or limit is None or reads in ("next", "image"):
        return False
    check_kind(session, text)
    # A model without head reads the two texts it compares one by one.
    parts = text if reads == "pair" and isinstance(text, tuple) else (text,)
    return any(len(encode(part, session.tokenizer, limit=None)) > limit for part in parts)


def explain_long(session: Session, text: TextInput, target: Any, how: How) -> list[Attribution]:
    """Explain every window for one target of the whole text and add the scores up."""
    limit = session.max_tokens
    assert limit is not None
    if session.live.head.kind != "span" and session.live.head.reads != "text":
        raise BadInput(
            f"{long_way('stride')} explains the mean over windows of a text, "
            "which only classifiers and question-answering heads have: a next token, a blank, a "
            "word's label or a cosine has one window. Give "
            f"{long_way('truncate')} or a shorter text."
        )
    overlap = int(limit * OVERLAP)
    cut = encode_windows(text, session.tokenizer, limit=limit, overlap=overlap)
    rows = [session.prepared(row, how) for row, _ in cut]
    session.verify(rows[0], how)
    logits = list(stream_logits(session.live, rows, batch_tokens=how.batch_tokens))
    head = session.live.head
    if head.kind == "span":
        weights, whole_logits, answer, prediction = _answered(head, cut, logits, target)
        targets = [answer]
    else:
        weights = np.full(len(rows), 1 / len(rows))
        whole_logits = np.mean(logits, axis=0)
        prediction = head.predict(whole_logits, rows[0])
        resolved = head.resolve(target, whole_logits, rows[0])
        targets = [_classes(one) for one in resolved]
    parts = _explained(session, rows, weights, targets, how)
    row = encode(text, session.tokenizer, limit=None)
    whole = _Whole(
        row,
        [w for _, w in cut],
        weights,
        whole_logits,
        prediction,
        session.row_notes(row),
        frozenset(note for part in rows for note in session.row_notes(part)),
    )
    explained = [group for group in parts if group]
    return [
        _stitched([group[i] for group in explained], whole, span=head.kind == "span")
        for i in range(len(explained[0]))
    ]


def _classes(target: ResolvedTarget) -> int | Contrast:
    """The classes of the whole text's target, so that no window puts its own prediction there."""
    this, *that = [place[0] for place, _ in target.terms]
    return Contrast(this, that[0]) if that else this


def _answered(
    head: Head, cut: list[tuple[TokenRow, tuple[int, ...]]], logits: list[np.ndarray], target: Any
) -> tuple[np.ndarray, np.ndarray, Any, Prediction]:
    """The window in which the target scores best, as weights of all, its logits and the target in it;
    and what all windows together predict, the best span of any.

    "No answer" must hold in every window, so the window that believes it least speaks for it.
    """
    head.takes(target)
    moved = {i: own for i, (row, at) in enumerate(cut) if (own := _moved(target, row, at))}
    if not moved:
        raise BadTarget(_in_no_window(target, cut))
    values = {i: _score(head, own, logits[i], cut[i][0]) for i, own in moved.items()}
    least = isinstance(target, SpanTarget) and target.no_answer
    best = (min if least else max)(values, key=lambda i: values[i])
    said = [head.predict(values, row) for values, (row, _) in zip(logits, cut, strict=True)]
    first = max(said, key=lambda one: one.answer_score or 0.0)
    nulls = [one.null_score for one in said if one.null_score is not None]
    prediction = dataclasses.replace(first, null_score=min(nulls, default=None))
    return np.eye(len(cut))[best], logits[best], moved[best], prediction


def _in_no_window(target: Any, cut: list[tuple[TokenRow, tuple[int, ...]]]) -> str:
    """Why no window can explain the target: an answer that none holds, or two that none holds both."""
    if not isinstance(target, Contrast):
        missing = "answer"
    elif not any(_moved(target.this, row, places) for row, places in cut):
        missing = "first answer of the contrast"
    elif not any(_moved(target.that, row, places) for row, places in cut):
        missing = "second answer of the contrast"
    else:
        return (
            "the two answers of the contrast are never in one window, so no pass of the model has "
            f"both ({len(cut)} windows were read); explain each by itself, or give a shorter context "
            "that holds both."
        )
    return (
        f"the {missing} stands as a whole in none of the {len(cut)} windows; name a shorter answer, or "
        "give a shorter context."
    )


def _score(head: Head, target: Any, logits: np.ndarray, row: TokenRow) -> float:
    """How strongly a window answers with the target; of a contrast with its first span."""
    this = target.this if isinstance(target, Contrast) else target
    return float(head.resolve(this, logits, row)[0].value(logits))


def _moved(target: Any, row: TokenRow, places: tuple[int, ...]) -> Any:
    """The target as one window has it: token numbers count the whole text, and a given answer must
    stand in the window as a whole. None where it does not."""
    if isinstance(target, Contrast):
        this, that = (_moved(as_span(one), row, places) for one in (target.this, target.that))
        return Contrast(this, that) if this and that else None
    span = as_span(target)
    if span.given and answer_places(span, row) is None:
        return None
    sides: dict[str, Any] = {}
    for name in ("start", "end"):
        place = getattr(span, name)
        if isinstance(place, int) and not isinstance(place, bool):
            if place not in places:
                return None
            sides[name] = places.index(place)
    return dataclasses.replace(span, **sides)


def _explained(
    session: Session, rows: list[TokenRow], weights: np.ndarray, targets: list[Any], how: How
) -> list[list[Attribution]]:
    """For each window with a weight: method by method, then target by target."""
    found: list[list[list[Attribution]]] = [[] for _ in rows]
    weighty = [i for i, weight in enumerate(weights) if weight]
    for target in targets:
        for pack in session.packs([rows[i] for i in weighty], how):
            chosen = [weighty[i] for i in pack]
            batch = explain_rows(session, [rows[i] for i in chosen], [target] * len(chosen), how)
            for i, group in zip(chosen, batch, strict=True):
                found[i].append(group)
            pause()
    return [[a for by_method in zip(*groups, strict=True) for a in by_method] for groups in found]


@dataclasses.dataclass(frozen=True)
class _Whole:
    """The whole text and how its windows lie on it."""

    row: TokenRow
    places: list[tuple[int, ...]]
    weights: np.ndarray
    logits: np.ndarray
    prediction: Prediction
    notes: tuple[str, ...]  # what a reader must know of the whole text,
    windows_say: frozenset[str]  # and what the windows say of their parts of it

    def extent(self, window: int) -> dict[str, Any]:
        """First and last token of a window in the whole text, special tokens aside, and weight."""
        inside = [place for place in self.places[window] if not self.row.special[place]]
        cut = max(segment or 0 for segment in self.row.segments)
        moved = [place for place in inside if self.row.segments[place] == cut]
        return {"first": moved[0], "last": moved[-1], "weight": float(self.weights[window])}


def _stitched(parts: list[Attribution], whole: _Whole, *, span: bool) -> Attribution:
    first = parts[0]
    scores = np.zeros(len(whole.row))
    layers = None if first.layers is None else np.zeros((len(first.layers), len(whole.row)))
    weighty = [i for i, weight in enumerate(whole.weights) if weight]
    for part, i in zip(parts, weighty, strict=True):
        where, weight = list(whole.places[i]), whole.weights[i]
        scores[where] += weight * part.scores
        if layers is not None and part.layers is not None:
            layers[:, where] += weight * part.layers
    count, target = len(whole.places), first.target
    if span:
        note = f"{count} overlapping windows; the answer is explained in window {weighty[0] + 1}"
        # The target's tokens, counted in the whole text.
        at = whole.places[weighty[0]]
        terms = tuple(((at[place[0]], *place[1:]), weight) for place, weight in target.terms)
        target = dataclasses.replace(target, terms=terms)
    else:
        note = f"{count} overlapping windows, scores added with weight 1/{count} each"
    return dataclasses.replace(
        first,
        row=whole.row,
        scores=scores,
        layers=layers,
        target=target,
        prediction=whole.prediction,
        logits=first.logits if span else whole.logits,
        notes=(*(n for n in first.notes if n not in whole.windows_say), *whole.notes, note),
        extras={**first.extras, "windows": [whole.extent(i) for i in range(count)]},
    )
