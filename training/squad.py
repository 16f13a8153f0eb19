"""SQuAD v1.1 as officially scored: normalized exact match and token F1, best over the answers."""

from __future__ import annotations

import re
import string
from collections import Counter

import torch

from training.windows import Window

LONGEST_ANSWER = 30
BEST = 20
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and surplus blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(guess: str, answers: list[str]) -> float:
    """1 where the guess equals an answer after normalizing."""
    return float(any(normalise(guess) == normalise(answer) for answer in answers))


def overlap(guess: str, answers: list[str]) -> float:
    """Best token F1 between the guess and any answer."""
    return max(_pair_overlap(normalise(guess).split(), normalise(a).split()) for a in answers)


def _pair_overlap(guess: list[str], answer: list[str]) -> float:
    shared = (Counter(guess) & Counter(answer)).total()
    if not shared:
        return 0.0
    precision = shared / len(guess)
    recall = shared / len(answer)
    return 2 * precision * recall / (precision + recall)


def best_span(
    start_logits: torch.Tensor, end_logits: torch.Tensor, window: Window
) -> tuple[float, int, int]:
    """Score and characters of the best answer inside the context of a window.

    The best of start + end logit over spans of at most 30 tokens, from the 20 best starts and ends.
    """
    start = start_logits[window.context_start : window.context_end]
    end = end_logits[window.context_start : window.context_end]
    count = min(BEST, len(start))
    starts = start.topk(count).indices.tolist()
    ends = end.topk(count).indices.tolist()
    candidates = [
        (float(start[first] + end[last]), first, last)
        for first in starts
        for last in ends
        if first <= last < first + LONGEST_ANSWER
    ]
    if not candidates:
        best = int(start.argmax())
        candidates = [(float(start[best] + end[best]), best, best)]
    score, first, last = max(candidates)
    return score, window.spans[first][0], window.spans[last][1]
