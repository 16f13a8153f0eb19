"""Head masks: which attention heads count as syntactic or positional, and ablations of them."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.parsing import read_json
from tokenlight.files.write import dump_json, write_text

FORMAT = 1  # of the JSON file
MAX_CRITERIA = 10**6  # more than a head could ever meet
MaskKind = Literal["union", "syntactic", "positional", "random", "corrupted", "empty"]
MaskValues = Literal["binary", "sum"]


@dataclass(frozen=True, slots=True)
class HeadMask:
    r"""How many criteria each head meets, ``layer head``; the first layer first.

    .. math:: M_{synt} = \sum_k [\alpha_k > \max\lambda_k + \xi_{synt}],\qquad
        M_{pos} = \sum_i [\alpha_i > \xi_{pos}]

    Mask-LRP, equations 7 and 8. The official code writes ones into a zero matrix instead of
    counting: :meth:`build_components` does so unless ``values="sum"``.

    Args:
        syntactic: Criteria of syntax that each head meets, ``layer head``.
        positional: Criteria of position that each head meets, ``layer head``.

    Raises:
        BadInput: The tables differ in shape, or do not hold integers.
    """

    syntactic: Any
    positional: Any

    def __post_init__(self) -> None:
        try:
            counts = np.array((self.syntactic, self.positional), dtype=float)  # part layer head
        except (TypeError, ValueError, OverflowError):
            counts = np.empty(0)
        are_counts = (counts == np.rint(counts)) & (abs(counts) < MAX_CRITERIA)
        if counts.ndim != 3 or not are_counts.all():
            raise BadInput(
                "A head mask counts criteria in two tables (syntactic, positional) of layers × heads, but "
                f"these are {_describe_shape(self.syntactic)} and {_describe_shape(self.positional)}. Give "
                "integers, 0 for a head that is left out and 1 for one that is kept, or a heads file "
                "written by 'tokenlight heads'.",
                code="head-mask-shape",
            )
        # Tuples, so that masks can be compared and hashed.
        for name, table in zip(self.__slots__, counts.astype(int).tolist(), strict=True):
            object.__setattr__(self, name, tuple(map(tuple, table)))

    @property
    def selected_heads(self) -> np.ndarray:
        """``layer head``, true where a head meets any criterion."""
        return (np.array(self.syntactic) > 0) | (np.array(self.positional) > 0)

    def build_components(
        self,
        kind: MaskKind = "union",
        *,
        values: MaskValues = "binary",
        rate: float = 0,
        seed: int = 0,
    ) -> list[np.ndarray]:
        """Return the mask as components that add up to it, each ``layer head``.

        Args:
            kind: ``"union"`` has two components, syntactic and positional. ``"empty"`` has no head.
                ``"random"`` has as many heads as this mask has distinct ones, anywhere. ``"corrupted"``
                adds the share ``rate`` of the other heads (the official code counts a head that meets
                two criteria twice here).
            values: ``"binary"`` caps the counts at 1; ``"sum"`` keeps them.
            rate: The share of other heads that ``"corrupted"`` adds.
            seed: The seed of the heads that are drawn.
        """
        selected = self.selected_heads
        components = [np.array(self.syntactic), np.array(self.positional)]
        # The official code counts a head once, however many criteria it meets.
        if values == "binary":
            components = [np.minimum(component, 1) for component in components]
        match kind:
            case "syntactic":
                return components[:1]
            case "positional":
                return components[1:]
            case "empty":
                return [np.zeros_like(selected, dtype=int)]
            case "random":
                return [_add_random_heads(np.zeros_like(selected), int(selected.sum()), seed)]
            case "corrupted":
                num_added = int((~selected).sum() * rate)
                return [_add_random_heads(selected, num_added, seed)]
        return components

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: np.array(table).tolist() for name, table in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadMask":
        """Rebuild a mask from :meth:`to_dict`, or from the content of a heads file."""
        tables = values.get("mask", values)
        if not isinstance(tables, Mapping):
            tables = {}
        return cls(tables.get("syntactic"), tables.get("positional"))


def _describe_shape(table: Any) -> str:
    return str(getattr(table, "shape", table))[:60]


def _add_random_heads(selected: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return ``selected`` (``layer head``) as 0 and 1, with ``count`` more heads drawn from the others."""
    # Draw from the heads that are not selected yet.
    flat_mask = selected.ravel().astype(int)
    other_heads = np.flatnonzero(flat_mask == 0)
    drawn_heads = np.random.default_rng(seed).choice(other_heads, count, replace=False)
    flat_mask[drawn_heads] = 1
    return flat_mask.reshape(selected.shape)


def make_head_mask(source: Any) -> HeadMask:
    """Return a HeadMask from what a user may give.

    Args:
        source: A HeadMask, the path of a heads file, its content, or an array of layers × heads, which is
            taken as the syntactic table.
    """
    if isinstance(source, HeadMask):
        return source
    if isinstance(source, str | os.PathLike):
        source = read_heads_file(source)
    if isinstance(source, Mapping):
        return HeadMask.from_dict(source)
    if hasattr(source, "detach"):  # a tensor
        source = source.detach().cpu()
    table = np.asarray(source)
    return HeadMask(table, np.zeros_like(table))


def read_heads_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a heads file.

    Raises:
        DamagedFile: It cannot be read, or is not a heads file of this format.
    """
    try:
        content = read_json(Path(path))
    except TokenlightError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedFile(
            f"{path} is not a heads file: {error}. Write one with: tokenlight heads MODEL --conllu FILE "
            f"-o {path}",
            code="heads-file-unreadable",
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedFile(
            f"{path} is not a heads file of format {FORMAT}. Write one with: tokenlight heads MODEL "
            f"--conllu FILE -o {path}",
            code="heads-file-format",
        )
    return content


def write_heads_file(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Path:
    """Write a heads file: readable JSON, with each row of numbers on one line."""
    text = dump_json(content, indent=1)
    # Innermost lists and objects go on one line.
    innermost = r"[\[{][^\[\]{}]*[\]}]"
    text = re.sub(innermost, lambda match: re.sub(r"\s+", " ", match[0]), text)
    write_text(Path(path), text + "\n")
    return Path(path)
