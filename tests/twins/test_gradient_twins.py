"""The named gradients, from the papers: cat and its kin read them off a surrogate model with that gradient.

The surrogates of ``tests.twins.surrogate_gradients`` have the model's value and, as their plain gradient,
the one that a paper rewrites.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from tests.helpers.families import FAMILIES
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import FLOAT64, EverythingInFloat64, assert_close
from tests.twins import surrogate_gradients
from tests.twins.surrogate_gradients import Surrogate, constant_activation_slopes
from tests.twins.surrogate_gradients import restart_graph as begin_graph
from tests.twins.test_relevance_every_family import FOLLOWED, TEXTS, classifier, padded_tokens
from tokenlight import Explainer

TOKENIZER = tiny_tokenizer()
SENTENCES = ["good film", "the plot is dull , never good", "we love it"]
TEMPERATURE = 2.0


class GimSurrogate(Surrogate):
    """Swap each operation for one with the gradient of GIM; activations keep their own."""

    def __init__(self):
        super().__init__(constant_maps=False)

    def decomposed_softmax(self, scores, dim=None, *_, dtype=None, **__):
        with torch._C.DisableTorchFunction():
            value = torch.softmax(scores, dim, dtype=dtype).detach()
            # Its derivative has a factor 1/T, which the paper leaves out.
            tempered = TEMPERATURE * torch.softmax(scores / TEMPERATURE, dim, dtype=dtype)
            return value + (tempered - tempered.detach())


def keep_forward(forward):
    """An activation that transformers writes out, which no surrogate takes apart."""

    def through(self, features):
        with torch._C.DisableTorchFunction():
            return forward(self, features)

    return through


@contextmanager
def gradients_of_cp():
    with constant_activation_slopes(), Surrogate(constant_maps=True):
        yield


@contextmanager
def gradients_of_gim():
    kept = {
        "with_constant_slope": lambda _features, output: output,
        "wrap_activation": keep_forward,
    }
    with (
        mock.patch.multiple(surrogate_gradients, **kept),
        constant_activation_slopes(),
        GimSurrogate(),
    ):
        yield


SURROGATES = {"cp": gradients_of_cp, "libra": gradients_of_cp, "gim": gradients_of_gim}
GRADIENTS = list(SURROGATES)
# Encoder-decoder models report the states of two parts; cat of them is tested by hand elsewhere.
FAMILIES_WITH_STATES = [
    name for name in FOLLOWED if name in FAMILIES and not classifier(name).config.is_encoder_decoder
]


def state_terms(model, arguments, gradient):
    """Gradient × state of logit 1 by the surrogate, one row of tokens for each of h^0 … h^L."""
    model = model.requires_grad_(False)
    handle = model.get_input_embeddings().register_forward_hook(begin_graph)
    try:
        with SURROGATES[gradient]():
            outputs = model(**arguments, output_hidden_states=True, return_dict=True)
        states = outputs.hidden_states
        gradients = torch.autograd.grad(outputs.logits[0, 1], states, allow_unused=True)
    finally:
        handle.remove()
    terms = []
    for state, slope in zip(states, gradients, strict=True):
        if slope is None:  # some models report a copy of their last state, which no logit reads
            terms.append(torch.zeros_like(state[0, :, 0]))
        else:
            terms.append(torch.linalg.vecdot(state, slope)[0].detach())
    return torch.stack(terms)


@pytest.mark.parametrize("gradient", ["cp", "gim"])
@pytest.mark.parametrize("family", FAMILIES_WITH_STATES)
def test_cat_reads_the_gradient_that_the_paper_writes(family, gradient):
    model = classifier(family)
    with EverythingInFloat64():
        attributions = Explainer(model).explain(
            padded_tokens(), ("cat", {"gradient": gradient}), target=1
        )
        for text, attribution in zip(TEXTS, attributions, strict=True):
            ids = torch.tensor([text])
            arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            terms = state_terms(model, arguments, gradient)
            assert_close(attribution.layers, terms[:-1].numpy(), 1e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("method", ["cat", "attcat", "gradcam", "grad_x_input"])
def test_every_read_out_of_bert_has_the_gradient_of_its_surrogate(method, gradient):
    explainer = Explainer(tiny_bert(), TOKENIZER)
    attributions = explainer.explain(SENTENCES, (method, {"gradient": gradient}), target=1)
    unchanged = explainer.explain(SENTENCES, method, target=1)
    model = tiny_bert()
    model.set_attn_implementation("eager")
    for text, attribution, plain in zip(SENTENCES, attributions, unchanged, strict=True):
        arguments = TOKENIZER(text, return_tensors="pt")
        terms = state_terms(model, arguments, gradient)
        scores = {"cat": terms[:-1].sum(dim=0), "grad_x_input": terms[0]}
        scores["gradcam"] = terms[0].clamp(min=0)
        if method == "attcat":
            with torch.no_grad():
                maps = model(**arguments, output_attentions=True).attentions
            received = torch.stack([attention_map.mean(dim=(1, 2))[0] for attention_map in maps])
            scores["attcat"] = (terms[:-1] * received).sum(dim=0)
        assert_close(attribution.scores, scores[method].numpy(), FLOAT64)
        assert abs(attribution.scores - plain.scores).max() > 1e-6


@pytest.mark.parametrize(
    ("gradient", "method"),
    [("attnlrp", "attnlrp"), ("cp", "cp_lrp"), ("libra", "cp_lrp"), ("gim", "gim")],
)
def test_gradient_times_input_with_the_gradient_of_a_method_is_that_method(gradient, method):
    explainer = Explainer(tiny_bert(), TOKENIZER)
    ours = explainer.explain(SENTENCES, ("grad_x_input", {"gradient": gradient}), target=1)
    theirs = explainer.explain(SENTENCES, method, target=1)
    for attribution, expected in zip(ours, theirs, strict=True):
        assert_close(attribution.scores, expected.scores, FLOAT64)
