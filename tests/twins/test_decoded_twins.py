"""Decoded saliency against Algorithm 1 and Eq. 6 of its paper, written out position by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.helpers.tiny import tiny_bert, tiny_bert_lm, tiny_config, tiny_tokenizer
from tests.helpers.tolerance import assert_close
from tokenlight import Explainer

TOKENIZER = tiny_tokenizer()
MODEL = tiny_bert()
LANGUAGE_MODEL = tiny_bert_lm()
EXPLAINER = Explainer(MODEL, TOKENIZER)
TEXTS = [
    "the film is not the film we love !",
    "a dull plot",
    "never ever hate this movie . it was fun and the acting is great",
]


def compute_decoded_states(
    text: str, layer: int, *, loss: bool
) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Return ids, hidden states, their gradient and the decoded probabilities of one text, by hand."""
    arguments = TOKENIZER(text, return_tensors="pt")
    outputs = MODEL(**arguments, output_hidden_states=True)
    state = outputs.hidden_states[layer]
    best = outputs.logits[0].argmax()
    value = -outputs.logits[0].log_softmax(-1)[best] if loss else outputs.logits[0, best]
    (gradient,) = torch.autograd.grad(value, state)
    with torch.no_grad():
        chances = LANGUAGE_MODEL.cls(state)[0].softmax(dim=-1)  # n × V, all of it
    ids = arguments["input_ids"][0].tolist()
    return ids, state[0].detach(), gradient[0], chances


def compute_decoded_scores(
    text: str,
    layer: int,
    *,
    tau: int | None = None,
    special: str = "exclude",
    inside: Callable[[float], float],
    feature: Callable[[Tensor, Tensor], float],
    loss: bool = False,
) -> np.ndarray:
    """Algorithm 1: for each position, for each distinct input token, with loops."""
    ids, state, gradient, chances = compute_decoded_states(text, layer, loss=loss)
    special_ids = set(TOKENIZER.all_special_ids) - {TOKENIZER.unk_token_id}
    tokens = [i for i in dict.fromkeys(ids) if special == "include" or i not in special_ids]
    scores = dict.fromkeys(tokens, 0.0)
    for j in range(len(ids)):
        salience = feature(state[j], gradient[j])
        column = {u: float(chances[j, u]) for u in tokens}
        largest = sorted(column.values(), reverse=True)[: tau or len(tokens)]
        for u in tokens:
            if column[u] >= largest[-1]:
                scores[u] += column[u] * inside(salience)
    return np.array([scores.get(i, 0.0) for i in ids])


def multiply_by_gradient(state: Tensor, gradient: Tensor) -> float:
    """Return the sum of state times gradient."""
    return float((state * gradient).sum())


def clip_below_zero(value: float) -> float:
    """Return the value, or 0 for a negative one."""
    return max(value, 0.0)


def keep_value(value: float) -> float:
    """Return the value as it is."""
    return value


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("layer", [0, 1, 3])
@pytest.mark.parametrize("tau", [None, 1, 3])
@pytest.mark.parametrize("special", ["exclude", "include"])
def test_equation_6_has_its_relu_outside_and_algorithm_1_inside(text, layer, tau, special):
    for relu in ("outside", "inside", "none"):
        options = {
            "lm": LANGUAGE_MODEL,
            "layer": layer,
            "tau": tau,
            "relu": relu,
            "special": special,
        }
        attribution = EXPLAINER.explain(text, ("decoded_gradcam", options))
        inside = clip_below_zero if relu == "inside" else keep_value
        twin = compute_decoded_scores(
            text, layer, tau=tau, special=special, inside=inside, feature=multiply_by_gradient
        )
        assert_close(attribution.scores, twin.clip(min=0) if relu == "outside" else twin)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("times_input", [True, False])
def test_decoded_simple_equals_its_twin_in_both_readings(text, where, times_input):
    # At layer 3 the gradient alone does not sum to zero at [CLS]: no norm stands behind it.
    options = {"lm": LANGUAGE_MODEL, "layer": 3, "absolute": where, "times_input": times_input}
    attribution = EXPLAINER.explain(text, ("decoded_simple", options))
    twin = compute_decoded_scores(
        text,
        3,
        inside=abs if where == "inside" else keep_value,
        feature=multiply_by_gradient if times_input else lambda _, gradient: float(gradient.sum()),
        loss=True,
    )
    twin = np.abs(twin)
    assert_close(attribution.scores, twin / twin.sum())


