"""Compare two models (or precisions, or prompts) on the same texts.

Did the prediction, the focus, or the faithfulness of the explanation change? Scores are compared by word, not
by token, so that the tokenizers may differ.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.intervals import Interval, bootstrap_mean
from tokenlight.data.ranks import rank_correlation
from tokenlight.data.true_label import name_label
from tokenlight.errors import BadInput, join_first
from tokenlight.errors.arguments import Seed, check_fields, check_items, checked
from tokenlight.evaluation.comparison import ChangedText, Comparison
from tokenlight.evaluation.evaluate import evaluate_attributions
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining.default_method import AUTO_METHOD, is_auto
from tokenlight.files.tables import Example

FOCUS_CHANGE_THRESHOLD = 0.9  # a text with a lower rank correlation is listed
MIN_LISTED_TEXTS = 5
MAX_LISTED_FLIPS = 20
NUM_LISTED_WORDS = 3
MAX_LISTED_LABELS = 5  # in a message


@dataclass(frozen=True)
class ComparedModel:
    """One side of a comparison.

    Args:
        explainer: The model.
        prompt: The prompt around each text, with ``{text}`` in its place.
    """

    explainer: Explainer
    prompt: str = "{text}"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prompt.count("{text}") != 1:
            raise BadInput(
                f"The prompt {self.prompt!r} is not valid. It must contain {{text}} exactly once.",
                code="prompt-without-text",
            )

    def explain_texts(self, texts: Sequence[str], **options: Any) -> list[Attribution]:
        """Explain each text inside the prompt."""
        prompts = [self.prompt.replace("{text}", text) for text in texts]
        return list(self.explainer.explain(prompts, **options))

    def word_scores(self, text: str, attribution: Attribution) -> np.ndarray:
        """Sum the token scores of each word of the text, without those of the prompt."""
        text_start = self.prompt.index("{text}")
        word_starts = np.array([match.start() for match in re.finditer(r"\S+", text)])
        sums = np.zeros(len(word_starts))
        for span, score in zip(attribution.row.spans, attribution.scores, strict=True):
            if span is None:
                continue
            start = span[0] - text_start
            end = span[1] - text_start
            if start >= 0 and end <= len(text):
                # The word of the token's last character: a token may begin with a blank.
                word = int(np.searchsorted(word_starts, end - 1, side="right")) - 1
                sums[max(word, 0)] += score
        return sums


@checked
def compare(
    before: ComparedModel,
    after: ComparedModel,
    examples: Sequence[Example],
    *,
    method: MethodLike = AUTO_METHOD,
    seed: Seed = 0,
    long: str = "truncate",
) -> Comparison:
    """Explain every text with both models, for the class that model A predicts, and compare.

    Args:
        before: Model A.
        after: Model B, with the same labels.
        examples: The texts.
        method: The method for both; by default that of model A.
        seed: Seed of the method and of the intervals.
        long: What to do with a text that is too long: ``truncate`` or ``error``.

    Returns:
        The changes of predictions, focus and faithfulness.

    Raises:
        BadInput: The labels of the models differ, no true label is one of them, or no example is a plain
            text with words.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.evaluation.compare import ComparedModel, compare
        >>> from tokenlight.files.tables import Example
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> bare = ComparedModel(explainer)
        >>> prompted = ComparedModel(explainer, prompt="A review: {text}")
        >>> compare(bare, prompted, [Example("A warm and funny film.")], method="attcat").num_texts
        1
    """
    kept_examples, omitted = _select_examples(examples)
    texts = [str(example.text) for example in kept_examples]
    _check_same_labels(before.explainer.labels, after.explainer.labels)
    _check_true_labels(before.explainer, kept_examples)
    if is_auto(method):  # both sides use one method
        method = before.explainer.get_default_method()
    options: dict[str, Any] = {"method": [method], "seed": seed, "long": long}
    # B explains the class that A predicts, so that the scores of both are for the same class.
    attributions_before = before.explain_texts(texts, **options)
    targets = [attribution.prediction.index for attribution in attributions_before]
    attributions_after = after.explain_texts(texts, target=targets, **options)

    # Compare predictions, focus and faithfulness.
    pairs = list(zip(attributions_before, attributions_after, strict=True))
    is_flipped = [old.prediction.index != new.prediction.index for old, new in pairs]
    correlations = _correlate_words(before, after, texts, pairs)
    aopc_before, aopc_after = _measure_aopc_pairs(before, after, pairs)
    aopc_change = [new - old for old, new in zip(aopc_before, aopc_after, strict=True)]
    accuracies = _measure_accuracies(kept_examples, pairs, seed)
    # Describe the texts that changed most.
    most_changed = []
    shown: list[Attribution] = []
    for i in _select_most_changed(is_flipped, correlations):
        changed_text = _describe_changed_text(kept_examples[i], *pairs[i], correlations[i])
        most_changed.append(changed_text)
        shown += pairs[i]
    return Comparison(
        attributions_before[0].method,
        len(texts),
        omitted,
        flip_rate=bootstrap_mean(is_flipped, seed=seed),
        rank_correlation=bootstrap_mean([*correlations.values()], seed=seed),
        aopc_before=bootstrap_mean(aopc_before, seed=seed),
        aopc_after=bootstrap_mean(aopc_after, seed=seed),
        aopc_change=bootstrap_mean(aopc_change, seed=seed),
        most_changed=tuple(most_changed),
        attributions=tuple(shown),
        models=_name_sides(before, after),
        **accuracies,
    )


def _name_sides(before: ComparedModel, after: ComparedModel) -> tuple[str, str]:
    """Return the names of both models, with precision and prompt where these differ."""
    sides = (before, after)
    names = [side.explainer.name for side in sides]
    dtypes = [str(side.explainer.runner.model.dtype).removeprefix("torch.") for side in sides]
    if dtypes[0] != dtypes[1]:
        names = [f"{name}, {dtype}" for name, dtype in zip(names, dtypes, strict=True)]
    if before.prompt != after.prompt:
        prompts = [f"prompt {side.prompt!r}" for side in sides]
        names = [f"{name}, {prompt}" for name, prompt in zip(names, prompts, strict=True)]
    return names[0], names[1]


def _select_examples(examples: Sequence[Example]) -> tuple[list[Example], tuple[str, ...]]:
    """Return the examples whose texts have words, and the locations of the others."""
    check_items("examples", examples, Example)
    selected_examples = []
    omitted = []
    for index, example in enumerate(examples):
        if not isinstance(example.text, str):
            raise BadInput(
                "A comparison needs plain texts, but got a pair or question. Give plain texts.",
                code="compare-plain-texts",
            )
        if str(example.text).strip():
            selected_examples.append(example)
        else:
            omitted.append(example.location or f"text {index} (counted from 0)")
    if not selected_examples:
        raise BadInput(
            f"None of the {len(examples)} texts contains a word. Give texts with words.",
            code="compare-empty-texts",
        )
    return selected_examples, tuple(omitted)


def _check_same_labels(labels_before: Sequence[str], labels_after: Sequence[str]) -> None:
    if labels_before != labels_after:
        raise BadInput(
            f"The two models have different labels ({', '.join(labels_before) or 'none'}; "
            f"{', '.join(labels_after) or 'none'}), so their predictions cannot be compared. Give two "
            "classifiers with the same labels.",
            code="different-labels",
        )


def has_known_label(explainer: Explainer, examples: Sequence[Example]) -> bool:
    """Return whether a true label is one of the model's, or there is none to compare with a prediction."""
    head = explainer.runner.head
    labels = [example.label for example in examples if example.label is not None]
    if head.is_language_model or not labels:
        return True
    return any(name_label(label, head.labels) in head.labels for label in labels)


