"""Embeddings of which random numbers are zero, put in the place of a text's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.entrance import Entrance
from tokenlight.capture.live import LiveModel, source_of
from tokenlight.capture.transfer import sent
from tokenlight.capture.variants import Variant


@contextmanager
def faded(
    live: LiveModel, entrance: Entrance, rows: Sequence[Variant], real: Tensor
) -> Iterator[None]:
    """Within: what passes the entrance for ``rows`` fades as each of them says. ``real``: ``batch
    token``."""
    sizes = entrance.sizes(real.shape[1], source_of(rows))
    pieces: list[Tensor] = []

    def fade(door: int, own: Tensor) -> Tensor:
        if not pieces:
            gone = np.zeros((len(rows), real.shape[1], own.shape[2]), dtype=bool)
            for number, row in enumerate(rows):
                if row.fading is not None:
                    gone[number, : len(row)] = row.fading.gone(own.shape[2])
            places = entrance.spread(sent(gone, real.device), real)
            pieces.extend(torch.split(places, sizes, dim=1))
        return own.masked_fill(pieces[door].to(own.device), 0.0)

    with entrance.open(live.model, sizes, fade):
        yield
