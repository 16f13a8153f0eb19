"""Later: values of which some fields are made when one of them is first read."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

MANY = 100


class Later:
    """Base of a frozen dataclass without slots. A batch makes thousands of such values, and most of
    their fields nobody reads; a field that may come later has no default in the class."""

    @classmethod
    def later(cls, fields: Callable[[], dict[str, Any]], **known: Any) -> Self:
        """The value with the fields that are ``known``, and ``fields()`` once another is read. Nothing is
        checked: the caller knows them to be right."""
        found = object.__new__(cls)
        found.__dict__.update(known, _fields=fields)
        return found

    def __getattr__(self, name: str) -> Any:
        known = self._made()
        if name in known:
            return known[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._made())  # a copy holds values, not the batch they come from

    def _made(self) -> dict[str, Any]:
        known = self.__dict__
        fields = known.get("_fields")
        if fields is not None:
            known.update(fields())  # before the way to them goes, for another thread's sake
            known.pop("_fields", None)
        return known


@contextmanager
def making(count: int) -> Iterator[None]:
    """Within, so many values are made and kept, for each of which Python would sooner or later look through
    all that it holds, for cycles: what was there before is not looked at, unless its owner set it aside."""
    aside = count >= MANY and gc.get_freeze_count() == 0
    if aside:
        gc.freeze()
    try:
        yield
    finally:
        if aside:
            gc.unfreeze()
