"""Methods read another gradient: the same numbers from a model whose own gradient is that one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.tolerance import FLOAT64, assert_close
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput

TOKENIZER = tiny_tokenizer()
TEXTS = ["good film", "the plot is dull , never good", "we love it"]
CONSTANT = {"gradient": "attention_constant"}


def explain_second_class(method: str, options: dict[str, Any], texts: Any = TEXTS) -> Any:
    """Explain label 1 with a tiny BERT in float64."""
    explainer = Explainer(tiny_bert().double(), TOKENIZER)
    return explainer.explain(texts, (method, options), target=1)


@pytest.mark.parametrize("method", ["cat", "attcat", "gradcam", "grad_x_input"])
def test_attention_is_constant_as_if_its_softmax_had_no_gradient(method, monkeypatch):
    actual = explain_second_class(method, CONSTANT)
    unchanged = explain_second_class(method, {})
    softmax = functional.softmax
    monkeypatch.setattr(
        functional, "softmax", lambda *args, **kwargs: softmax(*args, **kwargs).detach()
    )
    model = tiny_bert().double()
    model.set_attn_implementation("eager")
    for text, attribution, plain in zip(TEXTS, actual, unchanged, strict=True):
        states, gradients = compute_state_gradients(model, text)
        terms = [
            torch.linalg.vecdot(state, gradient)[0]
            for state, gradient in zip(states, gradients, strict=True)
        ]
        if method == "attcat":
            with torch.no_grad():
                arguments = TOKENIZER(text, return_tensors="pt")
                maps = model(**arguments, output_attentions=True).attentions
            received = [attention_map.mean(dim=(1, 2))[0] for attention_map in maps]
            terms = [term * weight for term, weight in zip(terms[:-1], received, strict=True)]
        scores = sum(terms[:-1]) if method == "cat" else sum(terms)
        if method in ("gradcam", "grad_x_input"):
            scores = terms[0]
        if method == "gradcam":
            scores = scores.clamp(min=0)
        assert_close(attribution.scores, scores.detach().numpy(), FLOAT64)
        assert abs(attribution.scores - plain.scores).max() > 1e-6


def compute_state_gradients(model: Any, text: str) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the hidden states of a text and the gradients of logit 1 at them."""
    outputs = model(**TOKENIZER(text, return_tensors="pt"), output_hidden_states=True)
    return outputs.hidden_states, torch.autograd.grad(
        outputs.logits[0, 1], outputs.hidden_states, allow_unused=False
    )


def test_gradient_times_input_with_the_gradient_of_attnlrp_is_attnlrp():
    relevance = Explainer(tiny_bert().double(), TOKENIZER).explain(TEXTS, "attnlrp", target=1)
    for actual, expected in zip(
        explain_second_class("grad_x_input", {"gradient": "attnlrp"}), relevance, strict=True
    ):
        assert_close(actual.scores, expected.scores, FLOAT64)


def test_methods_of_one_call_keep_their_own_gradient():
    explainer = Explainer(tiny_bert().double(), TOKENIZER)
    methods = ["cat", ("cat", CONSTANT), "gae", ("gae", {"gradient": "attnlrp"}), "attnlrp"]
    together = explainer.explain(TEXTS[1], methods)
    for attribution, method in zip(together, methods, strict=True):
        assert_close(attribution.scores, explainer.explain(TEXTS[1], method).scores, FLOAT64)


def test_both_sides_of_an_answer_are_rewritten():
    explainer = Explainer(tiny_bert_qa().double(), TOKENIZER)
    question = Question(question="who sat on the mat ?", context="the cat sat on the mat in town .")
    plain, summed = (
        explainer.explain(question, ("attcat", {**CONSTANT, "absolute": flag}))
        for flag in (False, True)
    )
    unchanged = explainer.explain(question, ("attcat", {"absolute": True}))
    assert (summed.scores >= abs(plain.scores) - 1e-12).all()  # |start| + |end| ≥ |start + end|
    assert abs(unchanged.scores - summed.scores).max() > 1e-6


def test_the_gradient_of_a_map_that_is_constant_is_refused():
    with pytest.raises(BadInput, match="attention_constant"):
        explain_second_class("gae", CONSTANT)
