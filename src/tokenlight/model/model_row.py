"""ModelRow: what a batch reads of one input, whether it is a row of tokens or a perturbed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from tokenlight.data.image import PatchImage


class ModelRow(Protocol):
    """One input as a batch reads it: a :class:`TokenRow`, or a :class:`Variant` with tokens changed.

    Sequences have one entry per token, except where a name says otherwise.
    """

    def __len__(self) -> int: ...

    @property
    def ids(self) -> Sequence[int] | np.ndarray:
        """Token ids."""

    @property
    def attention_mask(self) -> Sequence[int] | np.ndarray:
        """1 at tokens that are attended to, 0 elsewhere."""

    @property
    def token_type_ids(self) -> Sequence[int] | np.ndarray | None:
        """Segment ids; None if the row has none."""

    @property
    def target_position(self) -> int | None:
        """The token at which a head is read; None for the last one."""

    @property
    def target_positions(self) -> tuple[int, ...]:
        """The tokens that are read together, where a target covers several."""

    @property
    def continuation_ids(self) -> tuple[int, ...]:
        """Ids whose prediction is read in one pass."""

    @property
    def source_length(self) -> int | None:
        """The number of tokens that an encoder reads; None if one stack reads all."""

    @property
    def reference_embedding(self) -> tuple[float, ...] | None:
        """The vector that a sentence embedding is compared with."""

    @property
    def image(self) -> PatchImage | None:
        """The image whose patches are among the tokens."""
