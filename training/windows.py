"""Questions with their contexts as token windows, for training and for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import BertTokenizer

WINDOW = 384
STRIDE = 128
LONGEST_QUESTION = 64


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of a context behind its question: ids, where the context lies, its characters."""

    row: int
    ids: list[int]
    context_start: int
    spans: list[tuple[int, int]]

    @property
    def context_end(self) -> int:
        """Position after the last context token; the closing [SEP] follows."""
        return self.context_start + len(self.spans)


def windows(tokenizer: BertTokenizer, rows: list[dict[str, Any]]) -> list[Window]:
    """Every row cut into overlapping windows ``[CLS] question [SEP] context part [SEP]``."""
    questions = tokenizer([row["question"].strip() for row in rows], add_special_tokens=False)
    contexts = tokenizer(
        [row["context"] for row in rows],
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    first = tokenizer.cls_token_id
    separator = tokenizer.sep_token_id
    found = []
    for index in range(len(rows)):
        head = [first, *questions["input_ids"][index][:LONGEST_QUESTION], separator]
        ids = contexts["input_ids"][index]
        spans = contexts["offset_mapping"][index]
        room = WINDOW - len(head) - 1
        start = 0
        while True:
            part = ids[start : start + room]
            found.append(
                Window(index, [*head, *part, separator], len(head), spans[start : start + room])
            )
            if start + room >= len(ids):
                break
            start += room - STRIDE
    return found


def answer_positions(window: Window, row: dict[str, Any]) -> tuple[int, int]:
    """Token positions (first, last) of the first gold answer, or (0, 0) where it is not inside."""
    answer = row["answers"][0]
    begin = answer["answer_start"]
    end = begin + len(answer["text"])
    inside = [
        position
        for position, (left, right) in enumerate(window.spans)
        if right > begin and left < end
    ]
    covers = inside and window.spans[inside[0]][0] <= begin and window.spans[inside[-1]][1] >= end
    if not covers:
        return 0, 0
    return window.context_start + inside[0], window.context_start + inside[-1]
