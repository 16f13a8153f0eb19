"""Keys of ``extras`` and kinds of targets in files of earlier versions, and what they are called now.

Every saved explanation passes through here when it is read, so that nothing else knows the old keys.
"""

from collections.abc import Mapping
from typing import Any

OLD_EXTRAS = {"place": "location", "likeness": "similarity", "kept": "input_columns"}
# Explanations that combine two passes: how many tokens belong to both texts, or to the first.
OLD_DIFFERENCE_KEYS = {"border": "num_shared_tokens", "behind": "num_first_tokens"}
OLD_SIMILARITY_KEYS = {"border": "num_first_tokens"}
# The result of the trust tests, each of its removals, and each of its health checks.
OLD_TRUST_KEYS = {
    "words": "num_words",
    "orders": "num_orders",
    "judgements": "judgments",
    "weak": "weakness",
    "moved": "max_change",
    "special": "special_share",
    "signed": "has_signs",
}
OLD_REMOVAL_KEYS = {
    "words_are": "action",
    "beaten": "share_beaten",
    "stronger": "num_stronger",
    "subtexts": "partial_texts",
}
OLD_HEALTH_KEYS = {"says": "finding"}
OLD_TARGET_KINDS = {"answer": "continuation"}


def rename_old_extras(extras: Any) -> Any:
    """Return the extras of an explanation under the present names of their keys.

    Args:
        extras: A JSON value; anything but an object is returned as it is, for the validation to refuse.

    Example:
        >>> from tokenlight.data.old_names import rename_old_extras
        >>> rename_old_extras({"place": "row 3 of reviews.csv"})
        {'location': 'row 3 of reviews.csv'}
    """
    if not isinstance(extras, Mapping):
        return extras
    renamed = _rename_keys(extras, OLD_EXTRAS)
    for name, old_keys in (
        ("difference", OLD_DIFFERENCE_KEYS),
        ("similarity", OLD_SIMILARITY_KEYS),
        ("trust", OLD_TRUST_KEYS),
    ):
        if name in renamed:
            renamed[name] = _rename_keys(renamed[name], old_keys)
    trust = renamed.get("trust")
    if isinstance(trust, dict):
        for name, old_keys in (("removals", OLD_REMOVAL_KEYS), ("health", OLD_HEALTH_KEYS)):
            if isinstance(trust.get(name), list):
                trust[name] = [_rename_keys(entry, old_keys) for entry in trust[name]]
    return renamed


def rename_old_target(target: Any) -> Any:
    """Return a saved target with the present name of its kind.

    Args:
        target: A JSON value; anything but an object is returned as it is, for the validation to refuse.

    Example:
        >>> from tokenlight.data.old_names import rename_old_target
        >>> rename_old_target({"kind": "answer", "name": "‘Rome’"})
        {'kind': 'continuation', 'name': '‘Rome’'}
    """
    if not isinstance(target, Mapping) or not isinstance(target.get("kind"), str):
        return target
    return {**target, "kind": OLD_TARGET_KINDS.get(target["kind"], target["kind"])}


def _rename_keys(values: Any, old_keys: Mapping[str, str]) -> Any:
    """Return an object with some keys renamed; other JSON values as they are."""
    if not isinstance(values, Mapping):
        return values
    return {old_keys.get(key, key): value for key, value in values.items()}
