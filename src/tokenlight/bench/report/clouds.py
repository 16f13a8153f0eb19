"""Class weights for word clouds, from the rows that token_overlap left in the parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tokenlight import registry
from tokenlight.bench.suite import Suite
from tokenlight.evaluation.corpus import Frequencies, Weights
from tokenlight.files.documents import json_of


def class_weights(rows: Iterable[Mapping[str, Any]], metric: str, suite: Suite) -> Weights:
    """``W_c(v) = idf(v) Σ s_x(v)`` of every predicted class, in the order of their numbers; document
    frequencies are those of the explained texts."""
    entry = next(one for one in suite.metrics if one.label == metric)
    idf = registry.build("metrics", entry.name, entry.options).idf
    sums: dict[int, Counter[str]] = {}
    names: dict[int, str] = {}
    counts: Counter[str] = Counter()
    texts = 0
    for row in rows:
        detail = json_of(row.get(f"{metric}.detail") or "{}")
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
