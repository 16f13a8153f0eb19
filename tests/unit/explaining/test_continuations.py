"""A whole answer at the price of few passes: the same numbers, and the passes that are stated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.encoder_decoder_models import (
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tokenlight import Continuation, Contrast, Explainer, registry
from tokenlight.explaining import continuations
from tokenlight.explaining.continuations import is_prefix_invariant

PROMPT = "the cat sat on a mat"
TEXT = " the red dog ran and sat"
METHODS = ["grad_x_input", "saliency", "attnlrp", "cp_lrp", "gim"]


@pytest.fixture(scope="module", params=["llama", "bart"])
def explainer(request: pytest.FixtureRequest) -> Explainer:
    ends = request.param == "bart"
    return Explainer(
        make_seq2seq_model("bart") if ends else make_small_llama(),
        make_seq2seq_tokenizer(ends=ends),
    )


@pytest.fixture
def passes(explainer: Explainer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts tokens that go forward as texts, and backwards, from the second explanation on."""
    counts: Counter[str] = Counter()
    grad = torch.autograd.grad

    def count_passes(*arguments: Any, **options: Any) -> Any:
        counts["backwards"] += 1
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", count_passes)

    def forward(_: Any, __: Any, options: dict[str, Any]) -> None:
        counts["forwards"] += len(options["input_ids"])

    hook = explainer.runner.model.register_forward_pre_hook(forward, with_kwargs=True)
    yield counts
    hook.remove()


def test_one_shared_forward_gives_the_scores_of_a_forward_per_token(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = explainer.explain(PROMPT, METHODS, Continuation(TEXT))
    monkeypatch.setattr("tokenlight.explaining.strategies.can_share_forward", lambda *_: False)
    alone = explainer.explain(PROMPT, METHODS, Continuation(TEXT))
    assert len(shared) == len(alone) > 4 * len(METHODS)
    for attribution, other in zip(shared, alone, strict=True):
        assert (attribution.method, attribution.row) == (other.method, other.row)
        assert attribution.target.title == other.target.title
        for (coordinate, weight), (other_coordinate, other_weight) in zip(
            attribution.target.terms, other.target.terms, strict=True
        ):
            assert coordinate == other_coordinate
            assert abs(weight - other_weight) < 1e-12
        assert attribution.prediction.labels == other.prediction.labels
        scale = np.abs(other.scores).max()
        np.testing.assert_allclose(attribution.scores, other.scores, rtol=0, atol=1e-10 * scale)
        np.testing.assert_allclose(attribution.logits, other.logits, rtol=0, atol=1e-10)


def test_a_continuation_takes_one_forward_and_one_backward_per_token(
    explainer: Explainer, passes: Counter[str]
) -> None:
    explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))  # looks at the model first
    passes.clear()
    attribution = explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))
    assert passes == {"forwards": 1, "backwards": len(attribution)}


def test_a_short_text_in_half_precision_on_a_gpu_takes_one_batch_of_rows(
    explainer: Explainer, passes: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))
    monkeypatch.setitem(explainer.runner.__dict__, "is_half_precision_gpu", True)
    passes.clear()
    batched = explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))
    assert passes == {"forwards": len(batched), "backwards": 1}
    for attribution, other in zip(batched, whole, strict=True):
        scale = np.abs(other.scores).max()
        np.testing.assert_allclose(attribution.scores, other.scores, rtol=0, atol=1e-10 * scale)
    # A pass that keeps the device busy is shared.
    monkeypatch.setattr(continuations, "MAX_LAUNCH_BOUND_MULTIPLICATIONS", 1.0)
    passes.clear()
    explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))
    assert passes == {"forwards": 1, "backwards": len(batched)}


