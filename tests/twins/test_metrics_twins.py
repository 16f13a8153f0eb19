"""Each metric once more, slowly, straight from the specification: plain lists, one text at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from math import exp, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.planted_model import (
    MASK,
    PAD,
    make_attribution,
    make_planted_explainer,
    make_row,
)
from tokenlight.data.attribution import Attribution

EXPLAINER = make_planted_explainer(np.random.default_rng(5).normal(size=(40, 3)), labels=3)
WEIGHTS = EXPLAINER.model.words.weight.detach().numpy()

word_lists = st.lists(st.integers(5, 39), min_size=1, max_size=14)
# Few, so that ties are common.
numbers = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0])


@st.composite
def draw_attributions(draw: Any, min_size: int = 1) -> Attribution:
    """Draw an attribution of random words, with scores that often tie."""
    words = draw(st.lists(st.integers(5, 39), min_size=min_size, max_size=16))
    scores = draw(st.lists(numbers, min_size=len(words), max_size=len(words)))
    return make_attribution(EXPLAINER, words, scores, target=draw(st.integers(0, 2)))


def compute_class_probabilities(
    ids: Iterable[int], attention: Sequence[int] | None = None
) -> list[float]:
    """Return the class probabilities of the planted model, from its weights."""
    logits = [0.0, 0.0, 0.0]
    for position, i in enumerate(ids):
        if attention is None or attention[position]:
            for c in range(3):
                logits[c] += WEIGHTS[i][c]
    powers = [exp(v - max(logits)) for v in logits]
    return [p / sum(powers) for p in powers]


def rank_positions(attribution: Attribution, *, ascending: bool = False) -> list[int]:
    """Return all positions, best first; the lower position first among equals."""
    sign = 1 if ascending else -1
    return sorted(range(len(attribution)), key=lambda i: (sign * attribution.scores[i], i))


def is_special(attribution: Attribution, i: int) -> bool:
    """Return whether a position holds [CLS] or [SEP]."""
    return i in (0, len(attribution) - 1)


def rank_words(attribution: Attribution, *, ascending: bool = False) -> list[int]:
    """Return the positions of :func:`rank_positions` without those of special tokens."""
    order = rank_positions(attribution, ascending=ascending)
    return [i for i in order if not is_special(attribution, i)]


def perturb_ids(attribution: Attribution, removed: set[int], mode: str) -> list[int]:
    """Return the ids with the tokens at ``removed`` deleted or replaced."""
    ids = list(attribution.row.ids)
    if mode == "delete":
        return [i for position, i in enumerate(ids) if position not in removed]
    stand_in = PAD if mode == "pad" else MASK
    return [stand_in if position in removed else i for position, i in enumerate(ids)]


def measure_one(attribution: Attribution, metric: Any, **options: Any) -> dict[str, Any]:
    """Return the row of one attribution in an evaluation."""
    (row,) = EXPLAINER.evaluate(
        attribution, [metric] if isinstance(metric, str) else metric, **options
    ).rows
    return row


@given(draw_attributions(), st.sampled_from(["delete", "pad", "mask"]), st.booleans())
def test_aopc_and_lodds_on_the_papers_grid_equal_their_twins(attribution, mode, from_bottom):
    order = rank_words(attribution, ascending=from_bottom)
    target_class = attribution.target.index
    num_rankable = len(order)
    original = compute_class_probabilities(attribution.row.ids)[target_class]
    falls = []
    ratios = []
    for k in (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100):
        removed = set(order[: round(k / 100 * num_rankable)])
        remaining = compute_class_probabilities(perturb_ids(attribution, removed, mode))[
            target_class
        ]
        falls.append(original - remaining)
        ratios.append(log(max(remaining, 1e-12) / max(original, 1e-12)))
    options = {"perturb": mode, "order": "bottom" if from_bottom else "top"}
    row = measure_one(attribution, [("aopc", options), ("lodds", options)])
    assert row["aopc.curve"] == pytest.approx(falls, abs=1e-9)
    assert row["aopc"] == pytest.approx(sum(falls) / 11, abs=1e-9)
    assert row["lodds"] == pytest.approx(sum(ratios) / 11, abs=1e-9)


@given(draw_attributions(min_size=8), st.integers(0, 2))
def test_aopc_and_lodds_of_the_official_codes_equal_their_twins(attribution, label):
    num_tokens = len(attribution)
    order = rank_positions(attribution)
    original = compute_class_probabilities(attribution.row.ids)[label]
    deleted = []
    padded = []
    ratios = []
    for t in range(1, 10):
        num_removed = round(t / 9 * num_tokens)
        removed = []
        next_rank = 0
        while len(removed) < num_removed and next_rank < len(order) - 1:
            if not is_special(attribution, order[next_rank]):
                removed.append(order[next_rank])
            next_rank += 1
        without = compute_class_probabilities(perturb_ids(attribution, removed, "delete"))[label]
        with_pad = compute_class_probabilities(perturb_ids(attribution, removed, "pad"))[label]
        deleted.append(abs(original - without))
        padded.append(original - with_pad)
        ratios.append(log(max(with_pad, 1e-12) / original))
    attcat = measure_one(
        attribution,
        [("aopc", {"preset": "attcat"}), ("lodds", {"preset": "attcat"})],
        labels=[label],
    )
    assert attcat["aopc"] == pytest.approx(sum(deleted) / 9, abs=1e-9)
    assert attcat["lodds"] == pytest.approx(sum(ratios) / 9, abs=1e-9)
    mask_lrp = measure_one(
        attribution, ("aopc", {"preset": "mask_lrp", "min_tokens": 0}), labels=[label]
    )
    assert mask_lrp["aopc"] == pytest.approx(sum(padded) / 9, abs=1e-9)


@given(draw_attributions())
def test_comprehensiveness_and_sufficiency_equal_their_twins(attribution):
    order = rank_words(attribution)
    target_class = attribution.target.index
    original = compute_class_probabilities(attribution.row.ids)[target_class]
    without = []
    alone = []
    for share in (0.01, 0.05, 0.1, 0.2, 0.5):
        top = set(order[: max(1, round(share * len(order)))])
        without_top = compute_class_probabilities(perturb_ids(attribution, top, "delete"))
        without.append(original - without_top[target_class])
        rest = {i for i in order if i not in top}
        without_rest = compute_class_probabilities(perturb_ids(attribution, rest, "delete"))
        alone.append(original - without_rest[target_class])
    row = measure_one(attribution, ["comprehensiveness", "sufficiency"])
    assert row["comprehensiveness"] == pytest.approx(sum(without) / 5, abs=1e-9)
    assert row["sufficiency"] == pytest.approx(sum(alone) / 5, abs=1e-9)


@given(draw_attributions(), st.integers(0, 2))
def test_hiding_and_revealing_games_equal_their_twins(attribution, label):
    order = rank_words(attribution)
    num_rankable = len(order)
    hiding = []
    revealing = []
    for step in range(21):
        count = round(step / 20 * num_rankable)
        for masked, outcomes in ((order[:count], hiding), (order[count:], revealing)):
            attention = [0 if i in masked else 1 for i in range(len(attribution))]
            probabilities = compute_class_probabilities(
                perturb_ids(attribution, masked, "mask"), attention
            )
            outcomes.append(1.0 if probabilities.index(max(probabilities)) == label else 0.0)
    row = measure_one(attribution, ["hiding_game", "revealing_game"], labels=[label])
    for name, right in (("hiding_game", hiding), ("revealing_game", revealing)):
        assert row[f"{name}.curve"] == right
        area = sum((x + y) / 2 / 20 for x, y in pairwise(right))
        assert row[name] == pytest.approx(area)


@given(
    st.lists(draw_attributions(), min_size=2, max_size=6),
    st.sampled_from(["log", "smooth", "none"]),
)
def test_token_overlap_equals_its_twin(attributions, idf):
    num_documents = len(attributions)
    frequency = {}
    sums = {}
    for attribution in attributions:
        for i in set(attribution.row.ids[1:-1]):
            frequency[i] = frequency.get(i, 0) + 1
    for attribution in attributions:
        weights_of_class = sums.setdefault(attribution.prediction.index, {})
        for i, score in zip(attribution.row.ids[1:-1], attribution.scores[1:-1], strict=True):
            factor = {
                "none": 1.0,
                "log": log(num_documents / frequency[i]),
                "smooth": log((1 + num_documents) / (1 + frequency[i])) + 1,
            }[idf]
            weights_of_class[i] = weights_of_class.get(i, 0.0) + score * factor
    k = 3
    lists = [
        {i for i, _ in sorted(weights.items(), key=lambda p: (-round(p[1], 9), p[0]))[:k]}
        for weights in sums.values()
    ]
    pairs = list(combinations(lists, 2))
    value = EXPLAINER.evaluate(attributions, ("token_overlap", {"idf": idf, "k": k})).summary
    mean = value["token_overlap"]["mean"]
    if not pairs:
        assert np.isnan(mean)
    elif _are_weights_apart(sums):
        assert mean == pytest.approx(sum(len(x & y) for x, y in pairs) / (len(pairs) * k))


def _are_weights_apart(sums: Mapping[Any, Mapping[Any, float]]) -> bool:
    """Return whether no two weights nearly tie: sums in another order differ in their last bits."""
    for weights in sums.values():
        sorted_weights = sorted(weights.values())
        if any(0 < abs(y - x) < 1e-9 for x, y in pairwise(sorted_weights)):
            return False
        if any(0 < abs(w) < 1e-9 for w in sorted_weights):
            return False
    return True


def compute_tau_b(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's tau-b, pair by pair."""
    above = ties_first = ties_second = pairs = 0
    for i, j in combinations(range(len(first)), 2):
        x = np.sign(first[i] - first[j])
        y = np.sign(second[i] - second[j])
        above += x * y
        ties_first += x == 0
        ties_second += y == 0
        pairs += 1
    return above / ((pairs - ties_first) * (pairs - ties_second)) ** 0.5


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=12))
def test_rank_correlations_equal_their_twins(pairs):
    from tokenlight.data.ranks import rank_correlation

    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        with pytest.raises(Exception, match="all scores of this text are equal"):
            rank_correlation(first, second, "kendall")
        return
    assert rank_correlation(first, second, "kendall") == pytest.approx(compute_tau_b(first, second))
    ranks = [
        [sum(o < v for o in side) + (sum(o == v for o in side) + 1) / 2 for v in side]
        for side in (first, second)
    ]
    assert rank_correlation(first, second, "spearman") == pytest.approx(np.corrcoef(*ranks)[0, 1])


