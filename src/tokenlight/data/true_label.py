"""The true label of an explained text, in the words that the model uses for its labels."""

from collections.abc import Sequence
from typing import Any

from tokenlight.data.attribution import Attribution


def name_label(label: Any, labels: Sequence[str]) -> str | None:
    """Return a label that a table gives under the model's name for it.

    Args:
        label: A name in any case, or the number of a label; None if the table has none.
        labels: The names of the model's labels.

    Returns:
        The model's name; the label as it was given if the model has no such label.

    Example:
        >>> from tokenlight.data.true_label import name_label
        >>> name_label(1, ("negative", "positive")), name_label("Negative", ("negative", "positive"))
        ('positive', 'negative')
    """
    if label is None:
        return None
    if isinstance(label, int) and 0 <= label < len(labels) and str(label) not in labels:
        return labels[label]
    same_names = [name for name in labels if name.casefold() == str(label).casefold()]
    return same_names[0] if len(same_names) == 1 else str(label)


def find_true_label(attribution: Attribution) -> str | None:
    """Return the true label that came with a text, as the model would name it; None without one."""
    # Ids mean that the labels are tokens, of which a table cannot give the number.
    labels = () if attribution.prediction.ids else attribution.prediction.labels
    return name_label(attribution.extras.get("label"), labels)
