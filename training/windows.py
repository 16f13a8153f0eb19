"""Questions with their contexts as windows of tokens, for training and for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import BertTokenizer

WINDOW_TOKENS = 384
OVERLAP_TOKENS = 128
MAX_QUESTION_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Window:
    """A question with one stretch of its context.

    Attributes:
        row: Index of the question among the rows.
        ids: Token ids, ``token``.
        context_start: Position of the first context token.
        spans: First and last character of each context token, within the whole context.
    """

    row: int
    ids: list[int]
    context_start: int
    spans: list[tuple[int, int]]

    @property
    def context_end(self) -> int:
        """Position after the last context token; the closing [SEP] follows."""
        return self.context_start + len(self.spans)

    @property
    def token_type_ids(self) -> list[int]:
        """Segment of each token: 0 in the question, 1 in the context."""
        return [int(position >= self.context_start) for position in range(len(self.ids))]


def cut_windows(tokenizer: BertTokenizer, rows: list[dict[str, Any]]) -> list[Window]:
    """Cut every row into overlapping windows ``[CLS] question [SEP] context part [SEP]``."""
    questions = tokenizer([row["question"].strip() for row in rows], add_special_tokens=False)
    contexts = tokenizer(
        [row["context"] for row in rows],
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    cls_id = tokenizer.cls_token_id
    sep_id = tokenizer.sep_token_id
    windows = []
    for row in range(len(rows)):
        question_ids = questions["input_ids"][row][:MAX_QUESTION_TOKENS]
        prefix = [cls_id, *question_ids, sep_id]
        context_ids = contexts["input_ids"][row]
        context_spans = contexts["offset_mapping"][row]
        num_context_tokens = WINDOW_TOKENS - len(prefix) - 1
        start = 0
        while True:
            end = start + num_context_tokens
            ids = [*prefix, *context_ids[start:end], sep_id]
            windows.append(Window(row, ids, len(prefix), context_spans[start:end]))
            if end >= len(context_ids):
                break
            start += num_context_tokens - OVERLAP_TOKENS
    return windows


def locate_answer(window: Window, row: dict[str, Any]) -> tuple[int, int]:
    """Find the first gold answer of a row in a window.

    Returns:
        Positions of its first and last token, or (0, 0) where the window does not hold all of it.
    """
    answer = row["answers"][0]
    answer_start = answer["answer_start"]
    answer_end = answer_start + len(answer["text"])
    answer_tokens = []
    for token, (token_start, token_end) in enumerate(window.spans):
        if token_end > answer_start and token_start < answer_end:
            answer_tokens.append(token)
    if not answer_tokens:
        return 0, 0
    first = answer_tokens[0]
    last = answer_tokens[-1]
    holds_all = window.spans[first][0] <= answer_start and window.spans[last][1] >= answer_end
    if not holds_all:
        return 0, 0
    return window.context_start + first, window.context_start + last
