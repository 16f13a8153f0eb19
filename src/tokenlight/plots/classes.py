"""Class by class: one method's scores for several classes of one text, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.plots.continuation import unread
from tokenlight.plots.groups import TextGroup, method_label, strongest


@dataclass(frozen=True, slots=True)
class ClassTable:
    """``values[row, column]``: rows are classes, columns tokens; ``scale`` is the full colour of all.

    ``unread[row, column]``: whether the token was not yet written when the row's was explained.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    special: tuple[bool, ...]
    values: np.ndarray
    unread: np.ndarray
    scale: float
    left_out: int = 0  # weak tokens left out to keep the table readable

    def without_special(self) -> ClassTable:
        """Only the text's own tokens."""
        return self._chosen(np.flatnonzero(~np.array(self.special, dtype=bool)), self.left_out)

    def strongest(self, most: int) -> ClassTable:
        """At most ``most`` columns: the tokens with the largest score for any class, in text order."""
        if len(self.columns) <= most:
            return self
        kept = np.sort(np.argsort(-np.abs(self.values).max(axis=0), kind="stable")[:most])
        return self._chosen(kept, len(self.columns) - most)

    def _chosen(self, kept: np.ndarray, left_out: int) -> ClassTable:
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            special=tuple(self.special[i] for i in kept),
            values=self.values[:, kept],
            unread=self.unread[:, kept],
            left_out=left_out,
        )


def by_class(group: TextGroup) -> list[tuple[Attribution, ...]]:
    """For each method its explanations of several classes; a method with one class is left out."""
    methods: dict[str, list[Attribution]] = {}
    for attribution in group:
        if attribution.target.kind == "class" and attribution.row.image is None:
            methods.setdefault(method_label(attribution), []).append(attribution)
    return [tuple(found) for found in methods.values() if len(found) > 1]


def class_table(attributions: Sequence[Attribution]) -> ClassTable:
    """The table of one method's classes."""
    first = attributions[0]
    return ClassTable(
        tuple(a.target.name for a in attributions),
        first.tokens,
        first.row.special,
        np.vstack([a.scores for a in attributions]),
        np.vstack([unread(a) for a in attributions]),
        max(strongest(a) for a in attributions),
    )
