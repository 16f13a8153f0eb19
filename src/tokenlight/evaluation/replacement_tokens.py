"""Report which token replaces removed tokens, if it is not the one that a metric asks for."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tokenlight.errors import BadInput
from tokenlight.evaluation.ranking_stability import group_removals_by_metric
from tokenlight.explainer import Explainer
from tokenlight.metrics.base import Metric
from tokenlight.perturb.variants import ReplacementIds

# Field to key in JSON, where they differ.
_JSON_KEYS = {"pad_id": "pad", "mask_id": "mask", "pad_name": "pad_name", "mask_name": "mask_name"}


def find_replacements(explainer: Explainer) -> ReplacementIds | None:
    """Return the replacement tokens of a model, or None if it has no token that could be one."""
    with suppress(BadInput):
        return ReplacementIds.from_model(explainer.runner, explainer.tokenizer)
    return None


def replacements_to_dict(replacement_ids: ReplacementIds) -> dict[str, Any]:
    """Return JSON values; :func:`replacements_from_dict` is the inverse."""
    return {key: getattr(replacement_ids, field) for field, key in _JSON_KEYS.items()}


def replacements_from_dict(values: Mapping[str, Any]) -> ReplacementIds:
    """Rebuild from :func:`replacements_to_dict`."""
    field_names = {key: field for field, key in _JSON_KEYS.items()}
    fields = {field_names.get(key, key): value for key, value in values.items()}
    return ReplacementIds(**fields)


def list_replacement_warnings(
    metrics: Mapping[str, Metric], replacement_ids: ReplacementIds | None
) -> Iterator[str]:
    """Yield warnings about replacement tokens.

    Args:
        metrics: Metrics by key.
        replacement_ids: The replacement tokens of the model, if they are known.

    Yields:
        One sentence for each group of metrics that use another token than they ask for, then one for each
        group of metrics that therefore remove tokens in the same way.
    """
    if replacement_ids is None:
        return
    yield from _describe_replacements(metrics, replacement_ids)
    yield from _describe_equal_removals(metrics, replacement_ids)


def _describe_replacements(
    metrics: Mapping[str, Metric], replacement_ids: ReplacementIds
) -> Iterator[str]:
    keys_by_note: dict[str, list[str]] = {}
    for key, metric in metrics.items():
        perturb = getattr(metric, "perturb", "")
        # If the attention mask hides the replacement, no other token sees which one it is.
        is_hidden = getattr(metric, "masks_attention", False)
        if perturb not in ("pad", "mask") or is_hidden:
            continue
        note = replacement_ids.describe_stand_in(perturb)
        if note is not None:
            keys_by_note.setdefault(note, []).append(key)
    for note, keys in keys_by_note.items():
        yield f"{', '.join(keys)}: {note}."


def _describe_equal_removals(
    metrics: Mapping[str, Metric], replacement_ids: ReplacementIds
) -> Iterator[str]:
    for keys_by_perturb in group_removals_by_metric(metrics).values():
        keys_by_removal: dict[object, list[str]] = {}
        for perturb, key in keys_by_perturb.items():
            keys_by_removal.setdefault(replacement_ids.find_replacement(perturb), []).append(key)
        for keys in keys_by_removal.values():
            if len(keys) > 1:
                yield f"{' and '.join(keys)} remove tokens in the same way here, so they are not compared."
