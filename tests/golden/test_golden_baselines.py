"""The baselines equal the numbers of Captum and AllenNLP, in float64.

Two stored arrays are not compared: ``allennlp.smooth_seed0`` and ``derived.simple_mult_none`` sum the
features of a gradient behind which a LayerNorm stands. That sum is zero, so they hold rounding noise.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.golden_vectors import INPUTS, load_classifier, load_vectors
from tests.helpers.tolerance import assert_close
from tokenlight import Tokens
from tokenlight.errors import BadInput

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
TOLERANCE = 1e-6


@cache
def load_row(case: str) -> Any:
    """Return the stored ids; [CLS] and [SEP] are special, since the stored baseline leaves them in place."""
    (bare,) = Tokens.from_ids(load_vectors("inputs")[case].reshape(1, -1))
    return dataclasses.replace(bare, special_tokens_mask=tuple(i in SPECIAL for i in bare.ids))


def load_array(case: str, array: str) -> np.ndarray:
    """Return an array that Captum or AllenNLP computed."""
    return load_vectors("baselines_f64")[f"{case}/{array}"]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("case", INPUTS)
def test_a_baseline_equals_the_official_numbers(case, array):
    attribution = load_classifier().explain(load_row(case), ARRAYS[array])
    assert attribution.prediction.index == int(load_array(case, "pred"))
    assert_close(attribution.scores, load_array(case, array), TOLERANCE)


@pytest.mark.parametrize("array", ARRAYS)
def test_the_official_numbers_come_out_of_one_batch(array):
    for case, attribution in zip(
        INPUTS,
        load_classifier().explain([load_row(case) for case in INPUTS], ARRAYS[array]),
        strict=True,
    ):
        assert_close(attribution.scores, load_array(case, array), TOLERANCE)


@pytest.mark.parametrize("method", ["simple", "smooth"])
def test_a_gradient_without_product_is_refused_where_it_is_rounding_noise(method):
    with pytest.raises(BadInput, match="rounding noise"):
        load_classifier().explain(load_row("in0"), (method, {"multiply": "none"}))


@pytest.mark.parametrize("case", ["in0", "in1"])
def test_sampled_shapley_values_approach_the_exact_ones_with_more_orders(case):
    exact = load_array(case, "derived.shapley_exact")

    def compute_error(samples: int) -> float:
        """Return the root mean square error over four seeds."""
        all_scores = [
            load_classifier()
            .explain(load_row(case), ("shapley", {"num_samples": samples}), seed=seed)
            .scores
            for seed in range(4)
        ]
        return float(np.sqrt(np.mean((np.array(all_scores) - exact) ** 2)))

    error_of_few = compute_error(10)
    error_of_many = compute_error(640)
    # 64 times the orders, an eighth of the error on average.
    assert error_of_many < error_of_few / 4
    assert error_of_many < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("case", ["in0", "in1"])
def test_captums_sampled_shapley_values_are_as_far_off_as_ours(case):
    exact = load_array(case, "derived.shapley_exact")
    attribution = load_classifier().explain(load_row(case), "shapley")
    expected = np.abs(load_array(case, "captum.svs25_seed123") - exact).max()
    assert np.abs(attribution.scores - exact).max() < 3 * expected
    np.testing.assert_allclose(attribution.scores.sum(), exact.sum(), atol=1e-9)


@pytest.mark.parametrize("case", INPUTS)
def test_captums_own_orders_give_captums_own_shapley_values(case):
    attribution = load_classifier().explain(
        load_row(case), ("shapley", {"preset": "captum"}), seed=123
    )
    assert_close(attribution.scores, load_array(case, "captum.svs25_seed123"), TOLERANCE)


def test_captums_orders_do_not_depend_on_the_batch_or_change_the_global_seed():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    together = load_classifier().explain(
        [load_row(case) for case in INPUTS], ("shapley", {"orders": "captum", "seed": 123})
    )
    assert torch.equal(torch.get_rng_state(), before)
    for case, attribution in zip(INPUTS, together, strict=True):
        assert_close(attribution.scores, load_array(case, "captum.svs25_seed123"), TOLERANCE)


@pytest.mark.parametrize("case", INPUTS)
def test_gradient_shap_approaches_integrated_gradients_with_more_samples(case):
    exact = (
        load_classifier()
        .explain(load_row(case), ("integrated_gradients", {"num_steps": 100}))
        .scores
    )

    def compute_error(samples: int) -> float:
        """Return the largest error, relative to the largest score."""
        attribution = load_classifier().explain(
            load_row(case), ("gradient_shap", {"num_samples": samples})
        )
        return np.abs(attribution.scores - exact).max() / np.abs(exact).max()

    assert compute_error(300) < min(0.25, compute_error(2))


@pytest.mark.parametrize("case", INPUTS)
def test_exact_integrated_gradients_sum_to_the_gain_of_the_target(case):
    attribution = load_classifier().explain(
        load_row(case), ("integrated_gradients", {"num_steps": 100})
    )
    convergence = attribution.extras["convergence"]
    assert convergence["gap_percent"] < 0.01
    np.testing.assert_allclose(attribution.scores.sum(), convergence["rise"], rtol=1e-4)
