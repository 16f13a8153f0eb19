"""TextResult: everything that one call computed for one input text.

``explain()`` works on many texts at once, and a text may have several attributions: one per method and
target. They stay grouped by text until the end; only the list handed to the user is flat.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TokenlightError

# One list per method, each with one Attribution per target.
MethodGroups = list[list[Attribution]]


@dataclass(slots=True)
class TextResult:
    """The explanations of one input text, or the error it was refused with.

    Attributes:
        text: The input as it was given.
        groups: One list per method, in the order of the call; each has one Attribution per target.
            Empty if the text was refused.
        error: Why the text was refused; None if it was explained.

    Example:
        >>> from tokenlight import Explainer
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> results = explainer.explain_texts(["Never dull.", "A mess."], ["attcat", "rollout"])
        >>> [attribution.method for attribution in results[1].attributions]
        ['attcat', 'rollout']
    """

    text: Any
    groups: MethodGroups = field(default_factory=list)
    error: TokenlightError | None = None

    @property
    def attributions(self) -> list[Attribution]:
        """All explanations of this text: method by method, then target by target."""
        return [attribution for group in self.groups for attribution in group]

    @property
    def row(self) -> TokenRow | None:
        """The tokens that were explained; None if there are no explanations."""
        for group in self.groups:
            if group:
                return group[0].row
        return None


def iter_attributions(results: Iterable[TextResult]) -> Iterator[Attribution]:
    """Yield the attributions of all texts, text by text; raise the error of the first refused text."""
    for result in results:
        if result.error is not None:
            raise result.error
        for group in result.groups:
            yield from group


def merge_groups(groups_by_row: Sequence[MethodGroups]) -> MethodGroups:
    """Merge the explanations of several rows of one text, keeping each method's together."""
    if len(groups_by_row) == 1:
        return groups_by_row[0]
    # Every row has one group per method, so that groups at the same index belong together.
    merged: MethodGroups = [[] for _ in groups_by_row[0]]
    for groups in groups_by_row:
        for method_index, group in enumerate(groups):
            merged[method_index].extend(group)
    return merged
