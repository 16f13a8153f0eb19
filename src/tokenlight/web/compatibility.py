"""Whether a served model can run again what a saved explanation describes.

Anybody can write a file with the name of a served model in it, so the name proves nothing.
"""

from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.web.models import ServedModel


def can_read(attribution: Attribution, served_model: ServedModel) -> bool:
    """Return whether the served model can run the row of an attribution and has its target.

    Args:
        attribution: An explanation, perhaps from a file.
        served_model: The model that is asked to run it.
    """
    if not _can_read_row(attribution.row, served_model):
        return False
    is_classifier = served_model.task == "classification"
    if is_classifier and list(attribution.prediction.labels) != served_model.labels:
        return False
    return _has_target(attribution.target, len(attribution.row), served_model)


def _can_read_row(row: TokenRow, served_model: ServedModel) -> bool:
    """Return whether a row is of the model's kind, and its ids, length and token types within the model's."""
    explainer = served_model.explainer
    vocab_size = explainer.runner.vocab_size
    has_source = row.source_length is not None
    if has_source != explainer.runner.generates_from_source:
        return False
    if max(row.ids) >= vocab_size:
        return False
    if explainer.max_tokens and len(row) > explainer.max_tokens:
        return False
    if not _has_valid_token_types(row, served_model):
        return False
    # No served head reads the output at one token or compares with a vector. An image of a file is shown,
    # but not run again.
    has_position = row.target_position is not None or bool(row.target_positions)
    return not has_position and row.reference_embedding is None and row.image is None


def _has_valid_token_types(row: TokenRow, served_model: ServedModel) -> bool:
    runner = served_model.explainer.runner
    config: Any = runner.model.config.get_text_config()
    num_token_types = getattr(config, "type_vocab_size", None) or runner.vocab_size
    return all(0 <= token_type < num_token_types for token_type in row.token_type_ids or ())


def _has_target(target: ResolvedTarget, num_tokens: int, served_model: ServedModel) -> bool:
    """Return whether the indices of a target are within the model's output."""
    if served_model.task == "span":
        kinds: tuple[str, ...] = ("span",)
        output_shape: tuple[int, ...] = (num_tokens, 2)
    else:
        kinds = ("class", "contrast", "token")
        output_shape = (len(served_model.explainer.runner.head.labels),)
    if target.kind not in kinds:
        return False
    for index, _ in target.terms:
        if len(index) != len(output_shape):
            return False
        if any(i >= size for i, size in zip(index, output_shape, strict=True)):
            return False
    return True
