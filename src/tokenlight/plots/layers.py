"""The per-layer table: a row a layer, a column a token, their sum below (AttCAT, figure 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput

ROLLOUT = "Rollout"  # AttCAT's word for the product of a token's terms; no attention is rolled out
SUM = "Sum"


@dataclass(frozen=True, slots=True)
class LayerTable:
    """``values[row, column]``: rows are the layers, their product where asked for and, last, their
    sum; columns are tokens."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    special: tuple[bool, ...]
    values: np.ndarray
    left_out: int = 0  # weak tokens left out to keep the table readable

    @property
    def scales(self) -> tuple[float, ...]:
        """Strength of the full colour, row by row: the layers share one so that they compare, the
        sum has its own, or it would leave them pale, and so has the product, which is tiny. Special
        tokens do not count."""
        peaks = np.abs(self._own_values).max(axis=1, initial=0.0)
        alone = np.isin(self.rows, (ROLLOUT, SUM))
        peaks[~alone] = peaks[~alone].max(initial=0.0)
        return tuple(map(float, peaks))

    def normalised(self) -> LayerTable:
        """Divided by the Frobenius norm of the text's own tokens, as the paper's figure is: one
        strong separator would make every word +0.00."""
        peak = float(np.abs(self._own_values).max(initial=0.0)) or 1.0  # squares must not overflow
        norm = float(np.linalg.norm(self._own_values / peak)) or 1.0
        return replace(self, values=self.values / peak / norm)

    def without_special(self) -> LayerTable:
        """Only the text's own tokens."""
        return self._chosen(np.flatnonzero(~np.array(self.special, dtype=bool)), self.left_out)

    def strongest(self, most: int) -> LayerTable:
        """At most ``most`` columns: the tokens with the largest term anywhere, in text order."""
        if len(self.columns) <= most:
            return self
        peaks = np.abs(self.values).max(axis=0)
        kept = np.sort(np.argsort(-peaks, kind="stable")[:most])
        return self._chosen(kept, len(self.columns) - most)

    @property
    def _own_values(self) -> np.ndarray:
        """The cells of the text's own tokens, or of all where all are special."""
        own = ~np.array(self.special, dtype=bool)
        return self.values[:, own] if own.any() else self.values

    def _chosen(self, kept: np.ndarray, left_out: int) -> LayerTable:
        return LayerTable(
            self.rows,
            tuple(self.columns[i] for i in kept),
            tuple(self.special[i] for i in kept),
            self.values[:, kept],
            left_out,
        )


def layer_table(attribution: Attribution, *, rollout: bool = False) -> LayerTable:
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
    return LayerTable(tuple(rows), attribution.tokens, attribution.row.special, values)
