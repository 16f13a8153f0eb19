"""Read-out: which tokens the head of a model reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tokenlight.capture.transfer import Fetched
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import NotFinite


@dataclass(frozen=True, eq=False)
class Readout:
    """Which tokens the head reads: where the gradient at the last hidden state is not zero.

    ``weights``: ``batch token``, equal over the rows that are read, summing to one. ``single``:
    ``batch``, true where one token alone is read ([CLS], the last token, a span's start).
    """

    weights: Tensor
    single: Tensor

    @property
    def own(self) -> Tensor:
        """``batch token``: the one token that is read, where there is only one."""
        return (self.weights > 0) & self.single[:, None]


def read_somewhere(count: Fetched, targets: Sequence[ResolvedTarget]) -> None:
    """Refuse targets of which the head reads no token at all."""
    unread = np.flatnonzero(count.arrived() == 0)
    if len(unread):
        raise NotFinite(
            f"the target {targets[unread[0]].name!r} has gradient zero at every token of text "
            f"{unread[0]} of the batch, so the token the head reads cannot be found; the head may be "
            "saturated or dead for this text."
        )