def _check_true_labels(explainer: Explainer, examples: Sequence[Example]) -> None:
    """Refuse labels that no prediction can equal: both accuracies would be 0.

    Raises:
        BadInput: There are true labels, and the models have none of them.
    """
    if has_known_label(explainer, examples):
        return
    unknown = sorted({str(example.label) for example in examples if example.label is not None})
    raise BadInput(
        f"No true label is one of the models': the texts have {join_first(unknown, MAX_LISTED_LABELS)}, but "
        f"the models predict {join_first(explainer.labels, MAX_LISTED_LABELS)}. Name the labels as the "
        "models do, or leave them out.",
        code="no-label-of-the-model",
    )


def _correlate_words(
    before: ComparedModel,
    after: ComparedModel,
    texts: Sequence[str],
    pairs: Sequence[tuple[Attribution, Attribution]],
) -> dict[int, float]:
    """Return the rank correlation of the word scores, by the index of the text."""
    correlations = {}
    for i, (text, (old, new)) in enumerate(zip(texts, pairs, strict=True)):
        # A text whose words all have the same score on one side has no correlation.
        with suppress(BadInput):
            correlations[i] = rank_correlation(
                before.word_scores(text, old), after.word_scores(text, new), "spearman"
            )
    return correlations


def _measure_aopc_pairs(
    before: ComparedModel,
    after: ComparedModel,
    pairs: Sequence[tuple[Attribution, Attribution]],
) -> tuple[list[float], list[float]]:
    """Return the AOPC of both sides, for the texts that both could measure."""
    old_rows = evaluate_attributions(before.explainer, [old for old, _ in pairs], "aopc").rows
    new_rows = evaluate_attributions(after.explainer, [new for _, new in pairs], "aopc").rows
    aopc_before = []
    aopc_after = []
    for old_row, new_row in zip(old_rows, new_rows, strict=True):
        if old_row["aopc"] is not None and new_row["aopc"] is not None:
            aopc_before.append(old_row["aopc"])
            aopc_after.append(new_row["aopc"])
    return aopc_before, aopc_after


