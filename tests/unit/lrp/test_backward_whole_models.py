"""Relevance through unmodified models: conserved, the same in any batch, gradients untouched."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from tests.helpers.expect import expect_error
from tests.helpers.families import FAMILIES, build_model
from tests.helpers.relevance_families import RULE_REFUSALS
from tests.helpers.tiny import randomize_weights, tiny_bert
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tokenlight import Contrast, Explainer, Tokens
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rule_sets import CHEFER
from tokenlight.lrp.tracing import trace_operations

CONSERVING = [
    "bert", "roberta", "distilbert", "electra", "albert", "xlm-roberta", "modernbert", "gpt2", "opt",
    "llama", "mistral", "qwen3",
]  # fmt: skip
METHODS = ["lrp", "partial_lrp", "transatt", "attnlrp", "cp_lrp"]
BY_GRADIENT = {"attnlrp", "cp_lrp"}
WORKING = [
    name
    for name, (_, _, support_level) in FAMILIES.items()
    if support_level != "refused" and name not in RULE_REFUSALS
]


def make_texts():
    """Nine tokens, six with padding before and behind, four with padding before."""
    ids = torch.randint(5, 120, (3, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    ids[:, -1] = 2
    ids[1, 6] = 2
    ids[1, :1] = 0
    ids[1, 7:] = 0
    ids[2, :5] = 0
    mask[1, :1] = 0
    mask[1, 7:] = 0
    mask[2, :5] = 0
    return ids, mask


def build_exact_model(family):
    return randomize_weights(build_model(family), torch.float64)


@pytest.mark.parametrize("family", CONSERVING)
def test_relevance_is_conserved_at_every_layer(family):
    with EverythingInFloat64():
        attributions = Explainer(build_exact_model(family)).explain(
            Tokens.from_ids(*make_texts()), ["lrp", "transatt"]
        )
    for attribution in attributions:
        np.testing.assert_allclose(attribution.extras["conservation"], 1.0, rtol=0, atol=1e-6)


def test_relevance_is_conserved_in_a_vision_transformer():
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        image_size=16, patch_size=4, num_labels=3, attn_implementation="eager",
    )  # fmt: skip
    model = randomize_weights(ViTForImageClassification(config), torch.float64).requires_grad_(
        False
    )
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64)
    with trace_operations(model, batch_size=2) as (backward_mode, unsupported_ops):
        output = model(pixels.requires_grad_(), output_hidden_states=True)
    unsupported_ops.check([output.logits], output.hidden_states[0])
    start = torch.zeros_like(output.logits)
    start[:, 1] = 1
    with backward_by_rules(backward_mode, CHEFER):
        layers = torch.autograd.grad(output.logits, output.hidden_states, start)
    for relevance in layers:
        torch.testing.assert_close(
            relevance.sum(dim=(1, 2)), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("family", WORKING)
def test_a_family_is_traced_and_batching_does_not_change_scores(family):
    explainer = Explainer(build_model(family).double())
    ids, mask = make_texts()
    bare = [ids[0], ids[1, 1:7], ids[2, 5:]]
    with EverythingInFloat64():
        together = explainer.explain(Tokens.from_ids(ids, mask), METHODS, target=1)
        alone = [explainer.explain(Tokens.from_ids(x[None]), METHODS, target=1) for x in bare]
    for actual, expected in zip(together, itertools.chain(*alone), strict=True):
        assert np.abs(expected.scores).max() > 0
        assert_close(actual.scores, expected.scores)


def test_gemma_2_is_traced_in_float32():
    attributions = Explainer(build_model("gemma2")).explain(Tokens.from_ids(*make_texts()), METHODS)
    assert all(np.isfinite(attribution.scores).all() for attribution in attributions)
    np.testing.assert_allclose(attributions[0].extras["conservation"], 1.0, atol=1e-3)


def test_more_than_twenty_families_are_traced():
    assert len(WORKING) >= 20


@pytest.mark.parametrize("family", RULE_REFUSALS)
def test_an_operation_without_a_rule_is_named_with_its_module(family):
    explainer = Explainer(build_model(family))
    with expect_error(UnsupportedModel, "operation-without-rule") as refusal:
        explainer.explain(Tokens.from_ids(*make_texts()), "lrp")
    module = rf"{RULE_REFUSALS[family]}' in .*\(\w+\) has no relevance rule"
    assert re.search(module, str(refusal.value))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "modernbert", "deberta"])
def test_values_and_gradients_stay_the_models_own(family):
    model = build_exact_model(family).requires_grad_(False)
    ids = make_texts()[0][:1]
    table = model.get_input_embeddings()
    handle = table.register_forward_hook(lambda _m, _a, output: output.detach().requires_grad_())
    states = []
    for follow in (False, True):
        if follow:
            with trace_operations(model, batch_size=1):
                output = model(ids, output_hidden_states=True)
        else:
            output = model(ids, output_hidden_states=True)
        gradients = torch.autograd.grad(output.logits[0, 0], output.hidden_states)
        states.append((output.logits, *gradients))
    handle.remove()
    for plain, followed in zip(*states, strict=True):
        torch.testing.assert_close(plain, followed, rtol=1e-12, atol=1e-12)


def test_a_contrast_is_the_difference_of_two_explanations():
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids(*make_texts())
    for method in METHODS:
        contrast = explainer.explain(rows, method, target=Contrast("positive", "negative"))
        this, that = (explainer.explain(rows, method, target=label) for label in (2, 0))
        for actual, first, second in zip(contrast, this, that, strict=True):
            assert_close(actual.scores, first.scores - second.scores)
            assert ("conservation" in actual.extras) is (method not in BY_GRADIENT)
            if method not in BY_GRADIENT:
                assert len(actual.extras["conservation"]) == len(first.extras["conservation"])


def test_every_target_of_one_forward_is_its_own_explanation():
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids(make_texts()[0][:1])
    every = explainer.explain(rows, METHODS, target="all")
    for number, attribution in enumerate(every):
        label = number % 3
        method = METHODS[number // 3]
        assert (attribution.method, attribution.target.index) == (method, label)
        assert_close(attribution.scores, explainer.explain(rows, method, target=label).scores)


def test_relevance_starting_at_the_logit_adds_up_to_it_where_no_bias_takes_a_part():
    model = build_exact_model("llama")
    attribution = Explainer(model).explain(Tokens.from_ids(make_texts()[0][:1]), "cp_lrp")
    logit = attribution.logits[attribution.target.index]
    assert attribution.scores.sum() == pytest.approx(logit, rel=1e-3)


def test_a_masked_token_gets_no_relevance():
    ids = make_texts()[0][:1]
    mask = torch.ones_like(ids)
    mask[0, 4] = 0  # not padding: it keeps its place, but no token may look at it
    attributions = Explainer(tiny_bert()).explain(Tokens.from_ids(ids, mask), METHODS)
    for attribution in attributions:
        assert attribution.scores[4] == 0
        assert np.abs(attribution.scores).max() > 0


def test_heads_are_masked_only_where_their_contexts_are_seen():
    explainer = Explainer(build_model("deberta"))
    with pytest.raises(UnsupportedModel, match=r"masked by head.*use transatt"):
        explainer.explain(Tokens.from_ids(*make_texts()), "mask_lrp")


def test_the_lowest_score_can_replace_the_score_of_the_read_out_token():
    rows = Tokens.from_ids(*make_texts())
    zero, lowest = (
        Explainer(tiny_bert()).explain(rows, ("transatt", {"cls_value": value}))
        for value in ("zero", "min")
    )
    for plain, raised in zip(zero, lowest, strict=True):
        assert plain.scores[0] == 0
        assert raised.scores[0] == raised.scores.min() == plain.scores[1:].min()
        np.testing.assert_array_equal(plain.scores[1:], raised.scores[1:])


def test_a_start_layer_that_leaves_no_block_is_refused():
    with pytest.raises(
        BadInput, match=r"start_layer=3 leaves no block: this model has 3 \(0 to 2\)"
    ):
        Explainer(tiny_bert()).explain(
            Tokens.from_ids(*make_texts()), ("transatt", {"start_layer": 3})
        )
