"""Texts longer than the model reads: overlapping windows, stitched into one Attribution.

The explained number is the mean logit over the windows, so a token's score is
``s_i = (1/W) Σ_w s_i^w`` over the windows w that hold it: one linear target, nothing invented.
A span head answers in one window; that window alone is explained, with weight 1.
"""

import dataclasses
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import stream_logits
from tokenlight.data.answers import SpanTarget, answer_places, as_span
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Contrast, Head, Prediction
from tokenlight.data.tokens import TextInput, TokenRow
from tokenlight.errors import BadInput, BadTarget, long_way
from tokenlight.explaining.batch import explain_packed
from tokenlight.explaining.jobs import check_kind
from tokenlight.explaining.options import How
from tokenlight.explaining.session import Session
from tokenlight.inputs.encode import encode, encode_windows

OVERLAP = 0.25  # of a window is shared with the one before it
Window = tuple[TokenRow, tuple[int, ...]]  # and where its tokens stand in the whole text


def is_long(session: Session, text: Any) -> bool:
    """Whether a text has more tokens than the model reads, so that windows are asked for; a prompt has none,
    and is refused where prompts are laid out."""
    limit, reads = session.max_tokens, session.live.head.reads
    if isinstance(text, TokenRow) or limit is None or reads in ("next", "image"):
        return False
    check_kind(session, text)
    # A model without head reads the two texts it compares one by one.
    parts = text if reads == "pair" and isinstance(text, tuple) else (text,)
    return any(len(encode(part, session.tokenizer, limit=None)) > limit for part in parts)


def explain_long(session: Session, text: TextInput, target: Any, how: How) -> list[Attribution]:
    """Explain every window for one target of the whole text and add the scores up."""
    limit, head = session.max_tokens, session.live.head
    assert limit is not None
    span = head.kind == "span"
    if not span and head.reads != "text":
        raise BadInput(
            f"{long_way('stride')} explains the mean over windows of a text, or an answer in one: a next "
            "token, a blank, a word's label or a cosine has one window. Give "
            f"{long_way('truncate')} or a shorter text."
        )
    overlap = int(limit * OVERLAP)
    cut = encode_windows(text, session.tokenizer, limit=limit, overlap=overlap)
    rows = [session.prepared(row, how) for row, _ in cut]
    session.verify(rows[0], how)
    logits = list(stream_logits(session.live, rows, batch_tokens=how.batch_tokens))
    whole = encode(text, session.tokenizer, limit=None)
    if span:
        best, answer, prediction = _answered(head, cut, logits, target)
        chosen, targets, mean = [best], [answer], None
        note = f"{len(cut)} overlapping windows; the answer is explained in window {best + 1}"
    else:
        mean = np.mean(logits, axis=0)
        prediction = head.predict(mean, rows[0])
        # The classes of the whole text's target, so that no window puts its own prediction there.
        asked = [[at[0] for at, _ in one.terms] for one in head.resolve(target, mean, rows[0])]
        targets = [Contrast(*own[:2]) if own[1:] else own[0] for own in asked]
        chosen = [*range(len(cut))]
        note = f"{len(cut)} overlapping windows, scores added with weight 1/{len(cut)} each"
    quiet = dataclasses.replace(how, progress=False)
    found = [explain_packed(session, [(rows[i], t) for i in chosen], quiet) for t in targets]
    said = {one for row in rows for one in session.row_notes(row)}  # of windows, not of the whole
    places = [list(cut[i][1]) for i in chosen]
    part = max(segment or 0 for segment in whole.segments)  # the one that was cut
    extents = []
    for i, (_, at) in enumerate(cut):
        own = [place for place in at if not whole.special[place] and whole.segments[place] == part]
        weight = (i in chosen) / len(chosen)
        extents.append({"first": own[0], "last": own[-1], "weight": weight})

    def stitched(parts: list[Attribution]) -> Attribution:
        first, layers = parts[0], [one.layers for one in parts if one.layers is not None]
        terms = first.target.terms
        if span:  # its tokens, counted in the whole text
            terms = tuple(((places[0][at[0]], *at[1:]), weight) for at, weight in terms)
        notes = (note for note in first.notes if note not in said)
        return dataclasses.replace(
            first,
            row=whole,
            scores=_added([one.scores for one in parts], places, len(whole)),
            layers=_added(layers, places, len(whole)) if layers else None,
            target=dataclasses.replace(first.target, terms=terms),
            prediction=prediction,
            logits=first.logits if mean is None else mean,
            notes=(*notes, *session.row_notes(whole), note),
            extras={**first.extras, "windows": extents},
        )

    methods = range(len(how.methods))
    return [stitched([own[i] for own in windows]) for i in methods for windows in found]


def _added(parts: list[np.ndarray], places: list[list[int]], size: int) -> np.ndarray:
    """The mean over windows of scores, ``… token``, each where it stands in the whole text."""
    whole = np.zeros((*parts[0].shape[:-1], size))
    for own, at in zip(parts, places, strict=True):
        whole[..., at] += 1 / len(parts) * own
    return whole


def _answered(
    head: Head, cut: list[Window], logits: list[np.ndarray], target: Any
) -> tuple[int, Any, Prediction]:
    """The window in which the target scores best, and the target in it; and what all windows together
    predict, the best span of any. "No answer" must hold in all: the one that believes it least speaks."""
    head.takes(target)
    moved = {i: own for i, window in enumerate(cut) if (own := _moved(target, *window))}
    if not moved:
        raise BadTarget(_in_no_window(target, cut))
    values = {}  # how strongly a window answers with the target; of a contrast with its first span
    for i, own in moved.items():
        this = own.this if isinstance(own, Contrast) else own
        values[i] = float(head.resolve(this, logits[i], cut[i][0])[0].value(logits[i]))
    least = isinstance(target, SpanTarget) and target.no_answer
    best = (min if least else max)(values, key=lambda i: values[i])
    said = [head.predict(values, row) for values, (row, _) in zip(logits, cut, strict=True)]
    first = max(said, key=lambda one: one.answer_score or 0.0)
    nulls = [one.null_score for one in said if one.null_score is not None]
    return best, moved[best], dataclasses.replace(first, null_score=min(nulls, default=None))


def _in_no_window(target: Any, cut: list[Window]) -> str:
    """Why no window can explain the target: an answer that none holds, or two that none holds both."""
    named = {"answer": target}
    if isinstance(target, Contrast):
        named = {"first answer of the contrast": target.this}
        named["second answer of the contrast"] = target.that
    for name, one in named.items():
        if not any(_moved(one, *window) for window in cut):
            return (
                f"the {name} stands as a whole in none of the {len(cut)} windows; name a shorter answer, "
                "or give a shorter context."
            )
    return (
        "the two answers of the contrast are never in one window, so no pass of the model has "
        f"both ({len(cut)} windows were read); explain each by itself, or give a shorter context "
        "that holds both."
    )


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
