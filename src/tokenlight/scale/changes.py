"""What differs between two settings, in words."""

from collections.abc import Mapping, Sequence
from typing import Any


def changed(before: Mapping[str, Any], now: Mapping[str, Any], place: str = "") -> Sequence[str]:
    """In words, each setting that differs."""
    found: list[str] = []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        where = f"{place}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed(old, new, f"{where} ")
        elif old != new:
            found.append(f"{where} (was {_short(old)}, now {_short(new)})")
    return found


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 48 else text[:47] + "…"
