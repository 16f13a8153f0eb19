"""SQuAD v1.1 as officially scored: normalized exact match and token F1, best over the answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any, NamedTuple

from torch import Tensor

from training.windows import Window

MAX_ANSWER_TOKENS = 30
NUM_CANDIDATES = 20
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class AnswerSpan(NamedTuple):
    """A predicted answer; spans compare by their scores first.

    Attributes:
        score: Sum of its start and end logits.
        start: First character in the context.
        end: Character after its last one.
    """

    score: float
    start: int
    end: int


def normalize_answer(text: str) -> str:
    """Lower-case a text and remove punctuation, articles and surplus blanks."""
    without_punctuation = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", without_punctuation).split())


def match_exactly(prediction: str, answers: list[str]) -> float:
    """Return 1 if the normalized prediction equals an answer, else 0."""
    normalized = normalize_answer(prediction)
    return float(any(normalized == normalize_answer(answer) for answer in answers))


def compute_f1(prediction: str, answers: list[str]) -> float:
    """Return the best token F1 between the prediction and any answer."""
    predicted_words = normalize_answer(prediction).split()
    scores = []
    for answer in answers:
        scores.append(_compute_word_f1(predicted_words, normalize_answer(answer).split()))
    return max(scores)


def _compute_word_f1(predicted_words: list[str], answer_words: list[str]) -> float:
    num_shared = (Counter(predicted_words) & Counter(answer_words)).total()
    if not num_shared:
        return 0.0
    precision = num_shared / len(predicted_words)
    recall = num_shared / len(answer_words)
    return 2 * precision * recall / (precision + recall)


def score_predictions(predictions: list[str], rows: list[dict[str, Any]]) -> dict[str, float]:
    """Average F1 and exact match over questions.

    Args:
        predictions: Predicted text of each row.
        rows: Rows of SQuAD.

    Returns:
        ``f1`` and ``exact_match``, from 0 to 1.
    """
    total_f1 = 0.0
    total_exact = 0.0
    for prediction, row in zip(predictions, rows, strict=True):
        answers = [answer["text"] for answer in row["answers"]]
        total_f1 += compute_f1(prediction, answers)
        total_exact += match_exactly(prediction, answers)
    return {"f1": total_f1 / len(rows), "exact_match": total_exact / len(rows)}


def find_best_span(start_logits: Tensor, end_logits: Tensor, window: Window) -> AnswerSpan:
    """Find the best answer inside the context of a window.

    The best sum of start and end logit over spans of at most 30 tokens, from the 20 best starts and ends.

    Args:
        start_logits: Start logit of each token of the window, ``token``.
        end_logits: End logit of each token of the window, ``token``.
        window: The window.

    Returns:
        The best span, in characters of the context.
    """
    starts = start_logits[window.context_start : window.context_end]
    ends = end_logits[window.context_start : window.context_end]
    num_candidates = min(NUM_CANDIDATES, len(starts))
    best_starts = starts.topk(num_candidates).indices.tolist()
    best_ends = ends.topk(num_candidates).indices.tolist()
    candidates = []
    for first in best_starts:
        for last in best_ends:
            if first <= last < first + MAX_ANSWER_TOKENS:
                candidates.append((float(starts[first] + ends[last]), first, last))
    if not candidates:
        best = int(starts.argmax())
        candidates.append((float(starts[best] + ends[best]), best, best))
    score, first, last = max(candidates)
    return AnswerSpan(score, window.spans[first][0], window.spans[last][1])