@given(st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=15))
def test_average_precision_equals_its_twin(pairs):
    from tokenlight.metrics.rationale import compute_precision_recall_area

    scores = np.array([score for score, _ in pairs])
    gold = np.array([flag for _, flag in pairs])
    if not gold.any():
        return
    area = 0.0
    recall_before = 0.0
    for threshold in sorted(set(scores), reverse=True):
        is_above = scores >= threshold
        hits = (is_above & gold).sum()
        recall = hits / gold.sum()
        area += (recall - recall_before) * hits / is_above.sum()
        recall_before = recall
    assert compute_precision_recall_area(scores, gold, use_steps=True) == pytest.approx(area)


@given(word_lists)
def test_the_planted_model_has_the_probabilities_of_its_twin(words):
    from tokenlight.perturb.logits_stream import stream_logits

    row = make_row(words)
    (logits,) = stream_logits(EXPLAINER.runner, [row])
    powers = np.exp(logits - logits.max())
    np.testing.assert_allclose(
        powers / powers.sum(), compute_class_probabilities(row.ids), atol=1e-12
    )


def compute_faded_probabilities(
    attribution: Attribution, keep_probabilities: Sequence[float], seed: int
) -> list[float]:
    """Return class probabilities where a number of a vector stays if its draw is below its probability."""
    draws = np.random.default_rng(seed).random((len(attribution), 3), dtype=np.float32)
    logits = [0.0, 0.0, 0.0]
    for position, i in enumerate(attribution.row.ids):
        for d in range(3):
            if draws[position][d] < np.float32(keep_probabilities[position]):
                logits[d] += WEIGHTS[i][d]
    powers = [exp(v - max(logits)) for v in logits]
    return [p / sum(powers) for p in powers]


