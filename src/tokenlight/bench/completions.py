"""Which prompts of a data set a language model completes as expected.

A prompt with the column ``completions`` is measured only if the most likely next token is one of these words,
or begins one. A prompt with ``counterfactuals``, other prompts that differ in one word each, also needs these
to be completed as expected, and by another token: then every word in which they differ decided.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.errors import BadInput, short_repr
from tokenlight.explainer import Explainer
from tokenlight.explaining.default_method import encode_probe_row
from tokenlight.files.tables import Example
from tokenlight.perturb.logits_stream import stream_logits

COMPLETIONS_COLUMN = "completions"
COUNTERFACTUALS_COLUMN = "counterfactuals"
COUNTERFACTUAL_COMPLETIONS_COLUMN = "counterfactual_completions"
LEFT_OUT_REASON = "the model does not complete the prompt, or a counterfactual, as expected"
# A single letter begins too many words to count as the beginning of one.
MIN_PREFIX_LENGTH = 2


@dataclass(frozen=True)
class CompletedPrompts:
    """The prompts of a data set that a model completes as expected.

    Args:
        num_prompts: Number of prompts that the model was asked to complete.
        indices: Those that it completes as expected, in the order of the data set.
    """

    num_prompts: int
    indices: tuple[int, ...]

    @property
    def num_excluded(self) -> int:
        return self.num_prompts - len(self.indices)

    def select(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples with these indices."""
        return [examples[index] for index in self.indices]


def has_completions(example: Example) -> bool:
    """Return whether an example is a prompt with expected completions."""
    return isinstance(example.text, str) and COMPLETIONS_COLUMN in example.extra_columns


def find_completed_prompts(explainer: Explainer, examples: Sequence[Example]) -> CompletedPrompts:
    """Ask a language model for the next token of every prompt, and of its counterfactuals.

    Args:
        explainer: The model with its tokenizer.
        examples: Prompts with the column ``completions``.

    Returns:
        Which prompts it completes as expected.

    Raises:
        BadInput: A column is missing, or does not hold what it should.
    """
    prompts: list[str] = []
    for example in examples:
        prompts.append(str(example.text))
        prompts.extend(text for text, _ in _read_counterfactuals(example))
    next_tokens = predict_next_tokens(explainer, prompts)
    indices = []
    for index, example in enumerate(examples):
        if _is_completed(example, next_tokens):
            indices.append(index)
    return CompletedPrompts(len(examples), tuple(indices))


def predict_next_tokens(explainer: Explainer, prompts: Iterable[str]) -> dict[str, str]:
    """Return the most likely next token of every prompt that the model reads, as text."""
    rows = {}
    for prompt in dict.fromkeys(prompts):
        row = encode_probe_row(explainer, prompt)
        if row is not None:
            rows[prompt] = row
    vocabulary = explainer.runner.head.labels
    next_tokens = {}
    for prompt, logits in zip(rows, stream_logits(explainer.runner, rows.values()), strict=True):
        next_tokens[prompt] = vocabulary[int(np.argmax(logits))]
    return next_tokens


def is_expected(token: str, completions: Iterable[str]) -> bool:
    """Return whether a token is one of the words, or the beginning of one, of two letters or more.

    Example:
        >>> from tokenlight.bench.completions import is_expected
        >>> is_expected(" Lis", ["Lisbon"]), is_expected(" L", ["Lisbon"])
        (True, False)
    """
    word = token.strip()
    for completion in completions:
        is_beginning = len(word) >= MIN_PREFIX_LENGTH and completion.startswith(word)
        if word == completion or is_beginning:
            return True
    return False


def _is_completed(example: Example, next_tokens: Mapping[str, str]) -> bool:
    """Return whether a prompt and its counterfactuals are completed as expected, and differently."""
    token = next_tokens.get(str(example.text))
    words = _check_strings(example, COMPLETIONS_COLUMN, example.extra_columns[COMPLETIONS_COLUMN])
    if token is None or not is_expected(token, words):
        return False
    for text, other_words in _read_counterfactuals(example):
        other_token = next_tokens.get(text)
        if other_token is None or other_token == token or not is_expected(other_token, other_words):
            return False
    return True


def _read_counterfactuals(example: Example) -> list[tuple[str, list[str]]]:
    """Return the counterfactuals of a prompt, each with the words that complete it."""
    columns = example.extra_columns
    if COUNTERFACTUALS_COLUMN not in columns:
        return []
    texts = _check_strings(example, COUNTERFACTUALS_COLUMN, columns[COUNTERFACTUALS_COLUMN])
    words = columns.get(COUNTERFACTUAL_COMPLETIONS_COLUMN)
    if not isinstance(words, list) or len(words) != len(texts):
        raise BadInput(
            f"In {example.location}, {COUNTERFACTUAL_COMPLETIONS_COLUMN!r} is {short_repr(words)}. Give one "
            "list of expected words per counterfactual.",
            code="counterfactual-completions-format",
        )
    pairs = []
    for text, cell in zip(texts, words, strict=True):
        pairs.append((text, _check_strings(example, COUNTERFACTUAL_COMPLETIONS_COLUMN, cell)))
    return pairs


def _check_strings(example: Example, column: str, cell: Any) -> list[str]:
    """Return a cell that holds a list of strings, or refuse it."""
    if isinstance(cell, list) and cell and all(isinstance(word, str) for word in cell):
        return cell
    raise BadInput(
        f"In {example.location}, {column!r} is {short_repr(cell)}. Give a list of strings with at least one "
        "entry.",
        code="completions-format",
    )
