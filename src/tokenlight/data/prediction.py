"""The prediction of a model for one example, read from its logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokenlight.data.largest import find_largest_indices
from tokenlight.data.probabilities import compute_continuation_log_probability, softmax
from tokenlight.data.span_target import extract_span_text, find_best_span
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import find_common_tag_type

NUM_TOP_TOKENS = 10  # next tokens that a prediction keeps of a whole vocabulary


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a model for one example.

    Args:
        label: The predicted label, answer or number, as text.
        index: Its class index or token id; 0 if there are no classes.
        labels: The labels that ``probabilities`` belong to.
        probabilities: One probability per label; empty for a regression head. A span head has one, the
            product of the start and the end probability.
        ids: Token ids of ``labels``, for language models, which keep only the most likely tokens.
        answer_score: Start logit + end logit of the best span.
        null_score: The same sum for "no answer", if the input has a token for it.
    """

    label: str
    index: int
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    ids: tuple[int, ...] = ()
    answer_score: float | None = None
    null_score: float | None = None

    @property
    def is_unanswered(self) -> bool | None:
        """Whether "no answer" has the higher score; meaningful only for models trained on it."""
        if self.answer_score is None or self.null_score is None:
            return None
        return self.null_score > self.answer_score

    @property
    def label_position(self) -> int:
        """Position of the predicted label in ``labels``."""
        return self.ids.index(self.index) if self.ids else self.index

    @property
    def probability(self) -> float | None:
        """Probability of the predicted label; None if the head has no probabilities."""
        if not self.probabilities:
            return None
        return self.probabilities[self.label_position]


def predict_continuation(
    logits: np.ndarray, row: TokenRow, label_names: Sequence[str]
) -> Prediction:
    """Return the continuation of ``row``, or the labels of its target words, as the prediction.

    Args:
        logits: ``token 2``: the logit of each token, and ln Σ exp of all other tokens' logits.
        row: The input with its ``continuation_ids``.
        label_names: The labels or the vocabulary of the head.
    """
    # The ids of a contrast follow those of the target itself, and do not belong to the prediction.
    num_tokens = len(set(row.target_positions)) or len(row.continuation_ids)
    labels = [label_names[i] for i in row.continuation_ids[:num_tokens]]
    if row.target_positions:
        label = find_common_tag_type(labels)
    elif row.texts:
        label = row.texts[-1].strip()
    else:
        label = "".join(labels).strip()
    probability = float(np.exp(compute_continuation_log_probability(logits[:num_tokens])))
    return Prediction(label=label, index=0, labels=(label,), probabilities=(probability,))


def predict_span(logits: np.ndarray, row: TokenRow) -> Prediction:
    """Return the best answer span; ``logits`` are ``token 2``, start and end."""
    start, end = find_best_span(logits, row)
    answer = extract_span_text(row, start, end)
    # Span heads model start and end as independent.
    probability = float(softmax(logits[:, 0])[start] * softmax(logits[:, 1])[end])
    null_score = None
    if row.special_tokens_mask[0]:
        # Models trained on SQuAD v2 say "no answer" by the span of the first token, [CLS].
        null_score = float(logits[0].sum())
    return Prediction(
        label=answer,
        index=0,
        labels=(answer,),
        probabilities=(probability,),
        answer_score=float(logits[start, 0] + logits[end, 1]),
        null_score=null_score,
    )


def predict_numbers(
    logits: np.ndarray, labels: Sequence[str], *, is_similarity: bool
) -> Prediction:
    """Return the outputs of a regression head, or the similarity of two texts, as text.

    Args:
        logits: One value per output.
        labels: The names of the outputs; of a similarity its name.
        is_similarity: Whether the value compares two texts.
    """
    if is_similarity:
        prefixes = [f"{labels[0].split()[0]} "]
    elif len(logits) > 1:
        prefixes = [f"{name} " for name in labels]
    else:
        prefixes = [""]
    numbers = []
    for prefix, value in zip(prefixes, logits, strict=True):
        numbers.append(f"{prefix}{float(value):.4g}")
    return Prediction(label=", ".join(numbers), index=0, labels=tuple(labels), probabilities=())


def predict_class(
    logits: np.ndarray, labels: Sequence[str], problem_type: Literal["single", "multi"]
) -> Prediction:
    """Return the class with the highest logit; a multi-label head has independent probabilities.

    Args:
        logits: One logit per label.
        labels: The names of the classes.
        problem_type: ``"single"``: the classes exclude each other (softmax); ``"multi"``: each has a
            probability of its own (sigmoid).
    """
    probabilities = 1 / (1 + np.exp(-logits)) if problem_type == "multi" else softmax(logits)
    best = int(np.argmax(logits))
    return Prediction(
        label=labels[best],
        index=best,
        labels=tuple(labels),
        probabilities=tuple(probabilities.tolist()),
    )


def predict_token(logits: np.ndarray, vocabulary: Sequence[str]) -> Prediction:
    """Return the most likely token, and the ten most likely ones with their probabilities."""
    probabilities = softmax(logits)
    # Equally likely tokens come in the order of their ids.
    top_ids = find_largest_indices(probabilities, NUM_TOP_TOKENS).tolist()
    return Prediction(
        label=vocabulary[top_ids[0]],
        index=top_ids[0],
        labels=tuple(vocabulary[i] for i in top_ids),
        probabilities=tuple(float(probabilities[i]) for i in top_ids),
        ids=tuple(top_ids),
    )
