"""Import explanations made with other libraries (captum, shap, inseq, plain arrays) as Attributions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.head import Head
from tokenlight.data.target import TargetLike
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import BadInput, short_repr
from tokenlight.errors.arguments import check_items, checked
from tokenlight.explainer import Explainer

IMPORTED_NOTES = ("made elsewhere",)
NUM_SHOWN_TOKENS = 12  # of a text in a message


@checked
def from_arrays(  # noqa: PLR0913 - one keyword per recorded fact
    scores: Any,
    ids: Any,
    logits: Any,
    *,
    target: int | str | None = None,
    labels: Sequence[str] | None = None,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    special: Sequence[bool | int] | None = None,
    pieces: Sequence[str] | None = None,
    method: str = "elsewhere",
    model: str = "",
) -> Attribution:
    """Make an Attribution of the scores, token ids and class logits of one text.

    Args:
        scores: One number per token. A trailing hidden dimension (captum's embedding attributions) is summed.
        ids: The token ids.
        logits: One number per class.
        target: The class that the scores explain; by default the predicted one.
        labels: Names of the classes.
        attention_mask: 1 for tokens that the model attended to, 0 for others.
        token_type_ids: The segment of each token.
        special: Which tokens are special, such as [CLS] and [SEP]. They are never removed when faithfulness
            is measured.
        pieces: The tokens as text.
        method: Name of the method, for tables.
        model: Name of the model, for tables.

    Returns:
        An explanation that can be shown, saved and measured.

    Raises:
        BadInput: Lengths do not match, there is more than one row, or a value is not a finite number.

    Example:
        >>> from tokenlight import Attribution
        >>> Attribution.from_arrays([0.5, 0.1], [4, 5], [0.2, 0.8]).target.name
        'LABEL_1'
    """
    # Read and check what describes the text and the model's outputs.
    row = _make_row(ids, attention_mask, token_type_ids)
    class_logits = _make_class_logits(logits)
    if isinstance(target, str) and target == "all":
        raise BadInput(
            "target='all' stands for every class, but these scores explain one. Name that class.",
            code="scores-for-all-classes",
        )
    _check_length("labels", labels, len(class_logits))
    _check_length("special", special, len(row))
    _check_length("pieces", pieces, len(row))
    if special is not None:
        row = replace(row, special_tokens_mask=tuple(map(bool, special)))
    if pieces is not None:
        row = replace(row, pieces=tuple(pieces))
    _check_no_padding(row)
    # Without names, labels are called as transformers calls them.
    label_names = tuple(f"LABEL_{i}" for i in range(len(class_logits)))
    if labels is not None:
        check_items("labels", labels, str)
        label_names = tuple(labels)
    head = Head("text-classification", label_names)
    if target is None:
        target = "predicted"
    resolved = head.resolve(target, class_logits, row)[0]
    return Attribution(
        row=row,
        scores=_to_token_scores(scores, row, resolved.index or 0),
        method=method,
        target=resolved,
        prediction=head.predict(class_logits, row),
        logits=class_logits,
        model=model,
        notes=IMPORTED_NOTES,
    )


@checked
def import_scores(
    explainer: Explainer,
    text: Any,
    scores: Any,
    *,
    target: TargetLike = "predicted",
    method: str = "elsewhere",
) -> Attribution:
    """Make an Attribution of this explainer's model from scores made elsewhere.

    Args:
        explainer: The model that the scores explain.
        text: The input.
        scores: One number per token, with or without special tokens; captum's attributions of shape
            ``token hidden``; a shap Explanation of one text; or an inseq attribution.
        target: The target that the scores explain.
        method: Name of the method, for tables.

    Returns:
        An explanation that can be shown, saved and measured.

    Raises:
        BadInput: The scores do not match the tokens of the text, or there is more than one text or target.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.evaluation.external import import_scores
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> import_scores(explainer, "good film", [0.9, 0.1], method="by_hand").method
        'by_hand'
    """
    # A random explanation has the tokens, the target and the prediction; only its scores are replaced.
    explained = explainer.explain(text, method="random", target=target, progress=False)
    if not isinstance(explained, Attribution):
        raise BadInput(
            "Several texts or targets were given. Import the scores of one text and one target at a time.",
            code="import-one-text",
        )
    token_scores = _to_token_scores(scores, explained.row, explained.target.index or 0)
    facts: dict[str, Any] = {"method": method, "options": {}, "notes": IMPORTED_NOTES}
    imported: Attribution = replace(explained, scores=token_scores, **facts)
    return imported


def _make_row(ids: Any, attention_mask: Any, token_type_ids: Any) -> TokenRow:
    """Return the single row of the given arrays."""
    arrays = []
    for values in (ids, attention_mask, token_type_ids):
        arrays.append(None if values is None else np.atleast_2d(_to_array(values)))
    row: TokenRow = _require_single_row("ids", Tokens.from_ids(*arrays).rows)
    return row


def _make_class_logits(logits: Any) -> np.ndarray:
    row = _require_single_row("logits", np.atleast_2d(_to_array(logits)))
    class_logits: np.ndarray = row.reshape(-1).astype(float)
    if not len(class_logits) or not np.isfinite(class_logits).all():
        raise BadInput(
            "The logits are empty, or one is NaN or infinity. Give one number per class.",
            code="logits-not-finite",
        )
    return class_logits


def _require_single_row(name: str, rows: Any) -> Any:
    if len(rows) != 1:
        raise BadInput(
            f"{name} have {len(rows)} rows, but an Attribution explains one text. Call this for each text "
            "with its own row.",
            code="several-rows",
        )
    return rows[0]


def _check_length(name: str, values: Sequence[Any] | None, length: int) -> None:
    if values is not None and len(values) != length:
        raise BadInput(
            f"{name} has {len(values)} entries. Give {length}.", code="wrong-number-of-entries"
        )


def _check_no_padding(row: TokenRow) -> None:
    """Refuse masked tokens at an end, unless they are special tokens masked on purpose."""
    is_padding = []
    for is_attended, is_special in zip(row.attention_mask, row.special_tokens_mask, strict=True):
        is_padding.append(not is_attended and not is_special)
    if is_padding[0] or is_padding[-1]:
        raise BadInput(
            f"attention_mask masks {sum(is_padding)} of {len(row)} tokens up to an end of the text, which is "
            "padding, and padding is not explained. Remove it from ids, scores and mask. Name special tokens "
            "that are masked on purpose with special=….",
            code="padding-in-explanation",
        )


def _to_token_scores(scores: Any, row: TokenRow, class_index: int) -> np.ndarray:
    """Return one number per token from the output formats of other libraries."""
    is_shap = hasattr(scores, "values") and hasattr(scores, "base_values")
    values = _to_array(_unwrap_scores(scores)).astype(float)
    # Remove batch dimensions of size one.
    while values.ndim > 1 and values.shape[0] == 1:
        values = values[0]
    if values.ndim == 2:
        # shap has one column per class, captum one per hidden feature.
        values = values[:, class_index] if is_shap else values.sum(axis=1)
    if values.ndim == 1 and len(values) != len(row):
        return _fill_special_tokens(values, row)
    return values


def _unwrap_scores(scores: Any) -> Any:
    """Return the array inside a shap Explanation or an inseq attribution."""
    if hasattr(scores, "values") and hasattr(scores, "base_values"):
        scores = scores.values
    for name in ("source_attributions", "target_attributions"):
        if getattr(scores, name, None) is not None:
            return getattr(scores, name)
    return scores


def _fill_special_tokens(values: np.ndarray, row: TokenRow) -> np.ndarray:
    """Give special tokens a score of zero, if there is one score for each of the other tokens."""
    word_positions = np.flatnonzero(~np.array(row.special_tokens_mask, dtype=bool))
    if len(values) != len(word_positions):
        raise BadInput(
            f"{len(values)} scores were given, but the text has {len(row)} tokens ({len(word_positions)} "
            f"without special tokens): {' '.join(row.pieces[:NUM_SHOWN_TOKENS])} …. Give one score per "
            "token.",
            code="wrong-number-of-scores",
        )
    filled = np.zeros(len(row))
    filled[word_positions] = values
    return filled


def _to_array(values: Any) -> np.ndarray:
    """Convert tensors, lists and arrays to an array of numbers."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # numpy has no bfloat16.
        if values.is_floating_point():
            values = values.double()
    with BadInput.reraise_as(
        "The values cannot be read as an array: ", ValueError, code="no-array"
    ):
        array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise BadInput(
            f"{short_repr(values)} is not numeric. Give a list or an array of numbers.",
            code="no-numbers",
        )
    return array
