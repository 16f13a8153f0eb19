"""Postprocessing: functions from an Attribution to a new one.

Each adds its name to ``steps`` and leaves the original as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import group_by_word
from tokenlight.errors import BadInput, UnknownName
from tokenlight.errors.arguments import checked

_REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "sum": lambda values: float(values.sum()),
    "mean": lambda values: float(values.mean()),
    # The value of largest magnitude with its sign: a plain maximum would lose all negative scores.
    "max": lambda values: float(values[np.abs(values).argmax()]),
}


@checked
def absolute(attribution: Attribution) -> Attribution:
    """Take the magnitude of every score: how much a token matters, no longer for or against.

    Args:
        attribution: The explanation.

    Returns:
        A new explanation with the step ``absolute``.

    Example:
        >>> from tokenlight import Attribution
        >>> from tokenlight.postprocess import absolute
        >>> attribution = Attribution.from_arrays([0.2, -0.6], [5, 6], [0.2, 1.3])
        >>> absolute(attribution).scores.round(2).tolist()
        [0.2, 0.6]
    """
    return _apply_step(attribution, "absolute", np.abs, transform_errors=np.abs)


@checked
def l1_normalise(attribution: Attribution) -> Attribution:
    r"""Divide all scores by :math:`\sum_i |s_i|`; scores that are all zero stay zero.

    Args:
        attribution: The explanation.

    Returns:
        A new explanation with the step ``l1_normalise``.

    Example:
        >>> from tokenlight import Attribution
        >>> from tokenlight.postprocess import l1_normalise
        >>> attribution = Attribution.from_arrays([0.2, -0.6], [5, 6], [0.2, 1.3])
        >>> l1_normalise(attribution).scores.round(2).tolist()
        [0.25, -0.75]
    """
    # The terms of each layer are divided by the same number, so that they still sum to the scores.
    total = float(np.abs(attribution.scores).sum()) or 1.0

    def divide(values: np.ndarray) -> np.ndarray:
        return values / total

    return _apply_step(attribution, "l1_normalise", divide, transform_errors=divide)


@checked
def max_normalise(attribution: Attribution) -> Attribution:
    r"""Divide all scores by :math:`\max_i |s_i|`, so that the strongest token is ±1.

    Args:
        attribution: The explanation.

    Returns:
        A new explanation with the step ``max_normalise``.

    Example:
        >>> from tokenlight import Attribution
        >>> from tokenlight.postprocess import max_normalise
        >>> attribution = Attribution.from_arrays([0.5, -1.0, 2.0], [5, 6, 7], [0.2, 1.3])
        >>> max_normalise(attribution).scores.tolist()
        [0.25, -0.5, 1.0]
    """
    largest = float(np.abs(attribution.scores).max()) or 1.0

    def divide(values: np.ndarray) -> np.ndarray:
        return values / largest

    return _apply_step(attribution, "max_normalise", divide, transform_errors=divide)


@checked
def without_special(attribution: Attribution) -> Attribution:
    """Set the scores of special tokens to zero; the tokens stay.

    Args:
        attribution: The explanation.

    Returns:
        A new explanation with the step ``without_special``.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.postprocess import without_special
        >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Never dull.", "gae")
        >>> scores = without_special(attribution).scores
        >>> float(scores[0]), float(scores[-1])  # [CLS] and [SEP]
        (0.0, 0.0)
    """
    is_regular = ~np.array(attribution.row.special_tokens_mask)

    def keep_regular(values: np.ndarray) -> np.ndarray:
        return np.where(is_regular, values, 0.0)

    return _apply_step(attribution, "without_special", keep_regular, transform_errors=keep_regular)


@checked
def difference(attribution: Attribution, reference: Attribution) -> Attribution:
    """Subtract ``reference``, both first divided by their L1 sum (Mask-LRP, figure 6).

    Args:
        attribution: The explanation.
        reference: Another explanation of the same text.

    Returns:
        A new explanation with the step ``difference`` and without layers.

    Raises:
        BadInput: The two explain different texts.

    Example:
        >>> from tokenlight import Attribution
        >>> from tokenlight.postprocess import difference
        >>> attribution = Attribution.from_arrays([0.25, 0.75], [5, 6], [0.2, 1.3])
        >>> reference = Attribution.from_arrays([1.0, 1.0], [5, 6], [0.2, 1.3])
        >>> difference(attribution, reference).scores.tolist()
        [-0.25, 0.25]
    """
    if attribution.row.fingerprint != reference.row.fingerprint:
        raise BadInput(
            "A difference needs two explanations of one text, but these differ in their tokens. Explain "
            "the same text twice.",
            code="difference-of-texts",
        )
    scaled = l1_normalise(attribution)
    scaled_reference = l1_normalise(reference)
    return replace(
        attribution,
        scores=scaled.scores - scaled_reference.scores,
        standard_errors=add_standard_errors(
            scaled.standard_errors, scaled_reference.standard_errors
        ),
        layers=None,
        method=f"{attribution.method} − {reference.method}",
        options={},
        steps=(*attribution.steps, "difference"),
    )


@checked
def merge_words(attribution: Attribution, *, reduction: str = "sum") -> Attribution:
    """Merge the tokens of each word into one score.

    Args:
        attribution: The explanation.
        reduction: ``"sum"``, ``"mean"`` or ``"max"`` (the score of largest magnitude, with its sign).

    Returns:
        A new explanation with one token per word. Patches of an image stay as they are. How the errors of
        a word's tokens hang together is not known: the standard error of their sum or mean is the largest
        that it can be.

    Raises:
        UnknownName: There is no such reduction.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.postprocess import merge_words
        >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("An unforgettable film")
        >>> len(merge_words(attribution)) <= len(attribution)
        True
    """
    if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
        raise UnknownName.from_choices("way to merge words", reduction, _REDUCTIONS)
    row = attribution.row
    if row.image is not None and not row.image.token_positions:
        return attribution  # every patch stands for itself
    reduce = _REDUCTIONS[reduction]
    groups = group_by_word(row)
    merged_row = _build_merged_row(row, groups)

    def merge(values: np.ndarray) -> np.ndarray:
        return np.array([reduce(values[group]) for group in groups])

    def merge_errors(errors: np.ndarray) -> np.ndarray:
        if reduction != "max":
            return merge(errors)
        # The word has the score of one of its tokens, and the error of that token.
        magnitudes = np.abs(attribution.scores)
        return np.array([errors[group][magnitudes[group].argmax()] for group in groups])

    step = f"merge_words({reduction})"
    return _apply_step(attribution, step, merge, transform_errors=merge_errors, row=merged_row)


def _build_merged_row(row: TokenRow, groups: Sequence[Sequence[int]]) -> TokenRow:
    """Return a row with one token per word, which stands where the first token of the word stood."""
    pieces = []
    for group in groups:
        pieces.append("".join(row.pieces[position] for position in group))
    return replace(
        row.take([group[0] for group in groups]),
        pieces=tuple(pieces),
        spans=tuple(row.get_span(group) for group in groups),
        # The merged row is for display: its positions mean nothing to a model.
        target_position=None,
        reference_embedding=None,
    )


def add_standard_errors(*errors: np.ndarray | None) -> np.ndarray | None:
    """Return the standard errors of a sum or difference of independent scores.

    Args:
        *errors: ``token`` of each term; None for scores that were not sampled.

    Returns:
        The root of the sum of squares; None if no term has standard errors.
    """
    known = [term for term in errors if term is not None]
    if not known:
        return None
    return np.asarray(np.sqrt(np.square(known).sum(axis=0)))


def _apply_step(
    attribution: Attribution,
    step: str,
    transform: Callable[[np.ndarray], np.ndarray],
    *,
    transform_errors: Callable[[np.ndarray], np.ndarray],
    **changes: Any,
) -> Attribution:
    """Transform the scores, the terms of each layer in the same way, and the standard errors in theirs."""
    layers = attribution.layers
    if layers is not None:
        layers = np.array([transform(terms) for terms in layers])
    errors = attribution.standard_errors
    if errors is not None:
        errors = transform_errors(errors)
    return replace(
        attribution,
        scores=transform(attribution.scores),
        layers=layers,
        steps=(*attribution.steps, step),
        standard_errors=errors,
        **changes,
    )
