"""Attention maps, their gradients, and means of both over heads, which is what most methods read."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from tokenlight.capture.transfer import KEPT, Widened, all_widened

if TYPE_CHECKING:
    from tokenlight.capture.tape import Recording


class Maps:
    """A^1 … A^L of a recording, each ``batch head query key``, and with ``slopes`` the gradients ∂y/∂A^l for
    one target, zero at padding on both axes. Half precision is handed out in float32.

    ``slopes``: gradients at the maps, or, of maps that are not kept, what arrived at their products with the
    values, of which a rewritten gradient leaves the map its ``share``.
    """

    def __init__(self, recording: "Recording", slopes: list[Tensor] | None, share: float) -> None:
        self._recording, self._slopes, self._share = recording, slopes, share
        self._padding: Tensor | None = None
        if recording.padded:  # a padded key has attention 0 but not gradient 0
            real = recording.real.to(recording.logits.device)
            self._padding = ~(real[:, None, :, None] & real[:, None, None, :])
        # Nothing here holds this object, which would hold its graph until Python looks for cycles.
        slope = partial(_slope, recording, share, self._padding)
        made_of, in_turn = recording.unkept or recording.attention, bool(recording.unkept)
        self.attention = all_widened(made_of, recording.laid, in_turn=in_turn)
        self.gradient = all_widened(slopes or (), slope, in_turn=in_turn)
        self._means: dict[tuple[int, int], Tensor] = {}

    def mean_attention(self) -> Sequence[Tensor]:
        """Means over heads of A^l, each ``batch query key``."""
        return self._each(0)

    def mean_product(self) -> Sequence[Tensor]:
        """Of A^l ⊙ ∂y/∂A^l."""
        return self._each(1)

    def positive_product(self) -> Sequence[Tensor]:
        """Of (A^l ⊙ ∂y/∂A^l)⁺, which is A^l ⊙ (∂y/∂A^l)⁺: attention is never negative."""
        return self._each(2)

    def _each(self, kind: int) -> Sequence[Tensor]:
        blocks = range(len(self.attention))
        return Widened(blocks, lambda block, _: self._mean(kind, block), blocks)

    def _mean(self, kind: int, block: int) -> Tensor:
        if (kind, block) in self._means:
            return self._means[kind, block]
        found = self._by_kernel(block)
        if not found:
            maps = self.attention[block]
            maps = maps * self.gradient[block] if kind else maps
            found = {kind: (maps.clamp_(min=0) if kind == 2 else maps).mean(dim=1)}
        if 12 * found[kind].numel() * len(self.attention) <= KEPT:
            self._means |= {(kind, block): mean for kind, mean in found.items()}
        return found[kind]

    def _by_kernel(self, block: int) -> dict[int, Tensor]:
        """All three at once, without the map; none where no kernel can."""
        if not self._recording.unkept or self._recording.parts is not None:
            return {}
        arrived = None if self._slopes is None else self._slopes[block]
        found = self._recording.unkept[block].head_means(arrived)
        if found is None:
            return {}
        products = found[1:]
        if self._share != 1:
            products *= self._share
        if self._padding is not None:
            products.masked_fill_(self._padding[:, 0], 0.0)
        return dict(enumerate(found))


def _slope(
    recording: "Recording", share: float, padding: Tensor | None, number: int, gradient: Tensor
) -> Tensor:
    if recording.unkept:
        gradient = share * recording.unkept[number].slope(gradient)
    found = recording.laid(number, gradient)
    return found if padding is None else found.masked_fill(padding, 0.0)
