"""TextResult: everything that one call computed for one input text.

``explain()`` works on many texts at once, and a text may have several attributions: one per method and
target. They stay together by text until the end; only the list handed to the user is flat.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TokenlightError

# One list per method, each with one Attribution per target.
AttributionsByMethod = list[list[Attribution]]


@dataclass(slots=True)
class TextResult:
    """The explanations of one input text, or the error it was refused with.

    Attributes:
        text: The input as it was given.
        attributions_by_method: One list per method, in the order of the call; each has one Attribution
            per target. Empty if the text was refused.
        error: Why the text was refused; None if it was explained.

    Example:
        >>> from tokenlight import Explainer
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> results = explainer.explain_texts(["Never dull.", "A mess."], ["attcat", "rollout"])
        >>> [attribution.method for attribution in results[1].attributions]
        ['attcat', 'rollout']
    """

    text: Any
    attributions_by_method: AttributionsByMethod = field(default_factory=list)
    error: TokenlightError | None = None

    @property
    def attributions(self) -> list[Attribution]:
        """All explanations of this text: method by method, then target by target."""
        return list(chain.from_iterable(self.attributions_by_method))

    @property
    def row(self) -> TokenRow | None:
        """The tokens that were explained; None if there are no explanations."""
        first = next(iter(self.attributions), None)
        return None if first is None else first.row


def iter_attributions(results: Iterable[TextResult]) -> Iterator[Attribution]:
    """Yield the attributions of all texts, text by text; raise the error of the first refused text."""
    for result in results:
        if result.error is not None:
            raise result.error
        yield from result.attributions


def merge_rows(attributions_by_row: Sequence[AttributionsByMethod]) -> AttributionsByMethod:
    """Merge the explanations of several rows of one text, keeping each method's together.

    Args:
        attributions_by_row: One entry per row; a text in which there is nothing to explain has no row.
    """
    if not attributions_by_row:
        return []
    if len(attributions_by_row) == 1:
        return attributions_by_row[0]
    # Every row has the same methods in the same order.
    merged: AttributionsByMethod = [[] for _ in attributions_by_row[0]]
    for attributions_by_method in attributions_by_row:
        for method_index, attributions in enumerate(attributions_by_method):
            merged[method_index].extend(attributions)
    return merged
