"""Attributions with handmade scores, for tests that need no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow


def make_row(
    texts: Sequence[str],
    spans: Sequence[Sequence[tuple[int, int]]],
    *,
    pieces: Sequence[str] | None = None,
    words: Sequence[int | None] | None = None,
    cut: int = 0,
    special: bool = True,
) -> TokenRow:
    """Return the row [CLS] text [SEP] (pair [SEP]) with the given character spans, one list per text."""
    row_pieces = []
    special_tokens_mask = []
    row_spans = []
    segments = []
    word_ids = []

    def add_token(
        piece: str, span: tuple[int, int] | None, segment: int | None, word_id: int | None
    ) -> None:
        """Append one token to every column of the row."""
        row_pieces.append(piece)
        special_tokens_mask.append(segment is None)
        row_spans.append(span)
        segments.append(segment)
        word_ids.append(word_id)

    count = 0
    if special:
        add_token("[CLS]", None, None, None)
    for segment, segment_spans in enumerate(spans):
        for start, end in segment_spans:
            word_id = count if words is None else words[count]
            piece = texts[segment][start:end] if pieces is None else pieces[count]
            add_token(piece, (start, end), segment, word_id)
            count += 1
        if special:
            add_token("[SEP]", None, None, None)
    return TokenRow(
        ids=tuple(range(100, 100 + len(row_pieces))),
        attention_mask=(1,) * len(row_pieces),
        token_type_ids=None,
        pieces=tuple(row_pieces),
        special_tokens_mask=tuple(special_tokens_mask),
        spans=tuple(row_spans),
        segments=tuple(segments),
        word_ids=tuple(word_ids),
        texts=tuple(texts),
        num_truncated=cut,
    )


def make_attribution(
    row: TokenRow, scores: Any, *, method: str = "attcat", target: str = "positive", **fields: Any
) -> Attribution:
    """Return an attribution of a two-class model that predicts ``positive``."""
    defaults = {
        "row": row,
        "scores": np.array(scores, dtype=float),
        "method": method,
        "target": ResolvedTarget("class", target, (((1,), 1.0),)),
        "prediction": Prediction("positive", 1, ("negative", "positive"), (0.018, 0.982)),
        "logits": np.array([-2.0, 2.0]),
        "model": "tokenlight/sentiment",
        "versions": {"tokenlight": "0.1.0", "torch": "2.13.0", "transformers": "5.22.2"},
    }
    return Attribution(**(defaults | fields))


def split_words(text: str) -> list[tuple[int, int]]:
    """Return the spans of words and punctuation marks."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def make_sample(
    text: str = "A charming and often affecting journey.",
    *,
    layers: int = 4,
    seed: int = 0,
    **fields: Any,
) -> Attribution:
    """Return an attribution with random scores, and per-layer terms that sum to them."""
    row = fields.pop("row", None) or make_row([text], [split_words(text)])
    terms = np.random.default_rng(seed).normal(size=(layers, len(row))) * 0.1
    return make_attribution(row, terms.sum(axis=0), layers=terms, **fields)


def with_method(attribution: Attribution, method: str, seed: int, **fields: Any) -> Attribution:
    """Return the same text and target explained by another method, without per-layer terms."""
    scores = np.random.default_rng(seed).normal(size=len(attribution)) * 0.3
    return replace(attribution, method=method, scores=scores, layers=None, **fields)


def make_word_attribution(
    text: str, scores: Sequence[float] | None = None, **extras: Any
) -> Attribution:
    """Return an explanation of the words of a text by a model that predicts positive."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    row = make_row([text], [spans])
    values = scores or [0.5 / (1 + position) for position in range(len(spans))]
    return replace(make_attribution(row, [0.1, *values, -0.2]), extras=extras)
