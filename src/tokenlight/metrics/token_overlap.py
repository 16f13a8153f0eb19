"""Token overlap: do the classes' most important tokens differ?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import log
from typing import Any, Literal

import numpy as np

from tokenlight.metrics._interval import Interval, statistic_interval
from tokenlight.metrics._metric import Answers, Case, Count, Measured, Metric, MetricSummary

Rarity = Literal["log", "smooth", "none"]
CURVE = tuple(range(10, 101, 10))
DECODED = "decoded_"  # how the names of methods begin that score token types, not positions


class TokenOverlap(Metric):
    r"""Mean share of tokens that two classes' top-k lists have in common.

    .. math:: W_c(v) = \mathrm{idf}(v)\sum_{x:\,\hat y(x)=c} s_x(v), \qquad
        \mathrm{Overlap}(k) = \frac{\sum_{c<c'} |\mathrm{Top}_k(c)\cap\mathrm{Top}_k(c')|}{\binom C2\,k}

    over token types v that are not special. ``report="count"`` leaves out the division by k; the curve
    runs over k = 10, 20, …, 100. ``idf``: ``log`` is ln(N / max(df, 1)), ``smooth`` is
    ln((1 + N)/(1 + df)) + 1, ``none`` is 1. Document frequencies come from ``corpus``, a file of texts or
    what ``tokenlight idf`` counted in one (.json), else from the explained texts. Hou & Castañón 2023.
    ``normalize="l1"`` divides each text's scores by their L1 sum; ``tokens="positive"`` keeps types of
    positive weight alone, so that a list may be shorter than k. Differs from the paper: it takes df from
    50,000 Wikipedia articles and gives no formula for idf; C counts the classes that some text was predicted
    as, v runs over the types in their texts, and a decoded method's score of a type counts once a text.
    """

    k: Count = 50
    idf: Rarity = "log"
    normalize: Literal["none", "l1"] = "none"
    report: Literal["share", "count"] = "share"
    tokens: Literal["all", "positive"] = "all"
    corpus: str | None = None
    cites = "hou2023decoding"
    better = "lower"
    asks = False
    compares = True
    presets = {"paper": {}}

    @property
    def points(self) -> tuple[float, ...]:
        return tuple(float(k) for k in CURVE)

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        attribution, places = case.attribution, case.original.rankable
        scores = attribution.scores[places]
        types, own = np.unique(np.array(attribution.row.ids)[places], return_inverse=True)
        weights: np.ndarray = np.bincount(own, scores, len(types))
        if attribution.method.startswith(DECODED):
            weights = scores = weights / np.bincount(own, minlength=len(types))
        if self.normalize == "l1":
            weights = weights / (np.abs(scores).sum() or 1.0)
        # One text alone has no overlap: its share is a number of the whole set of texts.
        detail = {
            "class": attribution.prediction.index,
            "weights": {str(i): float(w) for i, w in zip(types, weights, strict=True)},
        }
        return Measured(float("nan"), detail=detail)

    def joined(self, measured: Sequence[Measured]) -> Measured:
        details = [part for one in measured for part in _parts(one)]
        return Measured(float("nan"), detail={"several": details})

    def summarise(
        self, measured: Sequence[Measured], *, seed: int = 0, frequencies: Any = None
    ) -> MetricSummary:
        # Of one text there may be several explanations: it is drawn with all of them.
        parts = [(n, part) for n, one in enumerate(measured) for part in _parts(one)]
        owners = np.array([n for n, _ in parts], dtype=np.int64)
        labels = np.array([int(part["class"]) for _, part in parts], dtype=np.int64)
        entries = [
            (row, int(token), weight)
            for row, (_, part) in enumerate(parts)
            for token, weight in part["weights"].items()
        ]
        first, standing, weights = np.array(entries, dtype=np.float64).reshape(-1, 3).T
        rows = first.astype(np.int64)
        tokens, columns = np.unique(standing.astype(np.int64), return_inverse=True)
        once = np.unique(owners[rows] * len(tokens) + columns)  # a token of a text counts once
        counts = np.bincount(once % max(1, len(tokens)), minlength=len(tokens))
        documents = len(measured)
        if frequencies is not None:
            counts = np.array([frequencies.counts.get(int(token), 0) for token in tokens])
            documents = frequencies.documents
        factor = np.array([rarity(self.idf, int(count), documents) for count in counts])

        def overlaps(chosen: np.ndarray, ks: Sequence[int]) -> list[float]:
            times = np.bincount(chosen, minlength=len(measured))[owners]  # how often each was drawn
            ranked = []
            for label in np.unique(labels[times > 0]):
                often = (times * (labels == label))[rows]
                sums = np.bincount(columns, weights * often, len(tokens)) * factor
                may = np.bincount(columns, often, len(tokens)) > 0  # those in the class's texts
                may &= (sums > 0) | (self.tokens == "all")
                order = np.argsort(-sums, kind="stable")  # strongest first, equal ones by token id
                ranked.append(order[may[order]].tolist())
            return [_overlap(ranked, k, share=self.report == "share") for k in ks]

        everything, count = np.arange(len(measured)), len(measured)
        curve = [Interval(v, v, v, count) for v in (overlaps(everything, CURVE) if count else ())]
        found = statistic_interval(count, lambda some: overlaps(some, (self.k,))[0], seed=seed)
        return MetricSummary(replace(found, low=max(0.0, found.low)), tuple(curve))


def _parts(one: Measured) -> Sequence[Mapping[str, Any]]:
    """Class and weights of each explanation of a text."""
    parts: Sequence[Mapping[str, Any]] = one.detail.get("several", (one.detail,))
    return parts


def rarity(how: Rarity, frequency: int, documents: int) -> float:
    """``log``: ln(N / max(df, 1)); ``smooth``: ln((1 + N)/(1 + df)) + 1; ``none``: 1."""
    if how == "none":
        return 1.0
    if how == "smooth":
        return log((1 + documents) / (1 + frequency)) + 1
    return log(documents / max(frequency, 1))


def _overlap(ranked: list[list[int]], k: int, *, share: bool) -> float:
    if len(ranked) < 2:
        return float("nan")  # every text was predicted as one class: nothing to compare
    pairs = list(combinations((set(tokens[:k]) for tokens in ranked), 2))
    common = sum(len(first & second) for first, second in pairs) / len(pairs)
    return common / k if share else common
