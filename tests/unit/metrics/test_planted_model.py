"""What must hold of every faithfulness metric on a model whose truth is planted, and that these
truths would notice a wrong metric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.helpers.hand_computed_metrics import (
    assert_aopc_equals_the_value_by_hand,
    assert_comprehensiveness_and_sufficiency_equal_the_values_by_hand,
)
from tests.helpers.planted_model import (
    compute_oracle_scores,
    make_attribution,
    make_planted_explainer,
)
from tokenlight import registry
from tokenlight.data.ranks import rank_subset
from tokenlight.metrics import (
    aopc,
    comprehensiveness,
    f_fidelity,
    hiding_game,
    lodds,
    revealing_game,
    soft_comprehensiveness,
    soft_sufficiency,
    sufficiency,
)

FAITHFUL = (
    "aopc",
    "lodds",
    "comprehensiveness",
    "sufficiency",
    "hiding_game",
    "revealing_game",
    "soft_comprehensiveness",
    "soft_sufficiency",
    "f_fidelity",
)
TEXTS = 24


def make_explanations():
    explainer = make_planted_explainer()
    generator = np.random.default_rng(3)
    values = {"oracle": [], "random": [], "inverted": []}
    labels = []
    for _ in range(TEXTS):
        words = generator.integers(5, 40, 12).tolist()
        truth = compute_oracle_scores(
            explainer, words, int(np.argmax(make_attribution(explainer, words, [0] * 12).logits))
        )
        for name, scores in (
            ("oracle", truth),
            ("random", generator.normal(size=12)),
            ("inverted", -truth),
        ):
            values[name].append(make_attribution(explainer, words, scores, method=name))
        labels.append(values["oracle"][-1].prediction.index)
    return explainer, values, labels


EXPLAINER, FOUND, LABELS = make_explanations()


def measure_means(metric):
    """Mean of the metric for the oracle, a random order and the inverted oracle; higher is better."""
    sign = 1 if metric.direction == "higher" else -1
    return [
        sign * EXPLAINER.evaluate(FOUND[name], metric, labels=LABELS).summary[metric.name]["mean"]
        for name in ("oracle", "random", "inverted")
    ]


def oracle_beats_random_beats_inverted(metric):
    best, middle, worst = measure_means(metric)
    assert best > middle > worst


@pytest.mark.parametrize("name", FAITHFUL)
def test_oracle_beats_random_beats_inverted(name):
    oracle_beats_random_beats_inverted(registry.build("metrics", name))


@pytest.mark.parametrize("name", ["aopc", "lodds"])
def test_removing_the_lowest_scores_first_reverses_the_direction(name):
    bottom = registry.build("metrics", name, {"order": "bottom"})
    assert bottom.direction != registry.build("metrics", name).direction
    oracle_beats_random_beats_inverted(bottom)


def test_lower_is_better_for_masking_the_rest():
    minus = registry.build("metrics", "f_fidelity", {"side": "minus"})
    assert minus.direction == "lower"
    oracle_beats_random_beats_inverted(minus)


@pytest.mark.parametrize("name", ["hiding_game", "revealing_game"])
def test_masking_the_least_important_first_reverses_the_direction(name):
    least = registry.build("metrics", name, {"first": "least"})
    assert least.direction != registry.build("metrics", name).direction
    oracle_beats_random_beats_inverted(least)


# AttCAT's own AOPC takes |p − p̃|, so a rise counts as a fall: it is left out on purpose.
@pytest.mark.parametrize(
    ("name", "preset"), [("aopc", "mask_lrp"), ("lodds", "attcat"), ("lodds", "mask_lrp")]
)
def test_the_official_readings_agree_on_the_planted_truth(name, preset):
    oracle_beats_random_beats_inverted(
        registry.build("metrics", name, {"preset": preset, "min_tokens": 0})
    )


# --- mutations: each is a slip someone could make; a truth above or by hand must turn red ------------


@dataclass(frozen=True)
class SignFlipped(aopc.AreaOverPerturbationCurve):
    def compute_curve(self, original, perturbed):
        return perturbed - original


@dataclass(frozen=True)
class RatioTurned(lodds.LogOdds):
    def compute_curve(self, original, perturbed):
        return -lodds.LogOdds.compute_curve(self, original, perturbed)


@dataclass(frozen=True)
class KeptInsteadOfErased(comprehensiveness.Comprehensiveness):
    def split_order(self, order, counts):
        return [order[count:] for count in counts]


@dataclass(frozen=True)
class ErasedInsteadOfKept(sufficiency.Sufficiency):
    def split_order(self, order, counts):
        return [order[:count] for count in counts]


@dataclass(frozen=True)
class HiddenInsteadOfShown(revealing_game.RevealingGame):
    def split_order(self, order, counts):
        return [order[:count] for count in counts]


@dataclass(frozen=True)
class MostImportantKept(soft_comprehensiveness.SoftComprehensiveness):
    def compute_keep_probabilities(self, case):
        return soft_sufficiency.SoftSufficiency.compute_keep_probabilities(
            soft_sufficiency.SoftSufficiency(), case
        )


@dataclass(frozen=True)
class MostImportantGone(soft_sufficiency.SoftSufficiency):
    def compute_keep_probabilities(self, case):
        plain = soft_comprehensiveness.SoftComprehensiveness()
        return soft_comprehensiveness.SoftComprehensiveness.compute_keep_probabilities(plain, case)


@dataclass(frozen=True)
class RestMasked(f_fidelity.FineTunedFidelity):
    def rank_removable(self, case):
        return f_fidelity.FineTunedFidelity.rank_removable(self, case)[::-1]


@dataclass(frozen=True)
class LeastFirst(hiding_game.HidingGame):
    def split_order(self, order, counts):
        return [order[::-1][:count] for count in counts]


@pytest.mark.parametrize(
    "mutant",
    [
        SignFlipped(),
        RatioTurned(),
        KeptInsteadOfErased(),
        ErasedInsteadOfKept(),
        HiddenInsteadOfShown(),
        LeastFirst(),
        MostImportantKept(),
        MostImportantGone(),
        RestMasked(),
    ],
    ids=lambda mutant: type(mutant).__name__,
)
def test_the_planted_model_detects_a_wrong_metric(mutant, monkeypatch):
    monkeypatch.setattr(type(mutant), "name", type(mutant).__mro__[1].__module__.rpartition(".")[2])
    with pytest.raises(AssertionError):
        oracle_beats_random_beats_inverted(mutant)


@dataclass(frozen=True)
class OneTooMany(aopc.AreaOverPerturbationCurve):
    def select_removed_positions(self, case):
        order = rank_subset(case.attribution.scores, case.perturber.rankable_positions)
        return [
            order[: len(positions) + 1]
            for positions in aopc.AreaOverPerturbationCurve.select_removed_positions(self, case)
        ]


@dataclass(frozen=True)
class OneTooFew(aopc.AreaOverPerturbationCurve):
    def select_removed_positions(self, case):
        return [
            positions[:-1]
            for positions in aopc.AreaOverPerturbationCurve.select_removed_positions(self, case)
        ]


@dataclass(frozen=True)
class WithSpecials(aopc.AreaOverPerturbationCurve):
    protect_special: bool = False


@pytest.mark.parametrize("mutant", [OneTooMany, OneTooFew, WithSpecials])
def test_the_hand_computed_example_notices_a_slip_in_k(mutant, monkeypatch):
    assert_aopc_equals_the_value_by_hand()
    monkeypatch.setattr(registry, "load_class", lambda *_: mutant)
    monkeypatch.setattr(mutant, "name", "aopc")
    with pytest.raises(AssertionError):
        assert_aopc_equals_the_value_by_hand()


@pytest.mark.parametrize(
    ("name", "swapped"),
    [("comprehensiveness", KeptInsteadOfErased), ("sufficiency", ErasedInsteadOfKept)],
)
def test_the_hand_computed_example_notices_comprehensiveness_and_sufficiency_swapped(
    name, swapped, monkeypatch
):
    real = registry.load_class
    monkeypatch.setattr(
        registry, "load_class", lambda kind, key: swapped if key == name else real(kind, key)
    )
    monkeypatch.setattr(swapped, "name", name)
    with pytest.raises(AssertionError):
        assert_comprehensiveness_and_sufficiency_equal_the_values_by_hand()
