"""The masking of BERT: of the chosen tokens 80 % become [MASK], 10 % a random piece, 10 % stay.

:func:`mask_ordinary_tokens` chooses each token with the same probability. :class:`FixedCountMasker`
chooses equally many tokens in every row, so that shapes are constant and the encoder can be compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

MASKED_CUT = 0.8
UNCHANGED_CUT = 0.9


class MaskedTokens(NamedTuple):
    """Rows whose chosen tokens are to be predicted.

    Attributes:
        input_ids: Masked token ids, ``batch token``.
        positions: Positions of the chosen tokens.
        labels: The tokens that were there.
    """

    input_ids: Tensor
    positions: Tensor
    labels: Tensor


def mask_ordinary_tokens(
    ids: Tensor,
    share: float,
    vocabulary_size: int,
    generator: torch.Generator,
    *,
    mask_id: int,
    first_ordinary_id: int,
) -> MaskedTokens:
    """Choose each token with probability ``share``, and mask the chosen ones.

    Args:
        ids: Token ids, ``batch token``.
        share: Probability that a token is chosen.
        vocabulary_size: Number of pieces.
        generator: Source of the random choices, on the device of ``ids``.
        mask_id: Id of [MASK].
        first_ordinary_id: Smallest id that is neither special nor unknown; smaller ones are never chosen.

    Returns:
        Masked ids; positions and labels are ``chosen``, and positions count through the flattened batch.
    """
    draws = torch.rand(ids.shape, generator=generator, device=ids.device)
    is_chosen = (draws < share) & (ids >= first_ordinary_id)
    is_masked = is_chosen & (draws < MASKED_CUT * share)
    is_replaced = is_chosen & (draws >= UNCHANGED_CUT * share)
    random_ids = torch.randint(
        first_ordinary_id, vocabulary_size, ids.shape, generator=generator, device=ids.device
    )
    masked_ids = torch.where(is_masked, mask_id, ids)
    masked_ids = torch.where(is_replaced, random_ids, masked_ids)
    positions = is_chosen.flatten().nonzero().squeeze(1)
    return MaskedTokens(masked_ids, positions, ids.flatten()[positions])


class FixedCountMasker:
    """Mask equally many tokens in every row; special tokens are never chosen.

    Args:
        tokenizer: Names [MASK] and the special tokens.
        share: Share of the tokens of a row that is chosen.
        generator: Source of the random choices, on the device of the ids to be masked.
    """

    def __init__(self, tokenizer: Any, share: float, generator: torch.Generator) -> None:
        self.share = share
        self.generator = generator
        self.mask_id = tokenizer.mask_token_id
        self.vocabulary_size = len(tokenizer)
        is_special = torch.zeros(self.vocabulary_size, dtype=torch.bool)
        is_special[tokenizer.all_special_ids] = True
        self.is_special = is_special.to(generator.device)

    def __call__(self, ids: Tensor) -> MaskedTokens:
        """Mask ``ids`` (``batch token``); positions and labels are ``batch chosen``."""
        random_options = {"generator": self.generator, "device": ids.device}
        draws = torch.rand(ids.shape, **random_options).masked_fill(self.is_special[ids], 2.0)
        num_chosen = round(self.share * ids.shape[1])
        positions = draws.argsort(dim=1)[:, :num_chosen]
        labels = ids.gather(1, positions)
        draws = torch.rand(positions.shape, **random_options)
        random_ids = torch.randint(self.vocabulary_size, positions.shape, **random_options)
        replaced_or_same = torch.where(draws < UNCHANGED_CUT, random_ids, labels)
        replacements = torch.where(draws < MASKED_CUT, self.mask_id, replaced_or_same)
        return MaskedTokens(ids.scatter(1, positions, replacements), positions, labels)
