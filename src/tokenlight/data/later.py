"""Later: values of which some fields are made when one of them is first read."""

from collections.abc import Callable
from typing import Any, Self


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
