"""Where the embeddings of a text enter a model: h^0 and token tables, once or twice, in any layout."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from tests.helpers import tolerance
from tests.helpers.expect import expect_error
from tests.helpers.families import DECODER, build_model
from tests.helpers.tiny import randomize_weights, tiny_bert
from tokenlight import Explainer, NextToken, Tokens
from tokenlight.errors import UnsupportedModel

READ_TWICE = ["bart", "mbart", "plbart", "mvp", "t5", "umt5"]


def make_ids(count=3, length=8):
    ids = torch.randint(5, 120, (count, length), generator=torch.Generator().manual_seed(5))
    ids[:, -1] = 2
    return ids


def assert_close(actual, expected):
    assert np.abs(expected).max() > 0
    tolerance.assert_close(actual, expected)


def fold_by_hand(family, values):
    """Sum what encoder and decoder contribute to each token of the text."""
    encoder_values, decoder_values = values
    scores = encoder_values.clone()
    scores[:-1] += decoder_values[1:]  # the decoder reads each token one position later
    if family in ("mbart", "plbart"):  # and these read the last one first
        scores[-1] += decoder_values[0]
    return scores.numpy()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("family", READ_TWICE)
def test_scores_include_what_a_decoder_reads_of_the_text(family):
    model = build_model(family).double().requires_grad_(False)
    ids = make_ids()
    attributions = Explainer(model).explain(Tokens.from_ids(ids), "grad_x_input", target=1)
    table = model.get_input_embeddings()
    for row, actual in zip(ids, attributions, strict=True):
        handles = [
            part.get_input_embeddings().register_forward_hook(
                lambda _m, _a, output: output.detach().requires_grad_()
            )
            for part in (model.get_encoder(), model.get_decoder())
        ]
        outputs = model(row[None], output_hidden_states=True)
        for handle in handles:
            handle.remove()
        states = [outputs.encoder_hidden_states[0], outputs.decoder_hidden_states[0]]
        gradients = torch.autograd.grad(outputs.logits[0, 1], states)
        contributions = [
            (s * g).sum(dim=-1)[0].detach() for s, g in zip(states, gradients, strict=True)
        ]
        assert contributions[1].abs().max() > 0
        assert_close(actual.scores, fold_by_hand(family, contributions))
    assert table is model.get_input_embeddings()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("family", READ_TWICE)
def test_path_scores_add_up_to_the_rise_of_the_logit(family):
    model = build_model(family).double()
    ids = make_ids()
    baseline = torch.full_like(ids, 7)
    baseline[:, -1] = 2  # the token at which the head reads
    with torch.no_grad():
        rises = (model(ids).logits - model(baseline).logits)[:, 1].tolist()
    methods = [
        ("integrated_gradients", {"num_steps": 300, "baseline": 7}),
        ("gradient_shap", {"baseline": 7}),
    ]
    attributions = Explainer(model).explain(Tokens.from_ids(ids), methods, target=1)
    for number, attribution in enumerate(attributions):
        rise = rises[number // 2]
        assert attribution.extras["convergence"]["rise"] == pytest.approx(rise, abs=1e-9)
        if attribution.method == "integrated_gradients":
            # T5's feed-forward has corners, at which the sum over 300 steps converges slowly.
            reach = (1e-2 if "t5" in family else 1e-4) * np.abs(attribution.scores).sum()
            assert attribution.scores.sum() == pytest.approx(rise, abs=reach)


def test_a_path_keeps_the_token_that_the_head_reads():
    """GPT-2's classifier reads the last token that is no padding, and a path may lead from padding."""
    model = build_model("gpt2").double()
    for baseline in ("pad", 7):
        attributions = Explainer(model).explain(
            Tokens.from_ids(make_ids()), ("integrated_gradients", {"baseline": baseline}), target=1
        )
        for attribution in attributions:
            assert attribution.extras["convergence"]["gap_percent"] < 0.1


