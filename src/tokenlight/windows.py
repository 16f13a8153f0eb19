"""Texts longer than the model reads: overlapping windows, stitched into one Attribution.

The explained number is the mean logit over the windows, so a token's score is
``s_i = (1/W) Σ_w s_i^w`` over the windows w that hold it: one linear target, nothing invented.
A span head answers in one window; that window alone is explained, with weight 1.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenlight.attribution import Attribution
from tokenlight.capture.recording import record
from tokenlight.target import Head, best_span
from tokenlight.tokens import TextInput, TokenRow, encode, encode_windows

if TYPE_CHECKING:
    from tokenlight.asked import How
    from tokenlight.explainer import Explainer

OVERLAP = 0.25  # of a window is shared with the one before it


def is_long(explainer: Explainer, text: Any) -> bool:
    """Whether a text has more tokens than the model reads."""
    if isinstance(text, TokenRow) or explainer.max_tokens is None:
        return False
    return len(encode(text, explainer.tokenizer, limit=None)) > explainer.max_tokens


def explain_long(explainer: Explainer, text: TextInput, target: Any, how: How) -> list[Attribution]:
    """Explain every window for one target of the whole text and add the scores up."""
    limit = explainer.max_tokens
    assert limit is not None
    explainer.check_kind(text)
    overlap = int(limit * OVERLAP)
    cut = encode_windows(text, explainer.tokenizer, limit=limit, overlap=overlap)
    rows = [explainer.prepared(row, how) for row, _ in cut]
    explainer.verify(rows[0], how)
    logits = _logits(explainer, rows, how)
    if explainer.live.head.kind == "span":
        weights, whole_logits, targets = _answering_window(rows, logits, target)
    else:
        weights = np.full(len(rows), 1 / len(rows))
        whole_logits = np.mean(logits, axis=0)
        resolved = explainer.live.head.resolve(target, whole_logits, rows[0])
        targets = [t.terms[0][0][0] if t.kind == "class" else target for t in resolved]
    parts = _explained(explainer, rows, weights, targets, how)
    whole = _Whole(
        encode(text, explainer.tokenizer, limit=None), [w for _, w in cut], weights, whole_logits
    )
    explained = [group for group in parts if group]
    return [
        _stitched([group[i] for group in explained], whole, explainer.live.head)
        for i in range(len(explained[0]))
    ]


def _logits(explainer: Explainer, rows: list[TokenRow], how: How) -> list[np.ndarray]:
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    for pack in explainer.packs(rows, how):
        recording = record(explainer.live, [rows[i] for i in pack], frozenset())
        for i, values in zip(pack, recording.read, strict=True):
            found[i] = values[: len(rows[i])] if values.ndim == 2 else values
    return found


def _answering_window(
    rows: list[TokenRow], logits: list[np.ndarray], target: Any
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    spans = [best_span(values, row) for values, row in zip(logits, rows, strict=True)]
    sums = [v[start, 0] + v[end, 1] for v, (start, end) in zip(logits, spans, strict=True)]
    best = int(np.argmax(sums))
    return np.eye(len(rows))[best], logits[best], [target]


def _explained(
    explainer: Explainer, rows: list[TokenRow], weights: np.ndarray, targets: list[Any], how: How
) -> list[list[Attribution]]:
    """For each window with a weight: method by method, then target by target."""
    found: list[list[list[Attribution]]] = [[] for _ in rows]
    weighty = [i for i, weight in enumerate(weights) if weight]
    for target in targets:
        for pack in explainer.packs([rows[i] for i in weighty], how):
            chosen = [weighty[i] for i in pack]
            batch = explainer.explain_rows([rows[i] for i in chosen], [target] * len(chosen), how)
            for i, group in zip(chosen, batch, strict=True):
                found[i].append(group)
    return [[a for by_method in zip(*groups, strict=True) for a in by_method] for groups in found]


@dataclasses.dataclass(frozen=True)
class _Whole:
    """The whole text and how its windows lie on it."""

    row: TokenRow
    places: list[tuple[int, ...]]
    weights: np.ndarray
    logits: np.ndarray

    def extent(self, window: int) -> dict[str, Any]:
        """First and last token of a window in the whole text, special tokens aside, and weight."""
        inside = [place for place in self.places[window] if not self.row.special[place]]
        cut = max(segment or 0 for segment in self.row.segments)
        moved = [place for place in inside if self.row.segments[place] == cut]
        return {"first": moved[0], "last": moved[-1], "weight": float(self.weights[window])}


def _stitched(parts: list[Attribution], whole: _Whole, head: Head) -> Attribution:
    first = parts[0]
    scores = np.zeros(len(whole.row))
    layers = None if first.layers is None else np.zeros((len(first.layers), len(whole.row)))
    weighty = [i for i, weight in enumerate(whole.weights) if weight]
    for part, i in zip(parts, weighty, strict=True):
        where, weight = list(whole.places[i]), whole.weights[i]
        scores[where] += weight * part.scores
        if layers is not None and part.layers is not None:
            layers[:, where] += weight * part.layers
    count = len(whole.places)
    span = head.kind == "span"
    note = (
        f"{count} overlapping windows; the answer stands in window {weighty[0]}"
        if span
        else f"{count} overlapping windows, scores added with weight 1/{count} each"
    )
    return dataclasses.replace(
        first,
        row=whole.row,
        scores=scores,
        layers=layers,
        prediction=first.prediction if span else head.predict(whole.logits, whole.row),
        logits=first.logits if span else whole.logits,
        notes=(*first.notes, note),
        extras={**first.extras, "windows": [whole.extent(i) for i in range(count)]},
    )
