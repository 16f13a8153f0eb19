"""Explanations of the tokens that a model wrote after a prompt, shown as one text.

Each generated token is explained from the tokens before it, so the rows of successive explanations have
different lengths. Here they are padded to the longest one; tokens after the explained one are *unread*.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import CONTINUATION_SEGMENT


def is_continuation(attribution: Attribution) -> bool:
    """Return whether it explains a token that was written after a prompt."""
    segment_names = attribution.row.segment_names
    return bool(segment_names) and segment_names[-1] == CONTINUATION_SEGMENT


def align_continuations(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Turn explanations of successive written tokens into those of one text with several targets.

    The targets are numbered. Tokens after the explained one get score and attention 0. All other
    explanations are returned unchanged.
    """
    groups: dict[Hashable, list[Attribution]] = {}
    for attribution in attributions:
        key = _continuation_key(attribution)
        if key is not None:
            groups.setdefault(key, []).append(attribution)

    aligned = []
    for attribution in attributions:
        group = groups.get(_continuation_key(attribution), [])
        if len(group) > 1:
            longest = max(group, key=len)
            aligned.append(_pad_to_longest(attribution, longest))
        else:
            aligned.append(attribution)
    return aligned


def _continuation_key(attribution: Attribution) -> Hashable:
    """Return what explanations of one continuation by one method have in common; None for any other."""
    if attribution.target.index is None or not is_continuation(attribution):
        return None
    return (
        attribution.model,
        attribution.method,
        repr(sorted(attribution.options.items())),
        attribution.row.texts,
        attribution.row.segment_names,
    )


def _pad_to_longest(attribution: Attribution, longest: Attribution) -> Attribution:
    """Pad an explanation to the tokens of the longest one, which must begin with the same tokens."""
    num_read = len(attribution)
    if attribution.row.ids != longest.row.ids[:num_read]:
        return attribution
    num_unread = len(longest) - num_read
    is_unread = [position >= num_read for position in range(len(longest))]
    layers = attribution.layers
    if layers is not None:
        layers = np.pad(layers, ((0, 0), (0, num_unread)))
    errors = attribution.standard_errors
    if errors is not None:
        errors = np.pad(errors, (0, num_unread))
    written_segment = len(attribution.row.segment_names) - 1
    target_number = 1 + attribution.row.segments.count(written_segment)
    target_name = f"{target_number}. {attribution.target.name}"
    return replace(
        attribution,
        row=longest.row.mask_positions(is_unread),
        scores=np.pad(attribution.scores, (0, num_unread)),
        layers=layers,
        standard_errors=errors,
        target=replace(attribution.target, name=target_name),
    )


def find_unread_tokens(attribution: Attribution) -> np.ndarray:
    """Return a mask ``token``: true where a padded continuation had no token yet; else all false."""
    positions = np.arange(len(attribution))
    if not is_continuation(attribution):
        return np.zeros(len(positions), dtype=bool)
    read_positions = np.flatnonzero(attribution.row.attention_mask)
    return np.asarray(positions > read_positions.max(initial=-1))
