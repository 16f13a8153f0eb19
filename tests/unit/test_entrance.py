"""Where a text's embeddings come into a model: h^0 and token tables, once or twice, in any layout."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from tests import tolerance
from tests.families import DECODER, build
from tests.tiny import randomised, tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.errors import UnsupportedModel

READ_TWICE = ["bart", "mbart", "plbart", "mvp", "t5", "umt5"]


def texts(count=3, length=8):
    ids = torch.randint(5, 120, (count, length), generator=torch.Generator().manual_seed(5))
    ids[:, -1] = 2
    return ids


def close(ours, theirs):
    assert np.abs(theirs).max() > 0
    tolerance.close(ours, theirs)


def at_both_places(family, values):
    """What encoder and decoder bring, ``place``, laid over the text's tokens by hand."""
    own, decoded = values
    scores = own.clone()
    scores[:-1] += decoded[1:]  # the decoder reads each token one place later
    if family in ("mbart", "plbart"):  # and these read the last one first
        scores[-1] += decoded[0]
    return scores.numpy()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("family", READ_TWICE)
def test_what_a_decoder_reads_of_the_text_is_in_the_scores(family):
    model = build(family).double().requires_grad_(False)
    ids = texts()
    found = Explainer(model).explain(Tokens.from_ids(ids), "grad_x_input", target=1)
    table = model.get_input_embeddings()
    for row, ours in zip(ids, found, strict=True):
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
        slopes = torch.autograd.grad(outputs.logits[0, 1], states)
        brought = [(s * g).sum(dim=-1)[0].detach() for s, g in zip(states, slopes, strict=True)]
        assert brought[1].abs().max() > 0
        close(ours.scores, at_both_places(family, brought))
    assert table is model.get_input_embeddings()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("family", READ_TWICE)
def test_a_path_moves_all_that_its_rise_measures(family):
    model = build(family).double()
    ids = texts()
    baseline = torch.full_like(ids, 7)
    baseline[:, -1] = 2  # the token at which the head reads
    with torch.no_grad():
        rises = (model(ids).logits - model(baseline).logits)[:, 1].tolist()
    asked = [
        ("integrated_gradients", {"n_steps": 300, "baseline": 7}),
        ("gradient_shap", {"baseline": 7}),
    ]
    found = Explainer(model).explain(Tokens.from_ids(ids), asked, target=1)
    for number, one in enumerate(found):
        rise = rises[number // 2]
        assert one.extras["convergence"]["rise"] == pytest.approx(rise, abs=1e-9)
        if one.method == "integrated_gradients":
            # T5's feed-forward has corners, at which the sum over 300 steps converges slowly.
            reach = (1e-2 if "t5" in family else 1e-4) * np.abs(one.scores).sum()
            assert one.scores.sum() == pytest.approx(rise, abs=reach)


def test_a_path_keeps_the_token_that_the_head_reads():
    """GPT-2's classifier reads the last token that is no padding, and a path may lead from padding."""
    model = build("gpt2").double()
    for baseline in ("pad", 7):
        found = Explainer(model).explain(
            Tokens.from_ids(texts()), ("integrated_gradients", {"baseline": baseline}), target=1
        )
        for one in found:
            assert one.extras["convergence"]["gap_percent"] < 0.1


@pytest.mark.parametrize("method", ["simple", "smooth", "integrated"])
def test_a_table_that_looks_up_tokens_first_gives_scores_by_text(method):
    """XLNet turns its ids before it looks them up; eight texts of eight tokens fit either way."""
    explainer = Explainer(build("xlnet").double())
    ids = texts(8, 8)
    together = explainer.explain(Tokens.from_ids(ids), method, target=1)
    for row, ours in zip(ids, together, strict=True):
        alone = explainer.explain(Tokens.from_ids(row[None]), method, target=1)
        close(ours.scores, alone.scores)


def test_the_gradient_at_a_turned_table_is_the_models_own():
    model = build("xlnet").double().requires_grad_(False)
    ids = texts(8, 8)
    found = Explainer(model).explain(Tokens.from_ids(ids), ["grad_x_input", "simple"], target=1)
    for row, plain, shares in zip(ids, found[::2], found[1::2], strict=True):
        vectors = model.get_input_embeddings()(row[None]).detach().requires_grad_()
        logits = model(inputs_embeds=vectors).logits
        (slope,) = torch.autograd.grad(logits[0, 1], vectors, retain_graph=True)
        close(plain.scores, (slope * vectors).sum(dim=-1)[0].detach().numpy())
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1]))
        (slope,) = torch.autograd.grad(loss, vectors)
        share = (slope * vectors).sum(dim=-1)[0].detach().abs()
        close(shares.scores, (share / share.sum()).numpy())


@pytest.mark.usefixtures("in_float64")
def test_embeddings_that_a_model_scales_outside_its_modules_are_replaced():
    """Granite's first module to take h^0 in is its rotary table, which reads only its dtype."""
    config = GraniteConfig(**DECODER, embedding_multiplier=3.0)
    model = randomised(GraniteForCausalLM(config), torch.float64)
    ids = texts(1)
    found = Explainer(model).explain(
        Tokens.from_ids(ids), ("integrated_gradients", {"n_steps": 200, "baseline": 7}), target=9
    )
    with torch.no_grad():
        ends = [model(i).logits[0, -1, 9] for i in (ids, torch.full_like(ids, 7))]
    rise = float(ends[0] - ends[1])
    assert found.extras["convergence"]["rise"] == pytest.approx(rise, abs=1e-9)
    assert found.scores.sum() == pytest.approx(rise, abs=1e-3 * np.abs(found.scores).sum())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_copied_explainer_knows_its_own_model(copied):
    explainer = Explainer(tiny_bert())
    ids = texts(1)
    first = explainer.explain(Tokens.from_ids(ids), "gae")
    again = copied(explainer).explain(Tokens.from_ids(ids), "gae")
    np.testing.assert_array_equal(first.scores, again.scores)


def test_a_model_without_numbers_is_refused_when_it_is_given():
    with pytest.raises(UnsupportedModel, match="lies on the meta device: its weights have shapes"):
        Explainer(tiny_bert().to("meta"))


@pytest.mark.parametrize("family", ["bart", "mbart", "t5"])
@pytest.mark.parametrize("method", ["deeplift_shap", "occlusion", "lime"])
def test_the_token_at_which_a_head_reads_stays_in_changed_texts(family, method):
    found = Explainer(build(family)).explain(Tokens.from_ids(texts()), method, target=1)
    assert all(np.abs(one.scores).max() > 0 for one in found)


def test_flex_attention_which_knows_no_gradient_on_a_cpu_is_stood_in_for():
    asked = ["grad_x_input", "integrated_gradients", "occlusion", "gae"]
    wanted = Explainer(tiny_bert()).explain(Tokens.from_ids(texts()), asked)
    model = tiny_bert()
    model.set_attn_implementation("flex_attention")
    found = Explainer(model).explain(Tokens.from_ids(texts()), asked)
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours.scores, theirs.scores)
    assert model.config._attn_implementation == "flex_attention"


def test_a_pass_that_the_model_itself_refuses_is_told_in_our_words():
    ids = texts()
    ids[:, -1] = 9
    with pytest.raises(UnsupportedModel, match=r"itself refuses this pass: .*<eos>"):
        Explainer(build("bart")).explain(Tokens.from_ids(ids), "grad_x_input")
