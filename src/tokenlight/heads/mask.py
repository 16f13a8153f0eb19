"""Head masks: which heads count as syntactic or positional, and their ablations."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.documents import json_in
from tokenlight.files.write import json_text, write_text

FORMAT = 1  # of the JSON file
MOST = 10**6  # criteria that a head could meet
MaskKind = Literal["union", "syntactic", "positional", "random", "corrupted", "empty"]
Values = Literal["binary", "sum"]


@dataclass(frozen=True, slots=True)
class HeadMask:
    r"""How many criteria each head meets, ``layer head``; bottom block first.

    .. math:: M_{synt} = \sum_k [\alpha_k > \max\lambda_k + \xi_{synt}],\qquad
        M_{pos} = \sum_i [\alpha_i > \xi_{pos}]

    Mask-LRP, equations 7 and 8. The official code writes ones into a zero matrix instead of
    counting: :meth:`parts` does so unless ``values="sum"``.
    """

    syntactic: Any
    positional: Any

    def __post_init__(self) -> None:
        given = self.syntactic, self.positional
        try:
            found = np.array(given, dtype=float)  # part layer head
        except (TypeError, ValueError, OverflowError):
            found = np.empty(0)
        if found.ndim != 3 or not ((found == np.rint(found)) & (abs(found) < MOST)).all():
            shapes = " and ".join(str(getattr(one, "shape", one))[:60] for one in given)
            raise BadInput(
                "a head mask counts criteria, in two tables (syntactic, positional) of layers × heads; "
                f"got {shapes}. Give whole numbers, 0 for a head that is left out, 1 for one that is "
                "let through, or a heads file written by 'tokenlight heads'."
            )
        for name, table in zip(self.__slots__, found.astype(int).tolist(), strict=True):
            object.__setattr__(self, name, tuple(map(tuple, table)))

    @property
    def chosen(self) -> np.ndarray:
        """``layer head``, true where a head meets any criterion."""
        return (np.array(self.syntactic) > 0) | (np.array(self.positional) > 0)

    def parts(
        self, kind: MaskKind = "union", *, values: Values = "binary", rate: float = 0, seed: int = 0
    ) -> list[np.ndarray]:
        """The mask as the parts whose sum it is (syntactic, positional), each ``layer head``.

        ``empty``: no head. ``random``: as many heads as this mask has distinct ones, anywhere.
        ``corrupted``: the share ``rate`` of the other heads is let in too (the official code counts a
        head that meets two criteria twice here).
        """
        chosen, parts = self.chosen, [np.array(self.syntactic), np.array(self.positional)]
        if values == "binary":
            parts = [np.minimum(part, 1) for part in parts]
        match kind:
            case "syntactic":
                return parts[:1]
            case "positional":
                return parts[1:]
            case "empty":
                return [np.zeros_like(chosen, dtype=int)]
            case "random":
                return [_let_in(np.zeros_like(chosen), int(chosen.sum()), seed)]
            case "corrupted":
                return [_let_in(chosen, int((~chosen).sum() * rate), seed)]
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: np.array(table).tolist() for name, table in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadMask":
        """Rebuild from :meth:`to_dict`, or from a heads file's content."""
        inner = values.get("mask", values)
        tables = inner if isinstance(inner, Mapping) else {}
        return cls(tables.get("syntactic"), tables.get("positional"))


def _let_in(chosen: np.ndarray, count: int, seed: int) -> np.ndarray:
    """``chosen`` (``layer head``) as 0 and 1, with ``count`` more heads, drawn from the others."""
    flat = chosen.ravel().astype(int)
    drawn = np.random.default_rng(seed).choice(np.flatnonzero(flat == 0), count, replace=False)
    flat[drawn] = 1
    return flat.reshape(chosen.shape)


def head_mask(given: Any) -> HeadMask:
    """A HeadMask from what a user may give: one itself, a heads file, its content, or an array of
    layers × heads (taken as the syntactic part)."""
    if isinstance(given, HeadMask):
        return given
    if isinstance(given, str | os.PathLike):
        given = read_heads(given)
    if isinstance(given, Mapping):
        return HeadMask.from_dict(given)
    table = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    return HeadMask(table, np.zeros_like(table))


def read_heads(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a heads file."""
    way_out = f". Write one with: tokenlight heads MODEL --conllu FILE -o {path}"
    with DamagedFile.telling(f"{path} is not a heads file: ", OSError, ValueError, end=way_out):
        content = json_in(Path(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedFile(f"{path} is not a heads file of format {FORMAT}.")
    return content


def write_heads(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Path:
    """Write a heads file: readable JSON, a row of numbers on a line."""
    text = json_text(content, indent=1)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    write_text(Path(path), text + "\n")
    return Path(path)
