"""What differs between two settings, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenlight.errors import BadInput, short


def changed(before: Mapping[str, Any], now: Mapping[str, Any], place: str = "") -> Sequence[str]:
    """In words, each setting that differs."""
    found: list[str] = []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        where = f"{place}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed(old, new, f"{where} ")
        elif old != new:
            was, now_is = (short("nothing" if one is None else str(one), 48) for one in (old, new))
            found.append(f"{where} (was {was}, now {now_is})")
    return found


def refuse_other(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on in a folder that was begun with other settings; ``what`` is in it."""
    different = changed(before, now)
    if different:
        told = f"{'; '.join(different[:4])}{' …' * (len(different) > 4)}"
        raise BadInput(
            f"{what} with other settings: {told}. Their numbers must not be mixed: give another folder "
            "with -o, or delete this one."
        )
