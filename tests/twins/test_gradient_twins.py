"""The named gradients, from the papers: cat and its kin read them off a surrogate model with that gradient.

The surrogates of ``tests.twins.surrogate_gradients`` have the model's value and, as their plain gradient,
the one that a paper rewrites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.helpers.families import FAMILIES, is_encoder_decoder
from tests.helpers.relevance_families import (
    GRADIENT_FAMILIES,
    TEXTS,
    build_exact_classifier,
    make_padded_tokens,
)
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import FLOAT64, EverythingInFloat64, assert_close
from tests.twins import surrogate_gradients
from tests.twins.surrogate_gradients import Surrogate, constant_activation_slopes
from tests.twins.surrogate_gradients import restart_graph as begin_graph
from tokenlight import Explainer

TOKENIZER = tiny_tokenizer()
SENTENCES = ["good film", "the plot is dull , never good", "we love it"]
TEMPERATURE = 2.0


class GimSurrogate(Surrogate):
    """Swap each operation for one with the gradient of GIM; activations keep their own."""

    def __init__(self) -> None:
        super().__init__(constant_maps=False)

    def decomposed_softmax(
        self,
        scores: Tensor,
        dim: int | None = None,
        *_: Any,
        dtype: torch.dtype | None = None,
        **__: Any,
    ) -> Tensor:
        """Return a softmax with the gradient of a softmax at a higher temperature."""
        with torch._C.DisableTorchFunction():
            value = torch.softmax(scores, dim, dtype=dtype).detach()
            # Its derivative has a factor 1/T, which the paper leaves out.
            tempered = TEMPERATURE * torch.softmax(scores / TEMPERATURE, dim, dtype=dtype)
            return value + (tempered - tempered.detach())


def keep_forward(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the forward of an activation that no surrogate takes apart."""

    def forward_undecomposed(self, features: Tensor) -> Tensor:
        """Run the activation with its own gradient."""
        with torch._C.DisableTorchFunction():
            return forward(self, features)

    return forward_undecomposed


@contextmanager
def use_cp_gradients() -> Iterator[None]:
    """Give the model inside the block the gradients of CP-LRP."""
    with constant_activation_slopes(), Surrogate(constant_maps=True):
        yield


@contextmanager
def use_gim_gradients() -> Iterator[None]:
    """Give the model inside the block the gradients of GIM."""
    unchanged_activations = {
        "with_constant_slope": lambda _features, output: output,
        "wrap_activation": keep_forward,
    }
    with (
        mock.patch.multiple(surrogate_gradients, **unchanged_activations),
        constant_activation_slopes(),
        GimSurrogate(),
    ):
        yield


SURROGATES = {"cp": use_cp_gradients, "libra": use_cp_gradients, "gim": use_gim_gradients}
GRADIENTS = list(SURROGATES)
# Encoder-decoder models report the states of two parts; cat of them is tested by hand elsewhere.
FAMILIES_WITH_STATES = [
    name for name in GRADIENT_FAMILIES if name in FAMILIES and not is_encoder_decoder(name)
]


def compute_state_terms(model: Any, arguments: dict[str, Tensor], gradient: str) -> Tensor:
    """Return gradient × state of logit 1 by the surrogate, one row of tokens for each of h^0 … h^L."""
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
    model = build_exact_classifier(family)
    with EverythingInFloat64():
        attributions = Explainer(model).explain(
            make_padded_tokens(), ("cat", {"gradient": gradient}), target=1
        )
        for text, attribution in zip(TEXTS, attributions, strict=True):
            ids = torch.tensor([text])
            arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            terms = compute_state_terms(model, arguments, gradient)
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
        terms = compute_state_terms(model, arguments, gradient)
        scores = {"cat": terms[:-1].sum(dim=0), "grad_x_input": terms[0]}
        scores["gradcam"] = terms[0].clamp(min=0)
        if method == "attcat":
            with torch.no_grad():
                maps = model(**arguments, output_attentions=True).attentions
            received = torch.stack([attention_map.mean(dim=(1, 2))[0] for attention_map in maps])
            scores["attcat"] = (terms[:-1] * received).sum(dim=0)
        assert_close(attribution.scores, scores[method].numpy(), FLOAT64)
        assert abs(attribution.scores - plain.scores).max() > 1e-6


