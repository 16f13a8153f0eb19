"""What every method is: frozen options, the sites it needs, and a tape in, scores out."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from tokenlight.capture.tape import Site, Tape


class Method(abc.ABC):
    """A way to score tokens. Subclasses are frozen dataclasses whose fields are the options.

    ``cites``: key of the paper; ``signed``: scores below zero speak against the target;
    ``per_layer``: the call gives ``batch layer token`` whose sum over layers is the score;
    ``class_agnostic``: the score does not depend on the target's class; ``slow``: seconds a text;
    ``needs_precision``: half precision gives other numbers (divisions by what is nearly zero);
    ``presets``: named option sets that reproduce an official code or a paper's reading.
    """

    cites: ClassVar[str]
    signed: ClassVar[bool] = True
    per_layer: ClassVar[bool] = False
    class_agnostic: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    needs_precision: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    @abc.abstractmethod
    def needs(self) -> frozenset[Site]:
        """The sites this method reads with its present options."""

    @abc.abstractmethod
    def __call__(self, tape: Tape) -> Tensor:
        """Scores, ``batch token`` (or ``batch layer token``); those at padding are never looked at."""

    def note(self, tape: Tape) -> str | None:  # noqa: ARG002 - a hook that most methods leave alone
        """A sentence for the Attribution where the reader must know how it was made."""
        return None

    def extras(self, tape: Tape) -> Sequence[dict[str, Any]] | None:  # noqa: ARG002 - likewise
        """Measurements for each example's Attribution, JSON values by name."""
        return None

    @property
    def name(self) -> str:
        """The registry key: the file's name."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def options(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        return {
            field.name: getattr(self, field.name)
            for field in fields
            if getattr(self, field.name) != field.default
        }