def _measure_accuracies(
    examples: Sequence[Example], pairs: Sequence[tuple[Attribution, Attribution]], seed: int
) -> dict[str, Interval]:
    """Return the accuracy of A, of B, and their difference; nothing without true labels."""
    right_before: list[float] = []
    right_after: list[float] = []
    for example, (old, new) in zip(examples, pairs, strict=True):
        true_label = name_label(example.label, old.prediction.labels)
        if true_label is not None:
            right_before.append(float(old.prediction.label == true_label))
            right_after.append(float(new.prediction.label == true_label))
    if not right_before:
        return {}
    change = [new - old for old, new in zip(right_before, right_after, strict=True)]
    return {
        "accuracy_before": bootstrap_mean(right_before, seed=seed),
        "accuracy_after": bootstrap_mean(right_after, seed=seed),
        "accuracy_change": bootstrap_mean(change, seed=seed),
    }


def _select_most_changed(is_flipped: Sequence[bool], correlations: dict[int, float]) -> list[int]:
    """Return the texts to list: changed predictions first, then the largest changes of focus."""
    changed = []
    for i, correlation in correlations.items():
        if is_flipped[i] or correlation < FOCUS_CHANGE_THRESHOLD:
            changed.append(i)
    changed.sort(key=lambda i: (not is_flipped[i], correlations[i]))
    num_listed = max(MIN_LISTED_TEXTS, min(sum(is_flipped), MAX_LISTED_FLIPS))
    return changed[:num_listed]


def _describe_changed_text(
    example: Example, before: Attribution, after: Attribution, correlation: float
) -> ChangedText:
    return ChangedText(
        correlation,
        str(example.text),
        _describe_side(before),
        _describe_side(after),
        location=example.location,
        id=str(example.extra_columns.get("id", "")),
        label=name_label(example.label, before.prediction.labels),
    )


def _describe_side(attribution: Attribution) -> str:
    """Return the prediction with its strongest words."""
    strongest = sorted(attribution.words(), key=lambda word: -abs(word[1]))[:NUM_LISTED_WORDS]
    words = ", ".join(f"{word.strip()} {score:+.2f}" for word, score in strongest)
    return f"{attribution.prediction.label}: {words}"
