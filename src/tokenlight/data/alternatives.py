"""The alternatives of a token: what else a language model might have written in its place.

The logit of a single token mostly says that a word of its kind must come now, which the last word of a prompt
decides. People ask another question: why this token rather than the likely others. So the number that is
explained is, by default, a *soft contrast*

.. math:: y = z_t - \\sum_j w_j z_j, \\qquad w_j = p_j / \\textstyle\\sum_i p_i

over the likeliest other tokens :math:`j`, with weights that are held constant. Its gradient is that of the
log-odds :math:`z_t - \\ln\\sum_j e^{z_j}`, so that one backward pass contrasts the token with all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokenlight.data.largest import find_largest_indices
from tokenlight.data.probabilities import softmax
from tokenlight.errors import BadTarget

DEFAULT_ALTERNATIVES = 20
MAX_ALTERNATIVES = 1 << 20
# How many alternatives are named where all tokens of the vocabulary are.
MAX_NAMED = 20
# How many of them a title lists.
NUM_IN_TITLE = 3
# The least likely tokens are left out of "all" as long as they hold less than this share of its weights:
# single precision would not show them.
NEGLIGIBLE_WEIGHT = 1e-6

# A number of tokens, "all", tokens by text or id, or None for the logit alone.
Against = int | str | Sequence[str | int] | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that an explained token is contrasted with.

    Args:
        token: Its text as it is shown.
        id: Its id, with which ``NextToken(…, against=[id])`` contrasts with it alone.
        probability: How likely the model finds it; None if that was not saved.
    """

    token: str
    id: int
    probability: float | None


def normalize_against(against: object) -> Against:
    """Return ``against`` with a list as a tuple.

    Raises:
        BadTarget: It is neither a number of tokens, "all", tokens nor None.
    """
    if against is None or (isinstance(against, str) and against):
        return against
    if isinstance(against, int) and not isinstance(against, bool):
        if 1 <= against <= MAX_ALTERNATIVES:
            return against
    elif isinstance(against, Sequence) and against and all(map(_is_token, against)):
        return tuple(against)
    raise BadTarget(
        f"against={against!r} is not valid. Give a number of tokens (1 or more), 'all', a token, a list of "
        "tokens, or None for the logit alone.",
        code="against-invalid",
    )


def _is_token(value: object) -> bool:
    """Return whether a value names a token by its text or its id."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def is_number_or_all(against: Against) -> bool:
    """Return whether the alternatives are the likeliest other tokens, not tokens that are named."""
    return isinstance(against, int) or against == "all"


def choose_alternatives(
    logits: np.ndarray, index: int, against: int | Literal["all"]
) -> tuple[list[int], list[float]]:
    """Choose the likeliest other tokens.

    Args:
        logits: ``vocab``.
        index: The token that is explained.
        against: How many, or all; tokens with a negligible probability are left out of all.

    Returns:
        Their ids, likeliest first, and their weights, which sum to 1.
    """
    # Equally likely tokens come in the order of their ids, as in a prediction.
    count = len(logits) if against == "all" else against + 1
    order = find_largest_indices(logits, count)
    others = order[order != index]
    if against != "all":
        others = others[:against]
    weights = weigh_alternatives(logits, others)
    if against == "all":
        # The sum from the least likely token up: tokens below the threshold are negligible together.
        tail_sums = np.cumsum(weights[::-1])[::-1]
        others = others[tail_sums >= NEGLIGIBLE_WEIGHT]
        weights = weigh_alternatives(logits, others)
    return others.tolist(), weights.tolist()


def weigh_alternatives(logits: np.ndarray, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the probabilities of some tokens, renormalized to sum to 1."""
    if not len(indices):
        return np.empty(0)
    return softmax(logits[np.asarray(indices)].astype(np.float64))


def subtract_terms(
    indices: Sequence[int], weights: Sequence[float]
) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return the terms that subtract weighted logits from that of a token."""
    return tuple(((index,), -weight) for index, weight in zip(indices, weights, strict=True))


def name_tokens(vocabulary: Sequence[str], index: int, others: Sequence[int]) -> tuple[str, ...]:
    """Return the texts of other tokens as they are shown next to the token ``index``.

    The space that begins a word is dropped, unless two of them would then look the same.

    Args:
        vocabulary: The text of every token, by id.
        index: The token that the others are shown with.
        others: Ids of the other tokens.
    """
    labels = [vocabulary[other] for other in others]
    stripped = [label.strip() or label for label in labels]
    seen = [vocabulary[index].strip(), *stripped]
    names = []
    for label, name in zip(labels, stripped, strict=True):
        names.append(label if seen.count(name) > 1 else name)
    return tuple(names)


def describe_alternatives(names: Sequence[str], *, is_complete: bool) -> str:
    """List the first alternatives in quotation marks.

    Args:
        names: The alternatives, likeliest first.
        is_complete: Whether these are all alternatives; otherwise they stand for the whole vocabulary.

    Example:
        >>> describe_alternatives(["the", "London", "Le", "a"], is_complete=True)
        '‘the’, ‘London’, ‘Le’ …'
    """
    listed = ", ".join(f"‘{name}’" for name in names[:NUM_IN_TITLE])
    if len(names) > NUM_IN_TITLE:
        listed += " …"
    if is_complete:
        return listed
    return f"anything else ({listed})"
