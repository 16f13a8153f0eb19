"""Each metric once more, slowly, straight from the specification: plain lists, one text at a time."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planted import MASK, PAD, planted, row_of, scored

EXPLAINER = planted(np.random.default_rng(5).normal(size=(40, 3)), labels=3)
WEIGHTS = EXPLAINER.model.words.weight.detach().numpy()

texts = st.lists(st.integers(5, 39), min_size=1, max_size=14)
numbers = st.sampled_from(
    [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]
)  # few, so that ties are common


@st.composite
def explained(draw, least=1):
    words = draw(st.lists(st.integers(5, 39), min_size=least, max_size=16))
    scores = draw(st.lists(numbers, min_size=len(words), max_size=len(words)))
    return scored(EXPLAINER, words, scores, target=draw(st.integers(0, 2)))


def chances(ids, attention=None):
    logits = [0.0, 0.0, 0.0]
    for position, i in enumerate(ids):
        if attention is None or attention[position]:
            for c in range(3):
                logits[c] += WEIGHTS[i][c]
    powers = [exp(v - max(logits)) for v in logits]
    return [p / sum(powers) for p in powers]


def by_score(a, *, ascending=False):
    """All positions, best first; the lower position first among equals."""
    sign = 1 if ascending else -1
    return sorted(range(len(a)), key=lambda i: (sign * a.scores[i], i))


def is_special(a, i):
    return i in (0, len(a) - 1)


def changed(a, taken, how):
    ids = list(a.row.ids)
    if how == "delete":
        return [i for position, i in enumerate(ids) if position not in taken]
    stand_in = PAD if how == "pad" else MASK
    return [stand_in if position in taken else i for position, i in enumerate(ids)]


def one_row(a, metric, **known):
    (row,) = EXPLAINER.evaluate(a, [metric] if isinstance(metric, str) else metric, **known).rows
    return row


@given(explained(), st.sampled_from(["delete", "pad", "mask"]), st.booleans())
def test_aopc_and_lodds_on_the_papers_grid(a, how, bottom):
    order = [i for i in by_score(a, ascending=bottom) if not is_special(a, i)]
    c, m = a.target.index, len(order)
    whole = chances(a.row.ids)[c]
    falls, ratios = [], []
    for k in (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100):
        taken = set(order[: round(k / 100 * m)])
        left = chances(changed(a, taken, how))[c]
        falls.append(whole - left)
        ratios.append(log(max(left, 1e-12) / max(whole, 1e-12)))
    options = {"perturb": how, "order": "bottom" if bottom else "top"}
    row = one_row(a, [("aopc", options), ("lodds", options)])
    assert row["aopc.curve"] == pytest.approx(falls, abs=1e-9)
    assert row["aopc"] == pytest.approx(sum(falls) / 11, abs=1e-9)
    assert row["lodds"] == pytest.approx(sum(ratios) / 11, abs=1e-9)


@given(explained(least=8), st.integers(0, 2))
def test_aopc_and_lodds_of_the_official_codes(a, label):
    n = len(a)
    order = by_score(a)
    whole = chances(a.row.ids)[label]
    deleted, padded, ratios = [], [], []
    for t in range(1, 10):
        wanted = round(t / 9 * n)
        taken, i = [], 0
        while len(taken) < wanted and i < len(order) - 1:
            if not is_special(a, order[i]):
                taken.append(order[i])
            i += 1
        without = chances(changed(a, taken, "delete"))[label]
        with_pad = chances(changed(a, taken, "pad"))[label]
        deleted.append(abs(whole - without))
        padded.append(whole - with_pad)
        ratios.append(log(max(with_pad, 1e-12) / whole))
    attcat = one_row(
        a, [("aopc", {"preset": "attcat"}), ("lodds", {"preset": "attcat"})], labels=[label]
    )
    assert attcat["aopc"] == pytest.approx(sum(deleted) / 9, abs=1e-9)
    assert attcat["lodds"] == pytest.approx(sum(ratios) / 9, abs=1e-9)
    mask_lrp = one_row(a, ("aopc", {"preset": "mask_lrp", "min_len": 0}), labels=[label])
    assert mask_lrp["aopc"] == pytest.approx(sum(padded) / 9, abs=1e-9)


@given(explained())
def test_comprehensiveness_and_sufficiency(a):
    order = [i for i in by_score(a) if not is_special(a, i)]
    c = a.target.index
    whole = chances(a.row.ids)[c]
    without, alone = [], []
    for share in (0.01, 0.05, 0.1, 0.2, 0.5):
        top = set(order[: max(1, round(share * len(order)))])
        without.append(whole - chances(changed(a, top, "delete"))[c])
        rest = {i for i in order if i not in top}
        alone.append(whole - chances(changed(a, rest, "delete"))[c])
    row = one_row(a, ["comprehensiveness", "sufficiency"])
    assert row["comprehensiveness"] == pytest.approx(sum(without) / 5, abs=1e-9)
    assert row["sufficiency"] == pytest.approx(sum(alone) / 5, abs=1e-9)


@given(explained(), st.integers(0, 2))
def test_games(a, label):
    order = [i for i in by_score(a) if not is_special(a, i)]
    m = len(order)
    hiding, revealing = [], []
    for step in range(21):
        count = round(step / 20 * m)
        for gone, into in ((order[:count], hiding), (order[count:], revealing)):
            attention = [0 if i in gone else 1 for i in range(len(a))]
            found = chances(changed(a, gone, "mask"), attention)
            into.append(1.0 if found.index(max(found)) == label else 0.0)
    row = one_row(a, ["hiding_game", "revealing_game"], labels=[label])
    for name, right in (("hiding_game", hiding), ("revealing_game", revealing)):
        assert row[f"{name}.curve"] == right
        area = sum((x + y) / 2 / 20 for x, y in pairwise(right))
        assert row[name] == pytest.approx(area)


@given(
    st.lists(explained(), min_size=2, max_size=6),
    st.sampled_from(["log", "smooth", "none"]),
)
def test_token_overlap(found, idf):
    documents = len(found)
    frequency, sums = {}, {}
    for a in found:
        for i in set(a.row.ids[1:-1]):
            frequency[i] = frequency.get(i, 0) + 1
    for a in found:
        into = sums.setdefault(a.prediction.index, {})
        for i, score in zip(a.row.ids[1:-1], a.scores[1:-1], strict=True):
            factor = {
                "none": 1.0,
                "log": log(documents / frequency[i]),
                "smooth": log((1 + documents) / (1 + frequency[i])) + 1,
            }[idf]
            into[i] = into.get(i, 0.0) + score * factor
    k = 3
    lists = [
        {i for i, _ in sorted(weights.items(), key=lambda p: (-round(p[1], 9), p[0]))[:k]}
        for weights in sums.values()
    ]
    pairs = list(combinations(lists, 2))
    value = EXPLAINER.evaluate(found, ("token_overlap", {"idf": idf, "k": k})).summary
    mean = value["token_overlap"]["mean"]
    if not pairs:
        assert np.isnan(mean)
    elif _no_close_weights(sums):
        assert mean == pytest.approx(sum(len(x & y) for x, y in pairs) / (len(pairs) * k))


def _no_close_weights(sums):
    """Sums in another order differ in their last bits: near ties have no one right list."""
    for weights in sums.values():
        found = sorted(weights.values())
        if any(0 < abs(y - x) < 1e-9 for x, y in pairwise(found)):
            return False
        if any(0 < abs(w) < 1e-9 for w in found):
            return False
    return True


def tau_b(first, second):
    above = ties_first = ties_second = pairs = 0
    for i, j in combinations(range(len(first)), 2):
        x, y = np.sign(first[i] - first[j]), np.sign(second[i] - second[j])
        above += x * y
        ties_first += x == 0
        ties_second += y == 0
        pairs += 1
    return above / ((pairs - ties_first) * (pairs - ties_second)) ** 0.5


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=12))
def test_rank_correlations(pairs):
    from tokenlight.metrics._ranking import similarity

    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        with pytest.raises(Exception, match="all scores of this text are equal"):
            similarity(first, second, "kendall")
        return
    assert similarity(first, second, "kendall") == pytest.approx(tau_b(first, second))
    ranks = [
        [sum(o < v for o in side) + (sum(o == v for o in side) + 1) / 2 for v in side]
        for side in (first, second)
    ]
    assert similarity(first, second, "spearman") == pytest.approx(np.corrcoef(*ranks)[0, 1])


@given(st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=15))
def test_average_precision(pairs):
    from tokenlight.metrics.rationale import area_under

    scores = np.array([score for score, _ in pairs])
    gold = np.array([flag for _, flag in pairs])
    if not gold.any():
        return
    area, recall_before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        hits = (chosen & gold).sum()
        recall = hits / gold.sum()
        area += (recall - recall_before) * hits / chosen.sum()
        recall_before = recall
    assert area_under(scores, gold, steps=True) == pytest.approx(area)


@given(texts)
def test_the_planted_model_is_what_this_file_says(words):
    from tokenlight.capture.perturbation import stream_logits

    row = row_of(words)
    (logits,) = stream_logits(EXPLAINER.live, [row])
    powers = np.exp(logits - logits.max())
    np.testing.assert_allclose(powers / powers.sum(), chances(row.ids), atol=1e-12)


def faded_chances(a, kept, seed):
    """Class probabilities where each number of each word's vector stays if its draw is below ``kept``."""
    drawn = np.random.default_rng(seed).random((len(a), 3), dtype=np.float32)
    logits = [0.0, 0.0, 0.0]
    for position, i in enumerate(a.row.ids):
        for d in range(3):
            if drawn[position][d] < np.float32(kept[position]):
                logits[d] += WEIGHTS[i][d]
    powers = [exp(v - max(logits)) for v in logits]
    return [p / sum(powers) for p in powers]


