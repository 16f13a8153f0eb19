"""Token overlap: do the most important tokens of the classes differ?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from typing import Any, Literal

import numpy as np

from tokenlight.data.intervals import bootstrap_statistic
from tokenlight.plugin import (
    Case,
    Count,
    Interval,
    Measurement,
    Metric,
    MetricSummary,
    VariantOutputs,
)

IdfVariant = Literal["log", "smooth", "none"]
CURVE_SIZES = tuple(range(10, 101, 10))
DECODED_PREFIX = "decoded_"  # methods with this prefix score token types, not positions


class TokenOverlap(Metric):
    r"""Mean share of tokens that the top-k lists of two classes have in common.

    .. math:: W_c(v) = \mathrm{idf}(v)\sum_{x:\,\hat y(x)=c} s_x(v), \qquad
        \mathrm{Overlap}(k) = \frac{\sum_{c<c'} |\mathrm{Top}_k(c)\cap\mathrm{Top}_k(c')|}{\binom C2\,k}

    over token types v that are not special. Lower is better. The curve runs over k = 10, 20, …, 100. Hou &
    Castañón 2023.
    Differs from the paper: it takes df from 50,000 Wikipedia articles and gives no formula for idf. Here C
    counts the classes that some text was predicted as, v runs over the types in their texts, and the score
    of a type by a decoded method counts once per text.

    Args:
        k: The length of the lists.
        idf: The inverse document frequency: ``"log"`` is ln(N / max(df, 1)), ``"smooth"`` is
            ln((1 + N)/(1 + df)) + 1, ``"none"`` is 1, with N documents of which df hold the type.
        normalize: ``"l1"`` divides the scores of each text by their L1 norm.
        report: ``"share"`` as above; ``"count"`` omits the division by k.
        tokens: ``"positive"`` keeps only types of positive weight, so that a list may be shorter than k.
        corpus: Where document frequencies come from: a file of texts, or one that ``tokenlight idf`` wrote
            (.json); by default the explained texts.
    """

    k: Count = 50
    idf: IdfVariant = "log"
    normalize: Literal["none", "l1"] = "none"
    report: Literal["share", "count"] = "share"
    tokens: Literal["all", "positive"] = "all"
    corpus: str | None = None
    cites = "hou2023decoding"
    better = "lower"
    needs_model = False
    needs_classes = True
    presets = {"paper": {}}

    @property
    def curve_points(self) -> tuple[float, ...]:
        return tuple(float(k) for k in CURVE_SIZES)

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        attribution = case.attribution
        positions = case.perturber.rankable_positions
        scores = attribution.scores[positions]
        ids = np.array(attribution.row.ids)[positions]
        token_types, type_indices = np.unique(ids, return_inverse=True)
        weights: np.ndarray = np.bincount(type_indices, scores, len(token_types))
        if attribution.method.startswith(DECODED_PREFIX):
            # Every position of a type has the type's score, which counts once.
            num_positions = np.bincount(type_indices, minlength=len(token_types))
            weights = weights / num_positions
            scores = weights
        if self.normalize == "l1":
            weights = weights / (np.abs(scores).sum() or 1.0)
        weight_by_id = {}
        for token_id, weight in zip(token_types, weights, strict=True):
            weight_by_id[str(token_id)] = float(weight)
        # One text has no overlap: it is a number of a whole set of texts.
        detail = {"class": attribution.prediction.index, "weights": weight_by_id}
        return Measurement(float("nan"), detail=detail)

    def combine(self, measurements: Sequence[Measurement]) -> Measurement:
        details: list[Mapping[str, Any]] = []
        for measurement in measurements:
            details += _list_details(measurement)
        return Measurement(float("nan"), detail={"explanations": details})

    def summarize(
        self, measurements: Sequence[Measurement], *, seed: int = 0, frequencies: Any = None
    ) -> MetricSummary:
        count = len(measurements)
        table = _WeightTable.from_measurements(measurements)
        idf = self._compute_idf(table, frequencies)

        def compute_overlaps(texts: np.ndarray, sizes: Sequence[int]) -> list[float]:
            ranked = self._rank_tokens(table, idf, texts)
            as_share = self.report == "share"
            return [_compute_mean_overlap(ranked, size, as_share=as_share) for size in sizes]

        def compute_overlap(texts: np.ndarray) -> float:
            return compute_overlaps(texts, (self.k,))[0]

        curve = []
        if count:
            for overlap in compute_overlaps(np.arange(count), CURVE_SIZES):
                curve.append(Interval(overlap, overlap, overlap, count))
        interval = bootstrap_statistic(count, compute_overlap, seed=seed)
        return MetricSummary(replace(interval, low=max(0.0, interval.low)), tuple(curve))

    def _compute_idf(self, table: "_WeightTable", frequencies: Any) -> np.ndarray:
        """Return the inverse document frequency of each token type, from a corpus or the texts."""
        num_documents = table.num_texts
        document_counts = table.count_documents()
        if frequencies is not None:
            num_documents = frequencies.num_documents
            ids = table.token_ids.tolist()
            document_counts = np.array([frequencies.counts.get(token_id, 0) for token_id in ids])
        idf = []
        for document_count in document_counts:
            idf.append(compute_idf(self.idf, int(document_count), num_documents))
        return np.array(idf)

    def _rank_tokens(
        self, table: "_WeightTable", idf: np.ndarray, texts: np.ndarray
    ) -> list[list[int]]:
        """Return the token types of each class, by falling weight in a sample of texts.

        Args:
            table: The weights of all explanations.
            idf: Inverse document frequency of each token type.
            texts: Indices of the sampled texts, maybe repeated.
        """
        draw_counts = np.bincount(texts, minlength=table.num_texts)[table.text_of_explanation]
        ranked = []
        for label in np.unique(table.classes[draw_counts > 0]):
            class_counts = draw_counts * (table.classes == label)
            entry_counts = class_counts[table.explanation_of_entry]
            class_weights = table.sum_by_token(table.weights * entry_counts) * idf
            is_listed = table.sum_by_token(entry_counts) > 0  # types in the texts of the class
            if self.tokens == "positive":
                is_listed &= class_weights > 0
            order = np.argsort(-class_weights, kind="stable")  # equal weights by token id
            ranked.append(order[is_listed[order]].tolist())
        return ranked


@dataclass(frozen=True)
class _WeightTable:
    """The weights of all explanations as one sparse table: an entry per explanation and token type.

    Attributes:
        num_texts: Number of texts.
        text_of_explanation: Index of the text, of shape ``explanation``. A text may have several
            explanations, and is drawn with all of them.
        classes: Predicted class, of shape ``explanation``.
        token_ids: Ids of the token types, of shape ``type``.
        explanation_of_entry: Index of the explanation, of shape ``entry``.
        type_of_entry: Index of the token type, of shape ``entry``.
        weights: Weight of the type in the explanation, of shape ``entry``.
    """

    num_texts: int
    text_of_explanation: np.ndarray
    classes: np.ndarray
    token_ids: np.ndarray
    explanation_of_entry: np.ndarray
    type_of_entry: np.ndarray
    weights: np.ndarray

    @classmethod
    def from_measurements(cls, measurements: Sequence[Measurement]) -> "_WeightTable":
        texts: list[int] = []
        classes: list[int] = []
        entries: list[tuple[int, int, float]] = []
        for text_index, measurement in enumerate(measurements):
            for detail in _list_details(measurement):
                explanation_index = len(texts)
                texts.append(text_index)
                classes.append(int(detail["class"]))
                for token_id, weight in detail["weights"].items():
                    entries.append((explanation_index, int(token_id), weight))
        explanation_indices, ids, weights = np.array(entries, dtype=np.float64).reshape(-1, 3).T
        token_ids, type_of_entry = np.unique(ids.astype(np.int64), return_inverse=True)
        return cls(
            len(measurements),
            np.array(texts, dtype=np.int64),
            np.array(classes, dtype=np.int64),
            token_ids,
            explanation_indices.astype(np.int64),
            type_of_entry,
            weights,
        )

    def sum_by_token(self, values: np.ndarray) -> np.ndarray:
        """Sum a value per entry over the entries of each token type."""
        return np.bincount(self.type_of_entry, values, len(self.token_ids))

    def count_documents(self) -> np.ndarray:
        """Return in how many texts each token type occurs; several explanations of a text count once."""
        num_types = len(self.token_ids)
        text_of_entry = self.text_of_explanation[self.explanation_of_entry]
        unique_pairs = np.unique(text_of_entry * num_types + self.type_of_entry)
        return np.bincount(unique_pairs % max(1, num_types), minlength=num_types)


def _list_details(measurement: Measurement) -> Sequence[Mapping[str, Any]]:
    """Return class and weights of each explanation of a text."""
    # Records of earlier versions have "several".
    for key in ("explanations", "several"):
        if key in measurement.detail:
            details: Sequence[Mapping[str, Any]] = measurement.detail[key]
            return details
    return (measurement.detail,)


def compute_idf(variant: IdfVariant, frequency: int, num_documents: int) -> float:
    """Return an inverse document frequency.

    Args:
        variant: ``log`` is ln(N / max(df, 1)), ``smooth`` is ln((1 + N)/(1 + df)) + 1, ``none`` is 1.
        frequency: Documents that contain the token, df.
        num_documents: Number of documents, N.
    """
    if variant == "none":
        return 1.0
    if variant == "smooth":
        return log((1 + num_documents) / (1 + frequency)) + 1
    return log(num_documents / max(frequency, 1))


def _compute_mean_overlap(ranked: Sequence[Sequence[int]], k: int, *, as_share: bool) -> float:
    """Return the mean overlap of the top-k lists over pairs of classes."""
    if len(ranked) < 2:
        return float("nan")  # all texts were predicted as one class
    top_sets = [set(tokens[:k]) for tokens in ranked]
    overlaps = [len(first & second) for first, second in combinations(top_sets, 2)]
    mean_overlap = sum(overlaps) / len(overlaps)
    return mean_overlap / k if as_share else mean_overlap
