"""Random partial texts: a text with a random part of its units, and where each of its tokens came from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tokenlight.data.image import OCCLUDED_ID
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import (
    CONTINUATION_SEGMENT,
    QUESTION_SEGMENT,
    Unit,
    find_removable_units,
    make_unit_mask,
)

RemovalMode = Literal["delete", "hide", "replace"]


@dataclass(frozen=True, slots=True, eq=False)
class PartialText:
    """A text without some of its units.

    Attributes:
        row: The tokens that the model reads.
        positions: Positions in ``row`` of the tokens that were kept.
        original_positions: Where the same tokens stand in the whole text.
    """

    row: TokenRow
    positions: np.ndarray
    original_positions: np.ndarray

    def move_target(self, target: ResolvedTarget) -> ResolvedTarget:
        """Return a target of the whole text for this partial text: an answer span moves with its tokens."""
        if target.kind != "span":
            return target
        terms = []
        for (position, *rest), weight in target.terms:
            index = int(np.searchsorted(self.original_positions, position))
            terms.append(((int(self.positions[index]), *rest), weight))
        return replace(target, terms=tuple(terms))


def find_kept_tokens(
    row: TokenRow, target: ResolvedTarget, *, reads_last_token: bool
) -> np.ndarray:
    """Return ``token``: true where a token is part of every partial text.

    These are special tokens and templates; the tokens that the target is read at; the question about
    documents or a context; tokens that were already generated; and the patches of an image in a prompt.

    Args:
        row: The whole text.
        target: The explained target.
        reads_last_token: Whether the model predicts from the last token, as a language model does.
    """
    is_kept = np.array(row.special_tokens_mask, dtype=bool)
    is_kept[row.required_positions] = True
    for segment, name in enumerate(row.segment_names):
        if name in (QUESTION_SEGMENT, CONTINUATION_SEGMENT):
            is_kept |= _is_in_segment(row, segment)
    if target.kind == "span":
        # The question is the first of the two texts; the answer stays as a whole.
        is_kept |= _is_in_segment(row, 0)
        answer = [position for (position, *_), _ in target.terms]
        is_kept[min(answer) : max(answer) + 1] = True
    if row.source_length is not None:
        is_kept[row.source_length :] = True
    elif reads_last_token and row.target_position is None:
        is_kept[-1] = True
    if row.image is not None and row.image.token_positions:
        is_kept[list(row.image.token_positions)] = True
    return is_kept


def _is_in_segment(row: TokenRow, segment: int) -> np.ndarray:
    return np.array([token_segment == segment for token_segment in row.segments])


def group_removable_units(row: TokenRow, unit: Unit, is_kept: np.ndarray) -> np.ndarray:
    """Return ``unit token``: true at the tokens of each unit that a partial text may lack.

    Args:
        row: The whole text.
        unit: What is removed as a whole: tokens, words, sentences or documents.
        is_kept: ``token``: true where a token stays in every partial text, see :func:`find_kept_tokens`.
    """
    return make_unit_mask(find_removable_units(row, unit, is_kept), len(row))


def draw_kept_units(
    generator: np.random.Generator, num_units: int, num_samples: int, keep_probability: float
) -> np.ndarray:
    """Draw which units each partial text keeps.

    The draw is balanced: of all samples, each unit is in ``keep_probability · num_samples``, rounded up or
    down at random, and in at least one. So no token is left without a score, and the scores of all tokens
    rest on about the same number of samples.

    Args:
        generator: The source of randomness.
        num_units: Number of units.
        num_samples: Number of partial texts.
        keep_probability: Expected share of the units that a partial text keeps.

    Returns:
        ``sample unit``: true where a unit is kept.
    """
    order = generator.permuted(np.tile(np.arange(num_samples)[:, None], num_units), axis=0)
    num_kept = np.floor(keep_probability * num_samples + generator.random(num_units))
    is_kept: np.ndarray = order < np.maximum(num_kept, 1)
    return is_kept


def make_partial_text(
    row: TokenRow, is_removed: np.ndarray, removal: RemovalMode, replacement_id: int
) -> PartialText:
    """Make the partial text that lacks some tokens.

    Args:
        row: The whole text.
        is_removed: ``token``: true where a token is removed.
        removal: ``"delete"`` closes the gap; ``"replace"`` puts ``replacement_id`` there; ``"hide"`` does
            so, too, and sets the attention mask to 0. Patches of an image are always occluded, because
            the image would lose its grid.
        replacement_id: The id of the token that takes the place of others.
    """
    kept_positions = np.flatnonzero(~is_removed)
    is_picture = row.image is not None and not row.image.token_positions
    if is_picture:
        occluded = _replace_ids(row, is_removed, OCCLUDED_ID)
        return PartialText(occluded, kept_positions, kept_positions)
    if removal == "delete":
        deleted = row.take(kept_positions.tolist())
        return PartialText(deleted, np.arange(len(kept_positions)), kept_positions)
    replaced = _replace_ids(row, is_removed, replacement_id)
    if removal == "hide":
        replaced = replaced.mask_positions(is_removed.tolist())
    return PartialText(replaced, kept_positions, kept_positions)


def _replace_ids(row: TokenRow, is_replaced: Sequence[bool] | np.ndarray, new_id: int) -> TokenRow:
    ids = np.where(is_replaced, new_id, row.ids_array)
    return replace(row, ids=tuple(ids.tolist()))