@given(draw_attributions(min_size=2), st.integers(0, 3))
def test_soft_sufficiency_and_comprehensiveness_equal_their_twins(attribution, seed):
    target_class = attribution.target.index
    inside = range(1, len(attribution) - 1)
    scores = [attribution.scores[i] for i in inside]
    lowest = min(scores)
    highest = max(scores)
    original = compute_class_probabilities(attribution.row.ids)[target_class]
    special_ids = [attribution.row.ids[0], attribution.row.ids[-1]]
    without_words = compute_class_probabilities(special_ids)[target_class]
    metrics = [(f"soft_{name}", {"seed": seed}) for name in ("sufficiency", "comprehensiveness")]
    row = measure_one(attribution, metrics)
    if highest == lowest or original - without_words < 1e-6:
        assert row["soft_sufficiency"] is None
        assert row["soft_comprehensiveness"] is None
        return
    seeds = attribution.row.make_generator(seed, 3).integers(2**32, size=10)
    importance = [(score - lowest) / (highest - lowest) for score in scores]
    for name, probabilities in (
        ("sufficiency", importance),
        ("comprehensiveness", [1 - value for value in importance]),
    ):
        keep_probabilities = [1.0, *probabilities, 1.0]
        falls = []
        for draw_seed in seeds:
            faded = compute_faded_probabilities(attribution, keep_probabilities, int(draw_seed))
            falls.append(max(0.0, original - faded[target_class]))
        plain = sum(falls) / len(falls)
        enough = 1 - plain
        baseline = 1 - max(0.0, original - without_words)
        normalized = {
            "sufficiency": (enough - baseline) / (1 - baseline),
            "comprehensiveness": plain / (1 - baseline),
        }[name]
        assert row[f"soft_{name}"] == pytest.approx(min(1.0, max(0.0, normalized)), abs=1e-9)
        assert 0 <= row[f"soft_{name}"] <= 1


@given(draw_attributions(), st.sampled_from(["plus", "minus"]), st.integers(0, 3))
def test_f_fidelity_equals_its_twin(attribution, side, seed):
    order = rank_words(attribution)
    target_class = attribution.target.index
    num_rankable = len(order)
    draws = attribution.row.make_generator(seed, 4).random((10, len(attribution)))
    original = compute_class_probabilities(attribution.row.ids)[target_class]
    curve = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        k = max(1, round(share * num_rankable))
        candidates = order[:k] if side == "plus" else order[k:]
        falls = []
        for numbers in draws:
            limit = min(0.5, 0.1 * num_rankable / len(candidates)) if candidates else 0.0
            removed = {i for i in candidates if numbers[i] < limit}
            remaining = compute_class_probabilities(perturb_ids(attribution, removed, "mask"))
            falls.append(original - remaining[target_class])
        curve.append(sum(falls) / len(falls))
    row = measure_one(attribution, [("f_fidelity", {"side": side, "seed": seed})])
    assert row["f_fidelity.curve"] == pytest.approx(curve, abs=1e-9)
    assert row["f_fidelity"] == pytest.approx(sum(curve) / len(curve), abs=1e-9)
