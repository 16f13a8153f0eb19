"""What the classes of a model are made of: for a class c and a token type v, ``W_c(v) = idf(v) · Σ s_x(v)``
over the texts x predicted as c (Hou & Castañón 2023, section 4.2)."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenlight.data.tokenizer import apart
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.documents import json_in
from tokenlight.files.tables import read
from tokenlight.files.write import json_text, write_text
from tokenlight.metrics.token_overlap import Rarity, rarity
from tokenlight.models import embedded
from tokenlight.models.folder import check
from tokenlight.models.loading import _tokenizer, refuse_missing_folder

FORMAT = 1  # of the JSON file of Frequencies
Weights = dict[str, dict[str, float]]  # class to token type to weight
CHUNK = 1000  # texts that are tokenised together


@dataclass(frozen=True, slots=True)
class Frequencies:
    """In how many of ``documents`` texts each token type (or its id) stands; ``tokenizer``: its maker."""

    documents: int
    counts: Mapping[Any, int] = field(repr=False)
    tokenizer: str = ""

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: Any) -> "Frequencies":
        """Count the types of ``texts``; special tokens are none."""
        counts: Counter[int] = Counter()
        listed = list(texts)
        if not listed:
            raise BadInput("the corpus holds no text; give at least one.")
        for start in range(0, len(listed), CHUNK):
            some = listed[start : start + CHUNK]
            for ids in apart(tokenizer)(some, add_special_tokens=False, verbose=False)["input_ids"]:
                counts.update(set(ids))
        pieces = tokenizer.convert_ids_to_tokens(list(counts))
        named = dict(zip(map(str, pieces), counts.values(), strict=True))
        return cls(len(listed), named, Path(str(tokenizer.name_or_path)).name)

    @classmethod
    def read(cls, corpus: str, tokenizer: Any) -> "Frequencies":
        """Of a file of texts, or of one that :meth:`save` wrote."""
        place = Path(corpus)
        if place.suffix == ".json" and place.is_file():
            with place.open(encoding="utf-8") as opened:
                if '"counts"' in opened.read(1000):  # no table of texts
                    return cls.load(corpus)
        examples = read(corpus)
        texts = [example.text for example in examples if isinstance(example.text, str)]
        if len(texts) < len(examples):
            raise BadInput(f"{corpus} holds pairs; a corpus holds one text a row.")
        return cls.of(texts, tokenizer)

    def idf(self, token: str, how: Rarity = "log") -> float:
        """``log``: ln(N / max(df, 1)); ``smooth``: ln((1 + N)/(1 + df)) + 1; ``none``: 1."""
        return rarity(how, self.counts.get(token, 0), self.documents)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as JSON, most frequent types first."""
        place, about = Path(path), {"tokenizer": self.tokenizer, "documents": self.documents}
        ordered = dict(sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0])))
        write_text(place, json_text({"format": FORMAT, **about, "counts": ordered}, indent=0))
        return place

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Frequencies":
        """Read what :meth:`save` wrote."""
        try:
            content = json_in(path)
            counts = {str(token): int(count) for token, count in content["counts"].items()}
            documents = int(content["documents"])
            possible = documents >= 1 and all(0 <= count <= documents for count in counts.values())
            if content["format"] != FORMAT or not possible:
                raise ValueError("its format or its counts cannot be")
            return cls(documents, counts, str(content["tokenizer"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as broken:
            why = f" ({str(broken)[:120]})" if isinstance(broken, OSError | ValueError) else ""
            wrong = f"{path} holds no document frequencies{why}"
            raise DamagedFile(f"{wrong}; make it with: tokenlight idf CORPUS -o FILE.") from broken


def tokenizer_of(name: str) -> Any:
    """The tokenizer of a model, without its weights."""
    refuse_missing_folder(name)
    place = embedded.resolve(name)
    check(name, place, weights=False)
    return _tokenizer(place, name, {})


def class_weights(rows: Iterable[Mapping[str, Any]], metric: str, idf: Rarity) -> Weights:
    """``W_c(v)`` of every predicted class, in the order of their numbers, from the rows that
    token_overlap left in a run; document frequencies are those of the explained texts."""
    sums: dict[tuple[int, str], Counter[str]] = {}
    counts: Counter[str] = Counter()
    texts = 0
    for row in rows:
        detail = row.get("measured", {}).get(metric, {}).get("detail", {})
        if "weights" in detail:
            into = sums.setdefault((int(detail["class"]), str(row["predicted"])), Counter())
            for token_id, weight in detail["weights"].items():
                token = detail["pieces"][token_id]
                into[token] += weight
                counts[token] += 1
            texts += 1
    known = Frequencies(max(1, texts), counts)
    return {
        name: {token: weight * known.idf(token, idf) for token, weight in own.items()}
        for (_, name), own in sorted(sums.items())
    }
