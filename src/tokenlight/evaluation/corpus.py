"""What the classes of a model are made of: scores gathered by token type over many texts.

For a class c and a token type v, ``W_c(v) = idf(v) · Σ s_x(v)`` over the texts x predicted as c
(Hou & Castañón 2023, section 4.2). How rare a type is comes from any corpus, see
:class:`Frequencies`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tokenlight.data.tokenizer import apart
from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.documents import json_in
from tokenlight.files.tables import read
from tokenlight.files.write import json_text, write_text
from tokenlight.metrics.token_overlap import Rarity, rarity
from tokenlight.models import embedded
from tokenlight.models.folder import SAFE, check
from tokenlight.models.loading import refuse_missing_folder

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
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {str(content['format'])[:40]!r}, not {FORMAT}")
            counts = {str(token): int(count) for token, count in content["counts"].items()}
            documents = int(content["documents"])
            if documents < 1 or not all(0 <= count <= documents for count in counts.values()):
                raise ValueError(
                    "a token stands in more texts than there are, or in less than none"
                )
            return cls(documents, counts, str(content["tokenizer"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as broken:
            why = f" ({str(broken)[:120]})" if isinstance(broken, OSError | ValueError) else ""
            raise DamagedFile(
                f"{path} holds no document frequencies{why}; make it with: tokenlight idf CORPUS -o "
                "FILE."
            ) from broken


def tokenizer_of(name: str) -> Any:
    """The tokenizer of a model, without its weights."""
    refuse_missing_folder(name)
    try:
        place = embedded.resolve(name)
        check(name, place, weights=False)
        return AutoTokenizer.from_pretrained(place, **SAFE)
    except TokenlightError:
        raise
    except (OSError, ValueError) as missing:
        raise BadInput(
            f"no tokenizer found at {name!r}: {str(missing).splitlines()[0]} Give a folder with "
            "tokenizer.json, a hub id that this machine can reach, or an embedded model (tokenlight "
            "models lists them)."
        ) from missing


def class_weights(rows: Iterable[Mapping[str, Any]], metric: str, idf: Rarity) -> Weights:
    """``W_c(v)`` of every predicted class, in the order of their numbers, from the rows that
    token_overlap left in a run; document frequencies are those of the explained texts."""
    sums: dict[int, Counter[str]] = {}
    names: dict[int, str] = {}
    counts: Counter[str] = Counter()
    texts = 0
    for row in rows:
        detail = row.get("measured", {}).get(metric, {}).get("detail", {})
        if "weights" not in detail:
            continue
        texts += 1
        number = int(detail["class"])
        names[number] = str(row["predicted"])
        into = sums.setdefault(number, Counter())
        for token_id, weight in detail["weights"].items():
            token = detail["pieces"][token_id]
            into[token] += weight
            counts[token] += 1
    known = Frequencies(max(1, texts), counts)
    return {
        names[number]: {token: s * known.idf(token, idf) for token, s in sums[number].items()}
        for number in sorted(sums)
    }
