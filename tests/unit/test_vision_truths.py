"""A model whose truth is known: one coloured patch decides, so explanations can be right or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tolerance import FLOAT32
from tests.vision import spotted, taught

METHODS = ["raw_att", "gae", "transatt", "attnlrp", "integrated_gradients"]


@pytest.fixture(scope="module")
def explained():
    """Forty pictures the model gets right, with the place of the patch that decides."""
    explainer = taught()
    found, places, labels = spotted(40, seed=1000)
    made = explainer.explain(found, METHODS)
    right = [made[len(METHODS) * i].prediction.index == label for i, label in enumerate(labels)]
    assert np.mean(right) > 0.95
    return explainer, made, places, labels


@pytest.mark.parametrize("method", METHODS)
def test_the_patch_that_decides_is_found(explained, method):
    """By the mean of three models: how much each hands on from patch to patch in its first block
    depends on the last bit of its lessons, and so on the version of torch."""
    hits = []
    for seed in range(3):
        found, places, _ = spotted(40, seed=1000)
        mine = taught(seed).explain(found, method) if seed else explained[1]
        mine = [a for a in mine if a.method == method]
        hits.append(
            np.mean([int(a.patches().argmax()) == p for a, p in zip(mine, places, strict=True)])
        )
    assert np.mean(hits) > 0.6  # chance is 1/16
    assert min(hits) > 0.3


def oracle(attribution, place, sign):
    """The coloured patch first (or last), the others alike."""
    scores = np.zeros(len(attribution))
    scores[1 + place] = sign
    return replace(attribution, scores=scores, layers=None, method=f"oracle {sign:+d}")


METRICS = {
    "deletion": "deletion",
    "insertion": "insertion",
    "aopc": ("aopc", {"perturb": "mask"}),
    "lodds": ("lodds", {"perturb": "mask"}),
    "comprehensiveness": ("comprehensiveness", {"perturb": "mask"}),
    "sufficiency": ("sufficiency", {"perturb": "mask"}),
    "hiding_game": "hiding_game",
    "revealing_game": "revealing_game",
}


@pytest.mark.parametrize("name", METRICS)
def test_the_oracle_beats_chance_and_chance_beats_its_opposite(explained, name):
    explainer, made, places, labels = explained
    first = made[:: len(METHODS)]
    chance = explainer.explain([a.row for a in first], "random")
    means = []
    for group in (
        [oracle(a, place, 1) for a, place in zip(first, places, strict=True)],
        chance,
        [oracle(a, place, -1) for a, place in zip(first, places, strict=True)],
    ):
        found = explainer.evaluate(group, [METRICS[name]], labels=labels.tolist())
        assert found.summary[name]["count"] == len(first)
        means.append(found.summary[name]["mean"])
    best, middle, worst = (
        means if found.metrics[name].direction == "higher" else [-m for m in means]
    )
    assert best > middle > worst


def test_curves_of_deletion_and_insertion_meet_at_their_ends(explained):
    """Nothing hidden is the picture; everything hidden is its filling: the same for every order."""
    explainer, made, _, _ = explained
    (a,) = made[:1]
    found = explainer.evaluate(a, ["deletion", "insertion"])
    deletion, insertion = (
        found.records[0].measured[name].curve for name in ("deletion", "insertion")
    )
    assert deletion[0] == pytest.approx(insertion[-1], abs=FLOAT32)
    assert deletion[-1] == pytest.approx(insertion[0], abs=FLOAT32)
    assert deletion[0] == pytest.approx(a.prediction.probability, abs=FLOAT32)


def test_randomised_weights_change_the_explanation(explained):
    explainer, made, _, _ = explained
    found = explainer.evaluate(
        [a for a in made[: 3 * len(METHODS)] if a.method == "attnlrp"], "randomisation"
    )
    summary = found.summary["randomisation"]
    assert summary["count"] == 3
    assert summary["mean"] < 0.9
