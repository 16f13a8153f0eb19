"""A whole answer at the price of few passes: the same numbers, and the passes that are stated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from tests.writers import small_llama, writer, writing_tokenizer
from tokenlight import Continuation, Contrast, Explainer, registry
from tokenlight.explaining.passes import reads_alike

PROMPT, TEXT = "the cat sat on a mat", " the red dog ran and sat"
METHODS = ["grad_x_input", "saliency", "attnlrp", "cp_lrp"]


@pytest.fixture(scope="module", params=["llama", "bart"])
def explainer(request: pytest.FixtureRequest) -> Explainer:
    ends = request.param == "bart"
    return Explainer(writer("bart") if ends else small_llama(), writing_tokenizer(ends=ends))


@pytest.fixture
def passes(explainer: Explainer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts tokens that go forward as texts, and backwards, from the second explanation on."""
    counts: Counter[str] = Counter()
    grad = torch.autograd.grad

    def counting(*given: Any, **how: Any) -> Any:
        counts["backwards"] += 1
        return grad(*given, **how)

    monkeypatch.setattr(torch.autograd, "grad", counting)

    def forward(_: Any, __: Any, how: dict[str, Any]) -> None:
        counts["forwards"] += len(how["input_ids"])

    hook = explainer.live.model.register_forward_pre_hook(forward, with_kwargs=True)
    yield counts
    hook.remove()


def test_rows_by_one_forward_are_those_of_a_forward_each(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explainer.explain(PROMPT, METHODS, Continuation(TEXT))
    monkeypatch.setattr("tokenlight.explaining.passes.share_a_forward", lambda *_: False)
    alone = explainer.explain(PROMPT, METHODS, Continuation(TEXT))
    assert len(whole) == len(alone) > 4 * len(METHODS)
    for one, other in zip(whole, alone, strict=True):
        assert (one.method, one.target, one.row) == (other.method, other.target, other.row)
        assert one.prediction.labels == other.prediction.labels
        scale = np.abs(other.scores).max()
        np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-10 * scale)
        np.testing.assert_allclose(one.logits, other.logits, rtol=0, atol=1e-10)


def test_a_continuation_takes_one_forward_and_a_backward_a_token(
    explainer: Explainer, passes: Counter[str]
) -> None:
    explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))  # looks at the model first
    passes.clear()
    found = explainer.explain(PROMPT, "grad_x_input", Continuation(TEXT))
    assert passes == {"forwards": 1, "backwards": len(found)}


@pytest.mark.parametrize(
    "method", ["grad_x_input", "saliency", "attnlrp", "cp_lrp", "gae", "attcat"]
)
@pytest.mark.parametrize("target", ["answer", "contrast"])
def test_a_whole_answer_takes_the_passes_that_its_cost_states(
    explainer: Explainer, passes: Counter[str], method: str, target: str
) -> None:
    asked = {"answer": Continuation(TEXT, together=True), "contrast": Contrast("red", "dog")}[
        target
    ]
    explainer.explain(PROMPT, method, asked)
    passes.clear()
    found = explainer.explain(PROMPT, method, asked)
    tokens = len(found[0] if isinstance(found, list) else found)
    cost = registry.build("methods", method, {}).cost(tokens)
    assert passes == {"forwards": cost.forwards, "backwards": cost.backwards}


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
def test_relevance_of_a_whole_answer_is_the_sum_of_its_tokens(
    explainer: Explainer, method: str
) -> None:
    (whole,) = explainer.explain(PROMPT, method, Continuation(TEXT, together=True))
    summed = np.zeros(len(whole))
    for one in explainer.explain(PROMPT, method, Continuation(TEXT)):
        summed[: len(one)] += one.scores
    np.testing.assert_allclose(whole.scores, summed, rtol=0, atol=1e-10 * np.abs(summed).max())


def test_methods_that_read_more_than_embeddings_keep_a_row_for_each_token() -> None:
    built = {name: registry.build("methods", name, {}) for name in registry.names("methods")}
    assert sorted(METHODS) == sorted(name for name in built if reads_alike(built[name]))
    other = registry.build("methods", "grad_x_input", {"at": "words"})
    assert not reads_alike(other)