def test_all_layers_together_equal_each_layer_explained_separately():
    all_layers = EXPLAINER.explain(
        TEXTS[0], ("decoded_gradcam", {"lm": LANGUAGE_MODEL, "layer": "all"})
    )
    assert all_layers.layers.shape == (4, len(all_layers))
    for layer in range(4):
        attribution = EXPLAINER.explain(
            TEXTS[0], ("decoded_gradcam", {"lm": LANGUAGE_MODEL, "layer": layer})
        )
        assert_close(all_layers.layers[layer], attribution.scores)
    assert_close(all_layers.scores, all_layers.layers.sum(axis=0))


def test_a_token_that_occurs_twice_has_one_score():
    attribution = EXPLAINER.explain(TEXTS[0], ("decoded_gradcam", {"lm": LANGUAGE_MODEL}))
    positions = [i for i, token in enumerate(attribution.tokens) if token == "film"]
    assert len(positions) == 2
    assert attribution.scores[positions[0]] == attribution.scores[positions[1]]


def test_the_softmax_in_chunks_is_the_whole_softmax(monkeypatch):
    from tokenlight.methods import _decoding

    expected = EXPLAINER.explain(TEXTS, ("decoded_gradcam", {"lm": LANGUAGE_MODEL}))
    monkeypatch.setitem(_decoding.MAX_LOGITS, "cpu", 700)  # four states at a time
    in_chunks = EXPLAINER.explain(TEXTS, ("decoded_gradcam", {"lm": LANGUAGE_MODEL}))
    for actual, reference in zip(in_chunks, expected, strict=True):
        assert_close(actual.scores, reference.scores)


class OneHotHead(nn.Module):
    """Reads a state's features as the tokens themselves, sharply."""

    def forward(self, states: Tensor) -> Tensor:
        """Return logits that are nearly one-hot."""
        return 50.0 * states


def build_planted_models() -> tuple[Any, Any]:
    """Return a classifier whose states are one-hot tokens, and a language model that decodes them.

    Class 1 counts one token; nothing is mixed between positions.
    """
    size = 150
    model = tiny_bert(vocab_size=size, hidden_size=size, num_attention_heads=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.bert.embeddings.word_embeddings.weight.copy_(torch.eye(size))
    model.bert.embeddings.LayerNorm = nn.Identity()
    for block in model.bert.encoder.layer:
        block.attention.output.LayerNorm = nn.Identity()
        block.output.LayerNorm = nn.Identity()
    model.bert.pooler.forward = lambda states: states.sum(dim=1)
    language_model = BertForMaskedLM(
        tiny_config(vocab_size=size, hidden_size=size, num_attention_heads=1)
    ).double()
    language_model.cls = OneHotHead()
    return model, language_model


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_only_the_planted_token_is_found_at_every_layer(layer):
    model, language_model = build_planted_models()
    word = TOKENIZER.convert_tokens_to_ids("love")
    with torch.no_grad():
        model.classifier.weight[1, word] = 2.0
    attribution = Explainer(model, TOKENIZER).explain(
        "the film we love", ("decoded_gradcam", {"lm": language_model, "layer": layer}), 1
    )
    expected = np.array([2.0 if token == "love" else 0.0 for token in attribution.tokens])
    np.testing.assert_allclose(attribution.scores, expected, atol=1e-12)


def test_a_planted_token_against_the_class_is_cut_off_or_kept_with_its_sign():
    model, language_model = build_planted_models()
    word = TOKENIZER.convert_tokens_to_ids("hate")
    with torch.no_grad():
        model.classifier.weight[1, word] = -2.0
    explainer = Explainer(model, TOKENIZER)
    options = {"lm": language_model, "layer": 1}
    clipped = explainer.explain("we hate it", ("decoded_gradcam", options), 1)
    signed = explainer.explain("we hate it", ("decoded_gradcam", {**options, "relu": "none"}), 1)
    assert np.abs(clipped.scores).max() == 0
    assert signed.top(1) == [("hate", pytest.approx(-2.0))]
