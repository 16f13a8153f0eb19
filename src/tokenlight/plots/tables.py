"""Scores in a table, a column a token: a row a layer and their sum (AttCAT, figure 5), or a row a class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.plots.passages import unread

ROLLOUT = "Rollout"  # AttCAT's word for the product of a token's terms; no attention is rolled out
SUM = "Sum"


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """``values[row, column]``; ``unread[row, column]``: the token was not yet written when the row's
    was explained. ``summed``: whether the last row is the sum of the others."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    special: tuple[bool, ...]
    values: np.ndarray
    unread: np.ndarray
    summed: bool = False
    left_out: int = 0  # weak tokens left out to keep the table readable

    @property
    def scales(self) -> tuple[float, ...]:
        """Strength of the full colour, row by row: all share one so that they compare, but the sum
        has its own, or it would leave the layers pale, and so has the product, which is tiny.
        Special tokens do not count."""
        peaks = np.abs(self._own_values).max(axis=1, initial=0.0)
        alone = np.isin(self.rows, (ROLLOUT, SUM)) & self.summed
        peaks[~alone] = peaks[~alone].max(initial=0.0)
        return tuple(map(float, peaks))

    def normalised(self) -> "ScoreTable":
        """Divided by the Frobenius norm of the text's own tokens, as the paper's figure is: one
        strong separator would make every word +0.00."""
        peak = float(np.abs(self._own_values).max(initial=0.0)) or 1.0  # squares must not overflow
        norm = float(np.linalg.norm(self._own_values / peak)) or 1.0
        return replace(self, values=self.values / peak / norm)

    def without_special(self) -> "ScoreTable":
        """Only the text's own tokens."""
        return self._chosen(np.flatnonzero(~np.array(self.special, dtype=bool)), self.left_out)

    def strongest(self, most: int) -> "ScoreTable":
        """At most ``most`` columns: the tokens with the largest value in any row, in text order."""
        if len(self.columns) <= most:
            return self
        kept = np.sort(np.argsort(-np.abs(self.values).max(axis=0), kind="stable")[:most])
        return self._chosen(kept, len(self.columns) - most)

    @property
    def _own_values(self) -> np.ndarray:
        """The cells of the text's own tokens, or of all where all are special."""
        own = ~np.array(self.special, dtype=bool)
        return self.values[:, own] if own.any() else self.values

    def _chosen(self, kept: np.ndarray, left_out: int) -> "ScoreTable":
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            special=tuple(self.special[i] for i in kept),
            values=self.values[:, kept],
            unread=self.unread[:, kept],
            left_out=left_out,
        )


def layer_table(attribution: Attribution, *, rollout: bool = False) -> ScoreTable:
    """The table of an attribution that has per-layer terms; ``rollout`` puts the element-wise product
    of the layers before their sum. The paper's figure has it; it says little."""
    if attribution.layers is None:
        raise BadInput(
            f"{attribution.method} has no per-layer terms, so there is no heat map to draw; "
            "attcat and cat have them."
        )
    terms = attribution.layers
    rows = {f"L{number}": own for number, own in enumerate(terms)}
    rows |= {ROLLOUT: terms.prod(axis=0)} if rollout else {}
    rows[SUM] = terms.sum(axis=0)
    values = np.vstack(list(rows.values()))
    row, nothing = attribution.row, np.zeros(values.shape, dtype=bool)
    return ScoreTable(tuple(rows), attribution.tokens, row.special, values, nothing, summed=True)


def class_table(attributions: Sequence[Attribution]) -> ScoreTable:
    """One method's scores for several classes of one text, a row each."""
    first = attributions[0]
    return ScoreTable(
        tuple(a.target.name for a in attributions),
        first.tokens,
        first.row.special,
        np.vstack([a.scores for a in attributions]),
        np.vstack([unread(a) for a in attributions]),
    )


def layer_maps(attribution: Attribution) -> np.ndarray:
    """The terms of a picture's patches, ``layer row column``."""
    image = attribution.row.image
    assert image is not None
    assert attribution.layers is not None
    return image.grid(attribution.layers)
