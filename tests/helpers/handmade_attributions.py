"""Attributions made by hand, for tests that draw them without any model."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow


def row_of(texts, spans, *, pieces=None, words=None, cut=0, special=True) -> TokenRow:
    """[CLS] text [SEP] (pair [SEP]) with the given character spans, one list a text."""
    names, flags, places, segments, numbers = [], [], [], [], []

    def add(piece, span, segment, word):
        names.append(piece)
        flags.append(segment is None)
        places.append(span)
        segments.append(segment)
        numbers.append(word)

    count = 0
    if special:
        add("[CLS]", None, None, None)
    for segment, found in enumerate(spans):
        for start, end in found:
            word = count if words is None else words[count]
            piece = texts[segment][start:end] if pieces is None else pieces[count]
            add(piece, (start, end), segment, word)
            count += 1
        if special:
            add("[SEP]", None, None, None)
    return TokenRow(
        ids=tuple(range(100, 100 + len(names))),
        attention_mask=(1,) * len(names),
        token_type_ids=None,
        pieces=tuple(names),
        special_tokens_mask=tuple(flags),
        spans=tuple(places),
        segments=tuple(segments),
        word_ids=tuple(numbers),
        texts=tuple(texts),
        num_truncated=cut,
    )


def attribution_of(
    row: TokenRow, scores, *, method="attcat", target="positive", **more
) -> Attribution:
    """An attribution of a two-class model that says ``positive``."""
    fields = {
        "row": row,
        "scores": np.array(scores, dtype=float),
        "method": method,
        "target": ResolvedTarget("class", target, (((1,), 1.0),)),
        "prediction": Prediction("positive", 1, ("negative", "positive"), (0.018, 0.982)),
        "logits": np.array([-2.0, 2.0]),
        "model": "tokenlight/sentiment",
        "versions": {"tokenlight": "0.1.0", "torch": "2.13.0", "transformers": "5.22.2"},
    }
    return Attribution(**(fields | more))


def split(text: str) -> list[tuple[int, int]]:
    """Spans of words and punctuation marks."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def sample(
    text="A charming and often affecting journey.", *, layers=4, seed=0, **more
) -> Attribution:
    """A text with random scores, and per-layer terms that sum to them."""
    row = more.pop("row", None) or row_of([text], [split(text)])
    terms = np.random.default_rng(seed).normal(size=(layers, len(row))) * 0.1
    return attribution_of(row, terms.sum(axis=0), layers=terms, **more)


def with_method(attribution: Attribution, method: str, seed: int, **more) -> Attribution:
    """The same text and target explained by another method, without per-layer terms."""
    scores = np.random.default_rng(seed).normal(size=len(attribution)) * 0.3
    return replace(attribution, method=method, scores=scores, layers=None, **more)
