"""Texts longer than the model reads: overlapping windows, stitched into one Attribution.

The explained number is the mean logit over the windows, so a token's score is
``s_i = (1/W) Σ_w s_i^w`` over the windows w that hold it: one linear target, nothing invented.
A span head answers in one window; that window alone is explained, with weight 1.
"""

from dataclasses import replace
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
    """Whether a text has more tokens than the model reads; a prompt is refused where it is laid out."""
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
            f"{long_way('stride')} is for labels and answers of texts: a next token, a blank, a word's label "
            f"or a cosine has one window. Give {long_way('truncate')} or a shorter text."
        )
    cut = encode_windows(text, session.tokenizer, limit=limit, overlap=int(limit * OVERLAP))
    rows = [session.prepared(row, how) for row, _ in cut]
    session.verify(rows[0], how)
    logits = list(stream_logits(session.live, rows, batch_tokens=how.batch_tokens))
    whole = encode(text, session.tokenizer, limit=None)
    note, mean = f"{len(cut)} overlapping windows", None
    if span:
        best, answer, prediction = _answered(head, cut, logits, target)
        chosen, targets = [best], [answer]
        note += f"; the answer is explained in window {best + 1}"
    else:
        mean = np.mean(logits, axis=0)
        prediction = head.predict(mean, rows[0])
        # The classes of the whole text's target, so that no window puts its own prediction there.
        asked = [[at[0] for at, _ in one.terms] for one in head.resolve(target, mean, rows[0])]
        chosen, targets = [*range(len(cut))], [Contrast(*o[:2]) if o[1:] else o[0] for o in asked]
        note += f", scores added with weight 1/{len(cut)} each"
    quiet = replace(how, progress=False)
    found = [explain_packed(session, [(rows[i], t) for i in chosen], quiet) for t in targets]
    said = {one for row in rows for one in session.row_notes(row)}  # of windows, not of the whole
    places = [list(cut[i][1]) for i in chosen]
    part = max(segment or 0 for segment in whole.segments)  # the one that was cut
    own = [[at for at in places if whole.segments[at] == part] for _, places in cut]
    extents = [
        {"first": at[0], "last": at[-1], "weight": (i in chosen) / len(chosen)}
        for i, at in enumerate(own)
    ]

    def added(parts: list[Any]) -> Any:
        """The mean over windows of scores, ``… token``, each where it stands in the whole text."""
        if parts[0] is None:
            return None
        total = np.zeros((*parts[0].shape[:-1], len(whole)))
        for part, at in zip(parts, places, strict=True):
            total[..., at] += 1 / len(parts) * part
        return total

    def stitched(parts: list[Attribution]) -> Attribution:
        first, terms = parts[0], parts[0].target.terms
        if span:  # its tokens, counted in the whole text
            terms = tuple(((places[0][at[0]], *at[1:]), weight) for at, weight in terms)
        notes = (note for note in first.notes if note not in said)
        return replace(
            first,
            row=whole,
            scores=added([one.scores for one in parts]),
            layers=added([one.layers for one in parts]),
            target=replace(first.target, terms=terms),
            prediction=prediction,
            logits=first.logits if mean is None else mean,
            notes=(*notes, *session.row_notes(whole), note),
            extras={**first.extras, "windows": extents},
        )

    methods = range(len(how.methods))
    return [stitched([own[i] for own in windows]) for i in methods for windows in found]


def _answered(
    head: Head, cut: list[Window], logits: list[np.ndarray], target: Any
) -> tuple[int, Any, Prediction]:
    """The window in which the target scores best, and the target in it; and what all windows together
    predict, the best span of any. "No answer" must hold in all: the one that believes it least speaks."""
    head.takes(target)
    moved = {i: own for i, window in enumerate(cut) if (own := _moved(target, *window))}
    if not moved:
        raise BadTarget(
            f"none of the {len(cut)} windows holds the answer as a whole, or both answers of a contrast; "
            "name a shorter answer, explain each by itself, or give a shorter context."
        )
    values = {}  # how strongly a window answers with the target; of a contrast with its first span
    for i, own in moved.items():
        this = own.this if isinstance(own, Contrast) else own
        values[i] = float(head.resolve(this, logits[i], cut[i][0])[0].value(logits[i]))
    least = isinstance(target, SpanTarget) and target.no_answer
    best = (min if least else max)(values, key=lambda i: values[i])
    said = [head.predict(values, row) for values, (row, _) in zip(logits, cut, strict=True)]
    first = max(said, key=lambda one: one.answer_score or 0.0)
    nulls = [one.null_score for one in said if one.null_score is not None]
    return best, moved[best], replace(first, null_score=min(nulls, default=None))


def _moved(target: Any, row: TokenRow, places: tuple[int, ...]) -> Any:
    """The target as one window has it: token numbers count the whole text, and a given answer must
    stand in the window as a whole. None where it does not."""
    if isinstance(target, Contrast):
        this, that = (_moved(as_span(one), row, places) for one in (target.this, target.that))
        return Contrast(this, that) if this and that else None
    span = as_span(target)
    numbers = {n: at for n in ("start", "end") if type(at := getattr(span, n)) is int}
    if (span.given and answer_places(span, row) is None) or not {*numbers.values()} <= {*places}:
        return None
    moved: dict[str, Any] = {name: places.index(place) for name, place in numbers.items()}
    return replace(span, **moved)
