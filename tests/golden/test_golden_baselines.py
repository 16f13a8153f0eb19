"""The baselines equal the numbers of Captum and AllenNLP, in float64.

Two stored arrays are not compared: ``allennlp.smooth_seed0`` and ``derived.simple_mult_none`` sum the
features of a gradient behind which a LayerNorm stands. That sum is zero, so they hold rounding noise.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from tests.golden.test_golden_one_pass import classifier, vectors
from tokenlight import Tokens
from tokenlight.errors import BadInput

CASES = [f"in{i}" for i in range(6)]
SPECIAL = {101, 102}
# Captum keeps its nodes and its windows' weights in float32: 4e-8 is what they agree to.
ARRAYS = {
    "captum.lgxa": "grad_x_input",
    "captum.lig25": "integrated_gradients",
    "captum.lds": "deeplift_shap",
    "derived.grad_times_delta": ("deeplift_shap", {"rescale": "none"}),
    "captum.occlusion3_pad": "occlusion",
    "captum.occlusion3_base0": ("occlusion", {"preset": "thermostat"}),
    "allennlp.simple": ("simple", {"preset": "official"}),
    "derived.simple_mult_first": ("simple", {"multiply": "first"}),
    "derived.simple_mult_own": "simple",
    "allennlp.integrated": ("integrated", {"preset": "official"}),
}


@cache
def row(case):
    """The stored ids, [CLS] and [SEP] known as special: the stored baseline leaves them in place."""
    (bare,) = Tokens.from_ids(vectors("inputs")[case].reshape(1, -1))
    return dataclasses.replace(bare, special_tokens_mask=tuple(i in SPECIAL for i in bare.ids))


def stored(case, array):
    return vectors("baselines_f64")[f"{case}/{array}"]


def assert_close(ours, reference, tolerance=1e-6):
    np.testing.assert_allclose(ours, reference, rtol=0, atol=tolerance * np.abs(reference).max())


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("case", CASES)
def test_a_baseline_equals_the_official_numbers(case, array):
    attribution = classifier().explain(row(case), ARRAYS[array])
    assert attribution.prediction.index == int(stored(case, "pred"))
    assert_close(attribution.scores, stored(case, array))


@pytest.mark.parametrize("array", ARRAYS)
def test_the_official_numbers_come_out_of_one_batch(array):
    for case, attribution in zip(
        CASES, classifier().explain([row(case) for case in CASES], ARRAYS[array]), strict=True
    ):
        assert_close(attribution.scores, stored(case, array))


@pytest.mark.parametrize("method", ["simple", "smooth"])
def test_a_gradient_without_product_is_refused_where_it_is_rounding_noise(method):
    with pytest.raises(BadInput, match="rounding noise"):
        classifier().explain(row("in0"), (method, {"multiply": "none"}))


@pytest.mark.parametrize("case", ["in0", "in1"])
def test_sampled_shapley_values_approach_the_exact_ones_with_more_orders(case):
    exact = stored(case, "derived.shapley_exact")

    def error(samples):
        all_scores = [
            classifier().explain(row(case), ("shapley", {"samples": samples}), seed=seed).scores
            for seed in range(4)
        ]
        return float(np.sqrt(np.mean((np.array(all_scores) - exact) ** 2)))

    error_of_few = error(10)
    error_of_many = error(640)
    # 64 times the orders, an eighth of the error on average.
    assert error_of_many < error_of_few / 4
    assert error_of_many < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("case", ["in0", "in1"])
def test_captums_sampled_shapley_values_are_as_far_off_as_ours(case):
    exact = stored(case, "derived.shapley_exact")
    attribution = classifier().explain(row(case), "shapley")
    theirs = np.abs(stored(case, "captum.svs25_seed123") - exact).max()
    assert np.abs(attribution.scores - exact).max() < 3 * theirs
    np.testing.assert_allclose(attribution.scores.sum(), exact.sum(), atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_captums_own_orders_give_captums_own_shapley_values(case):
    attribution = classifier().explain(row(case), ("shapley", {"preset": "captum"}), seed=123)
    assert_close(attribution.scores, stored(case, "captum.svs25_seed123"))


def test_captums_orders_do_not_depend_on_the_batch_and_leave_the_global_seed_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    together = classifier().explain(
        [row(case) for case in CASES], ("shapley", {"orders": "captum", "seed": 123})
    )
    assert torch.equal(torch.get_rng_state(), before)
    for case, attribution in zip(CASES, together, strict=True):
        assert_close(attribution.scores, stored(case, "captum.svs25_seed123"))


@pytest.mark.parametrize("case", CASES)
def test_gradient_shap_approaches_integrated_gradients_with_more_samples(case):
    exact = classifier().explain(row(case), ("integrated_gradients", {"n_steps": 100})).scores

    def error(samples):
        attribution = classifier().explain(row(case), ("gradient_shap", {"samples": samples}))
        return np.abs(attribution.scores - exact).max() / np.abs(exact).max()

    assert error(300) < min(0.25, error(2))


@pytest.mark.parametrize("case", CASES)
def test_exact_integrated_gradients_sum_to_the_gain_of_the_target(case):
    attribution = classifier().explain(row(case), ("integrated_gradients", {"n_steps": 100}))
    convergence = attribution.extras["convergence"]
    assert convergence["gap_percent"] < 0.01
    np.testing.assert_allclose(attribution.scores.sum(), convergence["rise"], rtol=1e-4)