def compute_full_terms(
    model: Any,
    blocks: Sequence[Any],
    arguments: dict[str, Tensor],
    gradient: str,
    below: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return FullGrad+ by its formula, ``layer token``, the share of later biases, and the logit."""
    model = model.requires_grad_(False)
    outputs_by_module = {}

    def keep_output(module: Any, _arguments: Any, output: Any) -> None:
        """Keep the output of a module with a bias."""
        outputs_by_module[module] = output

    biased = [module for module in model.modules() if getattr(module, "bias", None) is not None]
    handles = [module.register_forward_hook(keep_output) for module in biased]
    handles.append(model.get_input_embeddings().register_forward_hook(begin_graph))
    surrogate = SURROGATES[gradient] if gradient != "model" else nullcontext
    try:
        with surrogate():
            outputs = model(**arguments, output_hidden_states=True, return_dict=True)
    finally:
        for handle in handles:
            handle.remove()
    logit = outputs.logits[0, 1]

    def multiply_by_gradient(value: Tensor, tensor: Tensor) -> Tensor:
        """Return ``value`` times the logit's gradient at ``tensor``, summed over features."""
        (slope,) = torch.autograd.grad(logit, [tensor], retain_graph=True, allow_unused=True)
        return torch.zeros(()) if slope is None else (value * slope)[0].sum(dim=-1).detach()

    terms = []
    for block, state in zip(blocks, outputs.hidden_states, strict=False):
        term = multiply_by_gradient(state, state)
        for module in block.modules():
            if module in outputs_by_module:
                term = term + multiply_by_gradient(module.bias, outputs_by_module[module])
        terms.append(term)
    # The biases of embeddings are below the first state, and part of it.
    inside = set()
    for part in (*blocks, *below):
        inside.update(part.modules())
    behind = torch.zeros(())
    for module, output in outputs_by_module.items():
        if module not in inside:
            behind = behind + multiply_by_gradient(module.bias, output).sum()
    return torch.stack(terms), behind, logit.detach()


@pytest.mark.parametrize("gradient", ["model", "libra", "cp", "gim"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_fullgrad_plus_adds_the_share_of_every_bias(family, gradient):
    model = build_exact_classifier(family)
    backbone = getattr(model, model.base_model_prefix)
    blocks = backbone.encoder.layer if family == "bert" else backbone.h
    with EverythingInFloat64():
        attributions = Explainer(model).explain(
            make_padded_tokens(), ("fullgrad_plus", {"gradient": gradient}), target=1
        )
        without = Explainer(model).explain(
            make_padded_tokens(), ("cat", {"gradient": gradient}), target=1
        )
        for text, attribution, plain in zip(TEXTS, attributions, without, strict=True):
            ids = torch.tensor([text])
            arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            terms, _, _ = compute_full_terms(model, blocks, arguments, gradient)
            assert_close(attribution.layers, terms.numpy(), 1e-6)
            assert abs(attribution.layers - plain.layers).max() > 1e-3


def test_the_gradient_of_libragrad_is_complete():
    model = build_exact_classifier("bert")
    blocks = model.bert.encoder.layer
    with EverythingInFloat64():
        full = Explainer(model).explain(
            make_padded_tokens(), "fullgrad_plus:preset=libra", target=1
        )
        states = Explainer(model).explain(make_padded_tokens(), "cat:gradient=libra", target=1)
        for text, attribution, plain in zip(TEXTS, full, states, strict=True):
            ids = torch.tensor([text])
            arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            _, behind, logit = compute_full_terms(
                model, blocks, arguments, "libra", [model.bert.embeddings]
            )
            biases = (attribution.layers - plain.layers).sum(axis=1)
            for layer in range(len(blocks)):
                # The state before a block and all biases from there on sum to the logit.
                total = plain.layers[layer].sum() + biases[layer:].sum() + float(behind)
                assert_close(total, float(logit), 1e-6)


@pytest.mark.parametrize(
    ("gradient", "method"),
    [("attnlrp", "attnlrp"), ("cp", "cp_lrp"), ("libra", "cp_lrp"), ("gim", "gim")],
)
def test_gradient_times_input_with_the_gradient_of_a_method_is_that_method(gradient, method):
    explainer = Explainer(tiny_bert(), TOKENIZER)
    actual = explainer.explain(SENTENCES, ("grad_x_input", {"gradient": gradient}), target=1)
    reference = explainer.explain(SENTENCES, method, target=1)
    for attribution, expected in zip(actual, reference, strict=True):
        assert_close(attribution.scores, expected.scores, FLOAT64)
