"""Head masks: which heads count as syntactic or positional, and their ablations."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.documents import json_in
from tokenlight.files.write import json_text, write_text

FORMAT = 1  # of the JSON file

Table = tuple[tuple[int, ...], ...]
MaskKind = Literal["union", "syntactic", "positional", "random", "corrupted", "empty"]


@dataclass(frozen=True, slots=True)
class HeadMask:
    r"""How many criteria each head meets, ``layer head``; bottom block first.

    .. math:: M_{synt} = \sum_k [\alpha_k > \max\lambda_k + \xi_{synt}],\qquad
        M_{pos} = \sum_i [\alpha_i > \xi_{pos}]

    Mask-LRP, equations 7 and 8. The official code writes ones into a zero matrix instead of
    counting: :meth:`parts` does so unless ``values="sum"``.
    """

    syntactic: Table
    positional: Table

    def __post_init__(self) -> None:
        shapes = {np.shape(self.syntactic), np.shape(self.positional)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2:
            raise BadInput(
                f"a head mask needs two tables of layers × heads, got shapes "
                f"{np.shape(self.syntactic)} and {np.shape(self.positional)}."
            )

    @property
    def chosen(self) -> np.ndarray:
        """``layer head``, true where a head meets any criterion."""
        return (np.array(self.syntactic) > 0) | (np.array(self.positional) > 0)

    def parts(
        self,
        kind: MaskKind = "union",
        *,
        values: Literal["binary", "sum"] = "binary",
        rate: float = 0.0,
        seed: int = 0,
    ) -> list[np.ndarray]:
        """The mask as the parts whose sum it is (syntactic, positional), each ``layer head``.

        ``empty``: no head. ``random``: as many heads as this mask has distinct ones, anywhere.
        ``corrupted``: the share ``rate`` of the other heads is let in too (the official code counts a
        head that meets two criteria twice here).
        """
        parts = [np.array(self.syntactic), np.array(self.positional)]
        if values == "binary":
            parts = [np.minimum(part, 1) for part in parts]
        match kind:
            case "syntactic":
                return parts[:1]
            case "positional":
                return parts[1:]
            case "empty":
                return [np.zeros_like(self.chosen, dtype=int)]
            case "random":
                return [_let_in(np.zeros_like(self.chosen), int(self.chosen.sum()), seed)]
            case "corrupted":
                if not 0 <= rate <= 1:
                    raise BadInput(f"corruption rate {rate} is not a share; give 0 to 1.")
                return [_let_in(self.chosen, int((~self.chosen).sum() * rate), seed)]
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: np.array(table).tolist() for name, table in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadMask":
        """Rebuild from :meth:`to_dict`, or from a heads file's content."""
        inner = values.get("mask", values)
        try:
            return cls(table_of(inner["syntactic"]), table_of(inner["positional"]))
        except TokenlightError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as broken:
            raise DamagedFile(
                "this head mask lacks or garbles a table: syntactic and positional are lists of "
                "layers, each a list of whole numbers, one a head."
            ) from broken


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
    if isinstance(given, Mapping):
        return HeadMask.from_dict(given)
    if isinstance(given, str | os.PathLike):
        return HeadMask.from_dict(read_heads(given))
    table = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    if table.ndim != 2:
        raise BadInput(
            f"heads of shape {table.shape} are not a mask; give layers × heads, a heads file written "
            "by 'tokenlight heads', or a HeadMask."
        )
    return HeadMask(table_of(table), table_of(np.zeros_like(table)))


def read_heads(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a heads file."""
    place = Path(path)
    try:
        content = json_in(place)
    except FileNotFoundError as missing:
        raise DamagedFile(
            f"{place} does not exist; write it with: tokenlight heads MODEL --conllu FILE -o {place}"
        ) from missing
    except (OSError, ValueError) as broken:
        raise DamagedFile(f"{place} is not a heads file: {broken}.") from broken
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedFile(f"{place} is not a heads file of format {FORMAT}.")
    return content


def write_heads(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Path:
    """Write a heads file: readable JSON, a row of numbers on a line."""
    place = Path(path)
    text = json_text(content, indent=1)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    write_text(place, text + "\n")
    return place


def table_of(values: Any) -> Table:
    """Whole numbers, a row a layer."""
    rows = [[float(value) for value in row] for row in values]
    for number in (number for row in rows for number in row):
        if not number.is_integer():
            raise BadInput(
                f"a head mask counts criteria, and {number:g} is not a count; give whole numbers: 0 "
                "for a head that is left out, 1 for one that is let through."
            )
    return tuple(tuple(map(int, row)) for row in rows)