@pytest.fixture
def batched_gradients(explainer: Explainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: several backward passes may run as one."""
    monkeypatch.setattr(continuations, "can_batch_gradients", lambda _session: True)
    monkeypatch.setattr(explainer.facts, "batches_gradients", None)


def test_backward_passes_over_a_batch_of_gradients_give_the_scores_of_single_ones(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = explainer.explain(PROMPT, METHODS, Continuation(TEXT))
    monkeypatch.setattr(continuations, "can_batch_gradients", lambda _session: True)
    monkeypatch.setattr(explainer.facts, "batches_gradients", None)
    batched = explainer.explain(PROMPT, METHODS, Continuation(TEXT))
    assert explainer.facts.batches_gradients or explainer.runner.generates_from_source
    for attribution, other in zip(batched, single, strict=True):
        assert (attribution.method, attribution.row) == (other.method, other.row)
        scale = np.abs(other.scores).max()
        np.testing.assert_allclose(attribution.scores, other.scores, rtol=0, atol=1e-12 * scale)


@pytest.mark.usefixtures("batched_gradients")
def test_tokens_of_a_continuation_share_a_backward_pass_where_gradients_are_batched(
    explainer: Explainer, passes: Counter[str]
) -> None:
    attributions = explainer.explain(PROMPT, "attnlrp", Continuation(TEXT))
    # The first time, a batch of two and a single gradient are compared.
    assert passes == {"forwards": passes["forwards"], "backwards": 3}
    passes.clear()
    assert len(explainer.explain(PROMPT, "attnlrp", Continuation(TEXT))) == len(attributions) > 3
    assert passes == {"forwards": 1, "backwards": 1}


@pytest.mark.usefixtures("batched_gradients")
def test_as_many_gradients_are_batched_as_tokens_may_go_through_the_model_at_once(
    explainer: Explainer, passes: Counter[str]
) -> None:
    whole = explainer.explain(PROMPT, "attnlrp", Continuation(TEXT))
    num_tokens = len(whole[-1].row) * 2
    passes.clear()
    in_pairs = explainer.explain(PROMPT, "attnlrp", Continuation(TEXT), batch_tokens=num_tokens)
    assert passes["backwards"] == -(-len(whole) // 2)
    for attribution, other in zip(in_pairs, whole, strict=True):
        scale = np.abs(other.scores).max()
        np.testing.assert_allclose(attribution.scores, other.scores, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("is_wrong", [True, False], ids=["wrong", "refused"])
@pytest.mark.usefixtures("batched_gradients")
def test_a_model_that_takes_no_batch_of_gradients_has_a_backward_pass_per_token(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    grad = torch.autograd.grad

    def compute_gradients(*arguments: Any, is_grads_batched: bool = False, **options: Any) -> Any:
        if not is_grads_batched:
            return grad(*arguments, **options)
        if not is_wrong:
            raise RuntimeError("no batching rule")
        gradients = grad(*arguments, is_grads_batched=True, **options)
        return tuple(torch.zeros_like(gradient) for gradient in gradients)

    monkeypatch.setattr(torch.autograd, "grad", compute_gradients)
    explainer.explain(PROMPT, "attnlrp", Continuation(TEXT))
    assert explainer.facts.batches_gradients is False
    monkeypatch.setattr(torch.autograd, "grad", grad)
    single = explainer.explain(PROMPT, "attnlrp", Continuation(TEXT))
    monkeypatch.setattr(continuations, "can_batch_gradients", lambda _session: False)
    for attribution, other in zip(
        single, explainer.explain(PROMPT, "attnlrp", Continuation(TEXT)), strict=True
    ):
        np.testing.assert_array_equal(attribution.scores, other.scores)


def test_a_model_in_half_precision_takes_a_batch_of_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = Explainer(make_small_llama().to(torch.bfloat16), make_seq2seq_tokenizer(ends=False))
    single = half.explain(PROMPT, "attnlrp", Continuation(TEXT))
    monkeypatch.setattr(continuations, "can_batch_gradients", lambda _session: True)
    batched = half.explain(PROMPT, "attnlrp", Continuation(TEXT))
    assert half.facts.batches_gradients
    for attribution, other in zip(batched, single, strict=True):
        # Products of a batch may be added up in another order.
        atol = 32 * torch.finfo(torch.bfloat16).eps * np.abs(other.scores).max()
        np.testing.assert_allclose(attribution.scores, other.scores, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "method", ["grad_x_input", "saliency", "attnlrp", "cp_lrp", "gae", "attcat"]
)
@pytest.mark.parametrize("target", ["answer", "contrast"])
def test_a_whole_answer_takes_the_passes_that_its_cost_states(
    explainer: Explainer, passes: Counter[str], method: str, target: str
) -> None:
    target_object = {"answer": Continuation(TEXT, joint=True), "contrast": Contrast("red", "dog")}[
        target
    ]
    explainer.explain(PROMPT, method, target_object)
    passes.clear()
    attributions = explainer.explain(PROMPT, method, target_object)
    tokens = len(attributions[0] if isinstance(attributions, list) else attributions)
    cost = registry.build("methods", method, {}).count_passes(tokens)
    assert passes == {"forwards": cost.forwards, "backwards": cost.backwards}


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
@pytest.mark.parametrize("against", ["all", None])
def test_relevance_of_a_whole_answer_is_the_sum_of_its_tokens(
    explainer: Explainer, method: str, against: Any
) -> None:
    (joint,) = explainer.explain(PROMPT, method, Continuation(TEXT, joint=True, against=against))
    summed = np.zeros(len(joint))
    for attribution in explainer.explain(PROMPT, method, Continuation(TEXT, against=against)):
        summed[: len(attribution)] += attribution.scores
    np.testing.assert_allclose(joint.scores, summed, rtol=0, atol=1e-10 * np.abs(summed).max())


def test_methods_that_read_more_than_embeddings_keep_a_row_for_each_token() -> None:
    built = {name: registry.build("methods", name, {}) for name in registry.list_names("methods")}
    assert sorted(METHODS) == sorted(name for name in built if is_prefix_invariant(built[name]))
    other = registry.build("methods", "grad_x_input", {"site": "token_embeddings"})
    assert not is_prefix_invariant(other)
