"""Attributions as the page reads them: with ids, words in their places, and how far methods agree."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.units import word_groups
from tokenlight.metrics._agreement import unit_ranks
from tokenlight.web.explain import Explained
from tokenlight.web.requests import ExplainAsked
from tokenlight.web.store import Entry


def explanation(
    asked: ExplainAsked, entries: Sequence[Entry], made: Explained, started: float
) -> dict[str, Any]:
    """The answer to POST /api/explain; ``started``: by time.perf_counter()."""
    first = entries[0].attribution
    return {
        "model": first.model,
        "prediction": first.to_dict()["prediction"],
        "attributions": [shown(entry, words=asked.words, layers=asked.layers) for entry in entries],
        "agreement": agreement([entry.attribution for entry in entries]),
        "untested": [{"id": one, **why.to_dict()} for one, why in made.untested.items()],
        "refused": [{"method": name, **why.to_dict()} for name, why in made.refused],
        "seconds": round(time.perf_counter() - started, 4),
    }


def shown(entry: Entry, *, words: bool = False, layers: bool = True) -> dict[str, Any]:
    """One attribution with its id and its words."""
    attribution = entry.attribution
    values = (_merged(attribution) if words else attribution).to_dict()
    if not layers:
        values["layers"] = None
    return {
        "id": entry.id,
        "method": method_name(attribution),
        "target": attribution.target.name,
        "words": _words(attribution),
        "has_layers": attribution.layers is not None,
        "attribution": values,
    }


def method_name(attribution: Attribution) -> str:
    """Method with its options and steps; a head map is not written out."""
    options = ", ".join(
        f"{name}={'given' if isinstance(value, dict | list) else value}"
        for name, value in attribution.options.items()
    )
    return f"{attribution.method}({options})" if options else attribution.method


def agreement(attributions: Sequence[Attribution]) -> dict[str, Any] | None:
    """Spearman's correlation between methods, over the tokens that are not special, for the first
    target; None where there are no two methods to compare."""
    if not attributions:
        return None
    first = attributions[0]
    chosen = [
        a for a in attributions if a.target.name == first.target.name and a.row.ids == first.row.ids
    ]
    names = [method_name(a) for a in chosen]
    if len(set(names)) < 2 or len(set(names)) != len(names):
        return None
    ranks = [unit_ranks(a) for a in chosen]
    matrix = [
        [None if a is None or b is None else round(float(np.clip(a @ b, -1, 1)), 6) for b in ranks]
        for a in ranks
    ]
    return {"methods": names, "target": first.target.name, "matrix": matrix}


def _merged(attribution: Attribution) -> Attribution:
    done = any(step.startswith("merge_words") for step in attribution.steps)
    return attribution if done else merge_words(attribution)


def _words(attribution: Attribution) -> list[dict[str, Any]]:
    """Words in order with their tokens, their score (the tokens' sum) and their place."""
    row, found = attribution.row, []
    for group in word_groups(row):
        if row.special[group[0]]:
            continue
        start, end = row.span(group) or (None, None)
        found.append(
            {
                "text": row.written(group) or "".join(row.pieces[i] for i in group),
                "positions": group,
                "score": float(attribution.scores[group].sum()),
                "segment": row.segments[group[0]],
                "start": start,
                "end": end,
            }
        )
    return found