@pytest.mark.parametrize("method", ["simple", "smooth", "integrated"])
def test_a_token_first_table_gives_scores_by_text(method):
    """XLNet turns its ids before it looks them up; eight texts of eight tokens fit either way."""
    explainer = Explainer(build_model("xlnet").double())
    ids = make_ids(8, 8)
    together = explainer.explain(Tokens.from_ids(ids), method, target=1)
    for row, actual in zip(ids, together, strict=True):
        alone = explainer.explain(Tokens.from_ids(row[None]), method, target=1)
        assert_close(actual.scores, alone.scores)


def test_the_gradient_at_a_token_first_table_is_the_models_own():
    model = build_model("xlnet").double().requires_grad_(False)
    ids = make_ids(8, 8)
    attributions = Explainer(model).explain(
        Tokens.from_ids(ids), ["grad_x_input", "simple"], target=1
    )
    for row, plain, shares in zip(ids, attributions[::2], attributions[1::2], strict=True):
        vectors = model.get_input_embeddings()(row[None]).detach().requires_grad_()
        logits = model(inputs_embeds=vectors).logits
        (gradient,) = torch.autograd.grad(logits[0, 1], vectors, retain_graph=True)
        assert_close(plain.scores, (gradient * vectors).sum(dim=-1)[0].detach().numpy())
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1]))
        (gradient,) = torch.autograd.grad(loss, vectors)
        share = (gradient * vectors).sum(dim=-1)[0].detach().abs()
        assert_close(shares.scores, (share / share.sum()).numpy())


@pytest.mark.usefixtures("in_float64")
def test_embeddings_that_a_model_scales_outside_its_modules_are_replaced():
    """Granite's first module to take h^0 in is its rotary table, which reads only its dtype."""
    config = GraniteConfig(**DECODER, embedding_multiplier=3.0)
    model = randomize_weights(GraniteForCausalLM(config), torch.float64)
    ids = make_ids(1)
    attribution = Explainer(model).explain(
        Tokens.from_ids(ids),
        ("integrated_gradients", {"num_steps": 200, "baseline": 7}),
        target=NextToken(9, against=None),
    )
    with torch.no_grad():
        ends = [model(i).logits[0, -1, 9] for i in (ids, torch.full_like(ids, 7))]
    rise = float(ends[0] - ends[1])
    assert attribution.extras["convergence"]["rise"] == pytest.approx(rise, abs=1e-9)
    assert attribution.scores.sum() == pytest.approx(
        rise, abs=1e-3 * np.abs(attribution.scores).sum()
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_copied_explainer_refers_to_the_copied_model(copied):
    explainer = Explainer(tiny_bert())
    ids = make_ids(1)
    first = explainer.explain(Tokens.from_ids(ids), "gae")
    attribution = copied(explainer).explain(Tokens.from_ids(ids), "gae")
    np.testing.assert_array_equal(first.scores, attribution.scores)


def test_a_model_on_the_meta_device_is_refused():
    with expect_error(UnsupportedModel, "model-on-meta-device"):
        Explainer(tiny_bert().to("meta"))


@pytest.mark.parametrize("family", ["bart", "mbart", "t5"])
@pytest.mark.parametrize("method", ["deeplift_shap", "occlusion", "lime"])
def test_the_token_at_which_a_head_reads_stays_in_perturbed_texts(family, method):
    attributions = Explainer(build_model(family)).explain(
        Tokens.from_ids(make_ids()), method, target=1
    )
    assert all(np.abs(attribution.scores).max() > 0 for attribution in attributions)


def test_flex_attention_without_gradient_on_a_cpu_is_replaced():
    methods = ["grad_x_input", "integrated_gradients", "occlusion", "gae"]
    expected = Explainer(tiny_bert()).explain(Tokens.from_ids(make_ids()), methods)
    model = tiny_bert()
    model.set_attn_implementation("flex_attention")
    attributions = Explainer(model).explain(Tokens.from_ids(make_ids()), methods)
    for actual, reference in zip(attributions, expected, strict=True):
        assert_close(actual.scores, reference.scores)
    assert model.config._attn_implementation == "flex_attention"


def test_a_pass_that_the_model_refuses_raises_unsupported_model():
    ids = make_ids()
    ids[:, -1] = 9
    with expect_error(UnsupportedModel, "pass-refused", mentions="<eos>"):
        Explainer(build_model("bart")).explain(Tokens.from_ids(ids), "grad_x_input")
