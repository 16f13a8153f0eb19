"""What the classes of a model are made of: scores gathered by token type over many texts.

For a class c and a token type v, ``W_c(v) = idf(v) · Σ s_x(v)`` over the texts x predicted as c
(Hou & Castañón 2023, section 4.2). How rare a type is comes from any corpus, see
:class:`Frequencies`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokenizer import apart
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.documents import json_in
from tokenlight.files.write import json_text, write_text
from tokenlight.metrics.token_overlap import Rarity, rarity
from tokenlight.plots.clouds import top_tokens

FORMAT = 1  # of the JSON file of Frequencies
Weights = dict[str, dict[str, float]]  # class to token type to weight
CHUNK = 1000  # texts that are tokenised together


@dataclass(frozen=True, slots=True)
class Frequencies:
    """In how many of ``documents`` texts each token type stands; ``tokenizer`` names its maker."""

    documents: int
    counts: Mapping[str, int] = field(repr=False)
    tokenizer: str = ""

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: Any) -> Frequencies:
        """Count the types of ``texts``; special tokens are none."""
        counts: Counter[int] = Counter()
        documents = 0
        waiting = list(texts)
        for start in range(0, len(waiting), CHUNK):
            some = waiting[start : start + CHUNK]
            found = apart(tokenizer)(some, add_special_tokens=False, verbose=False)["input_ids"]
            for ids in found:
                counts.update(set(ids))
            documents += len(some)
        if not documents:
            raise BadInput("the corpus holds no text; give at least one.")
        pieces = tokenizer.convert_ids_to_tokens(list(counts))
        named = dict(zip(map(str, pieces), counts.values(), strict=True))
        return cls(documents, named, Path(str(tokenizer.name_or_path)).name)

    def idf(self, token: str, how: Rarity = "log") -> float:
        """``log``: ln(N / max(df, 1)); ``smooth``: ln((1 + N)/(1 + df)) + 1; ``none``: 1."""
        return rarity(how, self.counts.get(token, 0), self.documents)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as JSON, most frequent types first."""
        place = Path(path)
        ordered = dict(sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0])))
        content = {
            "format": FORMAT,
            "tokenizer": self.tokenizer,
            "documents": self.documents,
            "counts": ordered,
        }
        write_text(place, json_text(content, indent=0))
        return place

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Frequencies:
        """Read what :meth:`save` wrote."""
        try:
            content = json_in(path)
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {str(content['format'])[:40]!r}, not {FORMAT}")
            counts = {str(token): int(count) for token, count in content["counts"].items()}
            documents = int(content["documents"])
            if documents < 1 or not all(0 <= count <= documents for count in counts.values()):
                raise ValueError(
                    "a token stands in fewer texts than none, or in more than there are"
                )
            return cls(documents, counts, str(content["tokenizer"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as broken:
            why = f" ({str(broken)[:120]})" if isinstance(broken, OSError | ValueError) else ""
            raise DamagedFile(
                f"{path} holds no document frequencies{why}; make it with: tokenlight idf CORPUS -o "
                "FILE."
            ) from broken


def class_weights(
    attributions: Iterable[Attribution],
    frequencies: Frequencies | None = None,
    *,
    idf: Rarity = "log",
    normalize: Literal["none", "l1"] = "none",
) -> Weights:
    """``W_c(v)`` of each predicted class, by its label; special tokens are left out.

    Explanations must be of the predicted class. Without ``frequencies`` they are counted in the
    explained texts themselves. ``normalize="l1"`` gives every text the same weight.
    """
    given = list(attributions)
    known = frequencies or _counted(given)
    sums: dict[str, Counter[str]] = {}
    for attribution in given:
        _check(attribution)
        kept = ~np.array(attribution.row.special)
        total = float(np.abs(attribution.scores[kept]).sum()) if normalize == "l1" else 1.0
        into = sums.setdefault(attribution.prediction.label, Counter())
        for place in np.flatnonzero(kept):
            into[attribution.row.pieces[place]] += attribution.scores[place] / (total or 1.0)
    order = given[0].prediction.labels if given else ()
    return {
        label: {token: float(s * known.idf(token, idf)) for token, s in sums[label].items()}
        for label in sorted(sums, key=order.index)
    }


def table(weights: Mapping[str, Mapping[str, float]], k: int = 50) -> str:
    """The top types of every class side by side, as Markdown."""
    columns = {label: top_tokens(own, k) for label, own in weights.items()}
    lines = [
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for place in range(max(map(len, columns.values()), default=0)):
        cells = [_cell(column, place) for column in columns.values()]
        lines.append(f"| {place + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(column: Sequence[tuple[str, float]], place: int) -> str:
    if place >= len(column):
        return ""
    token, weight = column[place]
    shown = token.replace("|", "\\|").replace("`", "'")
    return f"`{shown}` {weight:.3g}"


def _counted(attributions: Sequence[Attribution]) -> Frequencies:
    counts: Counter[str] = Counter()
    for attribution in attributions:
        counts.update(set(attribution.row.pieces))
    return Frequencies(len(attributions), counts)


def _check(attribution: Attribution) -> None:
    if attribution.target.kind != "class" or not attribution.prediction.labels:
        raise BadInput(
            f"a corpus view gathers classes, but {attribution.target.name!r} is a "
            f"{attribution.target.kind}; explain a classifier with target='predicted'."
        )
    if attribution.target.index != attribution.prediction.index:
        raise BadInput(
            f"this text was predicted as {attribution.prediction.label!r} but explained for "
            f"{attribution.target.name!r}; a corpus view needs target='predicted'."
        )
