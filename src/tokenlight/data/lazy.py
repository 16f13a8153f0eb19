"""Frozen dataclasses that compute their fields when one of them is first read."""

from collections.abc import Callable
from typing import Any, Self


class LazyDataclass:
    """Base class of frozen dataclasses without slots whose fields may be filled in later.

    A batch creates thousands of such values, and most of their fields are never read. A field that may
    be filled in later must not have a default in the class: a default is a class attribute, so reading
    it would never reach ``__getattr__``. Use ``field(default_factory=…)`` instead.
    """

    @classmethod
    def lazy(cls, load_fields: Callable[[], dict[str, Any]], **values: Any) -> Self:
        """Create an instance without running ``__init__`` and its checks.

        Args:
            load_fields: Returns the missing fields; called once, when one of them is first read.
            values: Fields that are known already.

        Returns:
            The instance, whose missing fields are loaded when one of them is first read.

        Example:
            >>> from dataclasses import dataclass
            >>> from tokenlight.data.lazy import LazyDataclass
            >>> @dataclass(frozen=True)
            ... class Scores(LazyDataclass):
            ...     method: str
            ...     values: list[float]
            >>> Scores.lazy(lambda: {"values": [0.1, 0.7]}, method="attcat").values
            [0.1, 0.7]
        """
        instance = object.__new__(cls)
        object.__setattr__(instance, "_fields", load_fields)
        if values:
            instance.__dict__.update(values)
        return instance

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for names that are not in __dict__ yet.
        attributes = self._materialize()
        if name in attributes:
            return attributes[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        # A copy holds the field values, neither their batch nor values that are cached along with them.
        attributes = self._materialize()
        field_names = type(self).__dataclass_fields__  # type: ignore[attr-defined]
        return {name: value for name, value in attributes.items() if name in field_names}

    def _materialize(self) -> dict[str, Any]:
        """Load the missing fields and return all attributes."""
        attributes = self.__dict__
        load_fields = attributes.get("_fields")
        if load_fields is not None:
            # The loader is dropped last: another thread may be reading a field at the same time.
            attributes.update(load_fields())
            attributes.pop("_fields", None)
        return attributes
