"""How tokens are removed and what is measured after it, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid
from tokenlight import Explainer, registry
from tokenlight.data.head import Head
from tokenlight.data.target import ResolvedTarget


def test_masked_padding_equals_padding_of_weight_zero():
    explainer = make_planted_explainer(make_weights(w0=5))
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    plain = measure_value(make_planted_explainer(make_weights()), attribution, "lodds")[1]
    assert measure_value(explainer, attribution, ("lodds", {"mask_pad_attention": True}))[
        1
    ] == pytest.approx(plain)


def test_the_official_nine_steps_never_take_the_lowest_ranked_token():
    # Eight words and two special tokens: ten tokens, counts 1 2 3 4 6 7 8 9 10.
    words = [10, 11, 12, 13, 20, 21, 22, 23]
    explainer = make_planted_explainer(make_weights(w20=0.1, w21=0.2, w22=0.3, w23=0.4))
    scores = [8.0, 7.0, 6.0, -9.0, 5.0, 4.0, 3.0, 2.0]  # word 13 is ranked last of all ten
    attribution = make_attribution(explainer, words, scores)
    w = {10: 2, 11: 1, 12: 0, 13: -1, 20: 0.1, 21: 0.2, 22: 0.3, 23: 0.4}
    walk = [10, 11, 12, 20, 21, 22, 23]  # [CLS] and [SEP] skipped, 13 never taken
    total = sum(w.values())
    expected = []
    for count in (1, 2, 3, 4, 6, 7, 8, 9, 10):
        expected.append(sigmoid(total) - sigmoid(total - sum(w[i] for i in walk[:count])))
    mean, curve = measure_value(explainer, attribution, ("aopc", {"grid": "linspace9"}))
    assert curve == pytest.approx(expected)
    assert mean == pytest.approx(np.mean(expected))


def test_presets_are_the_official_readings():
    explainer = make_planted_explainer(make_weights(w20=0.1, w0=0.7))
    words = [10, 13, 13, 13, 20, 11, 12, 12]
    attribution = make_attribution(explainer, words, [1, 8, 7, 6, 5, 4, 3, 2], target=1)
    signed, curve = measure_value(
        explainer, attribution, ("aopc", {"grid": "linspace9", "target": "label"}), labels=[0]
    )
    assert min(curve) < 0 < max(curve)
    attcat, _ = measure_value(explainer, attribution, ("aopc", {"preset": "attcat"}), labels=[0])
    assert attcat == pytest.approx(np.mean(np.abs(curve)))
    assert attcat != pytest.approx(signed)
    built = registry.build("metrics", "aopc", {"preset": "mask_lrp"})
    assert (built.perturb, built.min_tokens, built.absolute, built.target) == (
        "pad",
        20,
        False,
        "label",
    )
    built = registry.build("metrics", "lodds", {"preset": "attcat"})
    assert (built.perturb, built.grid, built.min_tokens) == ("pad", "linspace9", 10)
    assert built.display_name == "lodds(preset=attcat)"


def test_contrasts_and_independent_labels_have_a_target_probability():
    from tokenlight.perturb.target_probability import compute_target_probability

    logits = np.array([1.0, 3.0, -2.0])
    single = Head("text-classification", ("a", "b", "c"))
    multi = Head("text-classification", ("a", "b", "c"), "multi")
    contrast = ResolvedTarget("contrast", "b rather than a", (((1,), 1.0), ((0,), -1.0)))
    plain = ResolvedTarget("class", "b", (((1,), 1.0),))
    assert compute_target_probability(single, contrast, None, logits) == pytest.approx(sigmoid(2))
    assert compute_target_probability(multi, plain, None, logits) == pytest.approx(sigmoid(3))
    total = exp(1) + exp(3) + exp(-2)
    assert compute_target_probability(single, plain, None, logits) == pytest.approx(exp(3) / total)


def test_a_span_whose_token_is_deleted_has_probability_zero(tokenizer):
    from tests.helpers.tiny import tiny_bert_qa
    from tokenlight import Question

    explainer = Explainer(tiny_bert_qa(), tokenizer)
    attribution = explainer.explain(
        Question(question="who sat", context="the cat sat on the mat"), "attcat"
    )
    positions = [at[0] for at, _ in attribution.target.terms]
    scores = np.zeros(len(attribution))
    scores[positions[0]] = 9
    top = replace(attribution, scores=scores)
    _, curve = measure_value(explainer, top, "aopc")
    chance = float(
        np.prod(
            [
                _compute_softmax(attribution.logits.reshape(2, -1)[side])[p]
                for side, p in enumerate(positions)
            ]
        )
    )
    assert curve[0] == pytest.approx(0, abs=1e-9)
    assert curve[2] == pytest.approx(chance)  # the start is gone


def _compute_softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
