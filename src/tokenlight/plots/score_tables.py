"""Tables of scores with one column per token: the layers of one explanation, or several classes.

A table of layers ends with their sum (AttCAT, figure 5).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.plots.continuations import find_unread_tokens

# AttCAT's name for the product of a token's terms; no attention is rolled out.
ROLLOUT_ROW = "Rollout"
SUM_ROW = "Sum"


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of the same tokens, row by row.

    Args:
        rows: Names of the rows.
        columns: The tokens.
        special_tokens_mask: Which columns are special tokens.
        values: Scores, ``row column``.
        unread_mask: ``row column``; true where the token was not yet written when the row was explained.
        has_sum_row: Whether the last row is the sum of the others.
        num_omitted: Number of weak tokens that were left out to keep the table readable.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    special_tokens_mask: tuple[bool, ...]
    values: np.ndarray
    unread_mask: np.ndarray
    has_sum_row: bool = False
    num_omitted: int = 0

    @property
    def scales(self) -> tuple[float, ...]:
        """For each row the magnitude that gets the full colour.

        All rows share one scale, except the sum, which would make the layers pale, and the product, which
        is tiny.
        """
        peaks = np.abs(self._text_values).max(axis=1, initial=0.0)
        has_own_scale = np.isin(self.rows, (ROLLOUT_ROW, SUM_ROW)) & self.has_sum_row
        peaks[~has_own_scale] = peaks[~has_own_scale].max(initial=0.0)
        return tuple(map(float, peaks))

    def normalize(self) -> "ScoreTable":
        """Divide by the Frobenius norm of the text's tokens, as the figure of the paper does."""
        # Divided by the peak first, so that squares do not overflow.
        peak = float(np.abs(self._text_values).max(initial=0.0)) or 1.0
        norm = float(np.linalg.norm(self._text_values / peak)) or 1.0
        return replace(self, values=self.values / peak / norm)

    def drop_special(self) -> "ScoreTable":
        """Return the table without special tokens."""
        is_special = np.array(self.special_tokens_mask, dtype=bool)
        return self._select_columns(np.flatnonzero(~is_special), self.num_omitted)

    def select_strongest(self, max_columns: int) -> "ScoreTable":
        """Keep the ``max_columns`` tokens with the largest magnitude in any row, in text order."""
        if len(self.columns) <= max_columns:
            return self
        magnitudes = np.abs(self.values).max(axis=0)
        strongest = np.argsort(-magnitudes, kind="stable")[:max_columns]
        return self._select_columns(np.sort(strongest), len(self.columns) - max_columns)

    @property
    def _text_values(self) -> np.ndarray:
        """The scores of the text's tokens; of all tokens if all are special."""
        is_special = np.array(self.special_tokens_mask, dtype=bool)
        if is_special.all():
            return self.values
        return self.values[:, ~is_special]

    def _select_columns(self, columns: np.ndarray, num_omitted: int) -> "ScoreTable":
        return replace(
            self,
            columns=tuple(self.columns[i] for i in columns),
            special_tokens_mask=tuple(self.special_tokens_mask[i] for i in columns),
            values=self.values[:, columns],
            unread_mask=self.unread_mask[:, columns],
            num_omitted=num_omitted,
        )


def build_layer_table(attribution: Attribution, *, rollout: bool = False) -> ScoreTable:
    """Return the terms of each layer and their sum.

    Args:
        attribution: An explanation with per-layer terms.
        rollout: Add the product of the terms, as in the figure of the paper.

    Raises:
        BadInput: The method has no per-layer terms.
    """
    terms = attribution.layers
    if terms is None:
        raise BadInput(
            f"{attribution.method} has no per-layer terms. Use a method that has them, such as attcat "
            "or cat.",
            code="no-layer-terms",
        )
    rows = {f"L{layer}": scores for layer, scores in enumerate(terms)}
    if rollout:
        rows[ROLLOUT_ROW] = terms.prod(axis=0)
    rows[SUM_ROW] = terms.sum(axis=0)
    values = np.vstack(list(rows.values()))
    return ScoreTable(
        rows=tuple(rows),
        columns=attribution.tokens,
        special_tokens_mask=attribution.row.special_tokens_mask,
        values=values,
        unread_mask=np.zeros(values.shape, dtype=bool),
        has_sum_row=True,
    )


def build_class_table(attributions: Sequence[Attribution]) -> ScoreTable:
    """Return the scores of one method for several classes of one text, one row per class."""
    first = attributions[0]
    return ScoreTable(
        rows=tuple(attribution.target.name for attribution in attributions),
        columns=first.tokens,
        special_tokens_mask=first.row.special_tokens_mask,
        values=np.vstack([attribution.scores for attribution in attributions]),
        unread_mask=np.vstack([find_unread_tokens(attribution) for attribution in attributions]),
    )


def compute_layer_maps(attribution: Attribution) -> np.ndarray:
    """Return the per-layer terms of a picture's patches, ``layer row column``."""
    return attribution.row.image.to_grid(attribution.layers)  # type: ignore[union-attr, arg-type]
