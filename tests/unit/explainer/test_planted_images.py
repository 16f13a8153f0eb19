"""A model whose truth is known: one coloured patch decides, so explanations can be right or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.image_models import draw_images_with_patch, train_patch_classifier
from tests.helpers.tolerance import FLOAT32

COVERED_MODULES = ("metrics/insertion",)
METHODS = ["raw_att", "gae", "transatt", "attnlrp", "integrated_gradients"]


@pytest.fixture(scope="module")
def explained():
    """Forty pictures the model gets right, with the place of the patch that decides."""
    explainer = train_patch_classifier()
    result, positions, labels = draw_images_with_patch(40, seed=1000)
    attributions = explainer.explain(result, METHODS)
    right = [
        attributions[len(METHODS) * i].prediction.index == label for i, label in enumerate(labels)
    ]
    assert np.mean(right) > 0.95
    return explainer, attributions, positions, labels


@pytest.mark.parametrize("method", METHODS)
def test_the_patch_that_decides_is_found(explained, method):
    """By the mean of three models: how much each hands on from patch to patch in its first block
    depends on the last bit of its lessons, and so on the version of torch."""
    hits = []
    for seed in range(3):
        result, positions, _ = draw_images_with_patch(40, seed=1000)
        mine = train_patch_classifier(seed).explain(result, method) if seed else explained[1]
        mine = [attribution for attribution in mine if attribution.method == method]
        hits.append(
            np.mean(
                [
                    int(attribution.patches().argmax()) == p
                    for attribution, p in zip(mine, positions, strict=True)
                ]
            )
        )
    assert np.mean(hits) > 0.6  # chance is 1/16
    assert min(hits) > 0.3


def make_oracle(attribution, position, sign):
    """The coloured patch first (or last), the others alike."""
    scores = np.zeros(len(attribution))
    scores[1 + position] = sign
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
def test_the_oracle_beats_random_and_random_beats_the_inverse(explained, name):
    explainer, attributions, positions, labels = explained
    first = attributions[:: len(METHODS)]
    chance = explainer.explain([attribution.row for attribution in first], "random")
    means = []
    for group in (
        [
            make_oracle(attribution, position, 1)
            for attribution, position in zip(first, positions, strict=True)
        ],
        chance,
        [
            make_oracle(attribution, position, -1)
            for attribution, position in zip(first, positions, strict=True)
        ],
    ):
        evaluation = explainer.evaluate(group, [METRICS[name]], labels=labels.tolist())
        assert evaluation.summary[name]["count"] == len(first)
        means.append(evaluation.summary[name]["mean"])
    best, middle, worst = (
        means if evaluation.metrics[name].direction == "higher" else [-m for m in means]
    )
    assert best > middle > worst


def test_curves_of_deletion_and_insertion_meet_at_their_ends(explained):
    """Nothing hidden is the picture; everything hidden is its filling: the same for every order."""
    explainer, attributions, _, _ = explained
    (attribution,) = attributions[:1]
    evaluation = explainer.evaluate(attribution, ["deletion", "insertion"])
    deletion, insertion = (
        evaluation.records[0].measurements[name].curve for name in ("deletion", "insertion")
    )
    assert deletion[0] == pytest.approx(insertion[-1], abs=FLOAT32)
    assert deletion[-1] == pytest.approx(insertion[0], abs=FLOAT32)
    assert deletion[0] == pytest.approx(attribution.prediction.probability, abs=FLOAT32)


def test_randomized_weights_change_the_explanation(explained):
    explainer, attributions, _, _ = explained
    evaluation = explainer.evaluate(
        [
            attribution
            for attribution in attributions[: 3 * len(METHODS)]
            if attribution.method == "attnlrp"
        ],
        "randomisation",
    )
    summary = evaluation.summary["randomisation"]
    assert summary["count"] == 3
    assert summary["mean"] < 0.9