@given(explained(least=2), st.integers(0, 3))
def test_soft_sufficiency_and_comprehensiveness(a, seed):
    c, inside = a.target.index, range(1, len(a) - 1)
    scores = [a.scores[i] for i in inside]
    lowest, highest = min(scores), max(scores)
    whole = chances(a.row.ids)[c]
    nothing = chances([a.row.ids[0], a.row.ids[-1]])[c]
    metrics = [(f"soft_{name}", {"seed": seed}) for name in ("sufficiency", "comprehensiveness")]
    row = one_row(a, metrics)
    if highest == lowest or whole - nothing < 1e-6:
        assert row["soft_sufficiency"] is None
        assert row["soft_comprehensiveness"] is None
        return
    seeds = a.row.generator(seed, 3).integers(2**32, size=10)
    importance = [(score - lowest) / (highest - lowest) for score in scores]
    for name, probabilities in (
        ("sufficiency", importance),
        ("comprehensiveness", [1 - one for one in importance]),
    ):
        kept = [1.0, *probabilities, 1.0]
        falls = [max(0.0, whole - faded_chances(a, kept, int(one))[c]) for one in seeds]
        plain = sum(falls) / len(falls)
        enough, baseline = 1 - plain, 1 - max(0.0, whole - nothing)
        normalised = {
            "sufficiency": (enough - baseline) / (1 - baseline),
            "comprehensiveness": plain / (1 - baseline),
        }[name]
        assert row[f"soft_{name}"] == pytest.approx(min(1.0, max(0.0, normalised)), abs=1e-9)
        assert 0 <= row[f"soft_{name}"] <= 1


@given(explained(), st.sampled_from(["plus", "minus"]), st.integers(0, 3))
def test_f_fidelity(a, side, seed):
    order = [i for i in by_score(a) if not is_special(a, i)]
    c, m = a.target.index, len(order)
    drawn = a.row.generator(seed, 4).random((10, len(a)))
    curve = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        k = max(1, round(share * m))
        chosen = order[:k] if side == "plus" else order[k:]
        falls = []
        for numbers in drawn:
            limit = min(0.5, 0.1 * m / len(chosen)) if chosen else 0.0
            taken = {i for i in chosen if numbers[i] < limit}
            falls.append(chances(a.row.ids)[c] - chances(changed(a, taken, "mask"))[c])
        curve.append(sum(falls) / len(falls))
    row = one_row(a, [("f_fidelity", {"side": side, "seed": seed})])
    assert row["f_fidelity.curve"] == pytest.approx(curve, abs=1e-9)
    assert row["f_fidelity"] == pytest.approx(sum(curve) / len(curve), abs=1e-9)
