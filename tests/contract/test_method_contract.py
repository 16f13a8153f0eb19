"""The laws every method obeys; a new file in methods/ is tested by existing."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForSequenceClassification

from tests.helpers.expect import expect_error
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import (
    randomize_weights,
    tiny_bert,
    tiny_bert_lm,
    tiny_bert_qa,
    tiny_tokenizer,
)
from tests.helpers.tolerance import (
    FLOAT32,
    PASS_CONDITION,
    RELEVANCE_CONDITION,
    EverythingInFloat64,
    assert_close,
    condition_number,
)
from tokenlight import Attribution, Contrast, Explainer, Question, Tokens, registry
from tokenlight.errors import BadInput, NotFinite, UnknownName
from tokenlight.trace.tape import Recording, Tape

METHODS = registry.list_names("methods")
# What a method cannot do without, and the tiny model does not have.
LANGUAGE_MODEL = tiny_bert_lm()
CONTRACT_OPTIONS = {
    "context_cite": {"units": "word"},  # ids have no sentences
    "decoded_gradcam": {"lm": LANGUAGE_MODEL},
    "decoded_simple": {"lm": LANGUAGE_MODEL},
}
TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXT = "the film is not very charming , but we love it !"
SLIDING = Explainer(
    randomize_weights(
        MistralForSequenceClassification(
            MistralConfig(
                vocab_size=150, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, intermediate_size=48, num_labels=3, pad_token_id=0,
                sliding_window=4,
            )
        ),
        torch.float64,
    ),
    TOKENIZER,
)  # fmt: skip
# Presets that divide by the gradient's own rounding where this tiny model gives almost none.
REFUSED_PRESETS = {("simple", "paper"), ("smooth", "official")}
OTHERS = ["a dull plot", "never ever hate this movie . it was fun and the acting is great", "good"]


def add_contract_options(method: str) -> Any:
    """Return the method with the options that it needs to run here."""
    return (method, CONTRACT_OPTIONS[method]) if method in CONTRACT_OPTIONS else method


@pytest.mark.parametrize("method", METHODS)
def test_logits_equal_the_bare_models(method):
    attribution = EXPLAINER.explain(TEXT, add_contract_options(method))
    arguments = TOKENIZER(TEXT, return_tensors="pt")
    with torch.no_grad():
        bare = EXPLAINER.model(**arguments).logits[0]
    assert_close(attribution.logits, bare.numpy())
    assert attribution.prediction.index == int(bare.argmax())
    np.testing.assert_allclose(
        attribution.prediction.probabilities, bare.softmax(0).numpy(), atol=1e-12
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_unchanged_after_success(method):
    model = tiny_bert().train()
    model.bert.encoder.layer[1].eval()
    before = take_snapshot(model)
    Explainer(model, TOKENIZER).explain(
        [TEXT, OTHERS[0]], add_contract_options(method), target="all"
    )
    assert_unchanged(before, take_snapshot(model))


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_unchanged_after_an_error(method):
    model = tiny_bert()
    explainer = Explainer(model, TOKENIZER)
    explainer.explain(TEXT, add_contract_options(method))
    before = take_snapshot(model)
    handle = model.classifier.register_forward_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        explainer.explain(OTHERS[0], add_contract_options(method))
    handle.remove()
    assert_unchanged(before, take_snapshot(model))


def _fail(*_: Any) -> None:
    """Raise an error in the middle of a pass."""
    raise RuntimeError("on purpose")


def _count_alive() -> int:
    """Count the tensors and tapes that something still holds."""
    return sum(type(item) in (torch.Tensor, Tape, Recording) for item in gc.get_objects())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["predicted", Contrast("negative", "positive")], ids=str)
def test_nothing_of_a_pass_is_left_for_the_garbage_collector(method, target):
    """A graph in a cycle fills a GPU: Python looks for cycles by the count of its own objects."""
    EXPLAINER.explain([TEXT, OTHERS[0]], add_contract_options(method), target=target)
    gc.collect()
    gc.disable()
    try:
        before = _count_alive()
        EXPLAINER.explain([TEXT, OTHERS[0]], add_contract_options(method), target=target)
        assert _count_alive() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("method", METHODS)
def test_a_text_has_the_same_scores_in_any_batch(method):
    alone = EXPLAINER.explain(TEXT, add_contract_options(method))
    for texts in ([TEXT, *OTHERS], [*OTHERS, TEXT]):
        together = EXPLAINER.explain(texts, add_contract_options(method))
        assert_close(together[texts.index(TEXT)].scores, alone.scores)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=6)
@given(num_left=st.integers(0, 4), num_right=st.integers(0, 4), swapped=st.booleans())
def test_padding_on_either_side_changes_no_score(method, num_left, num_right, swapped):
    ids = TOKENIZER(TEXT)["input_ids"]
    other_ids = TOKENIZER(OTHERS[0])["input_ids"]
    width = len(ids) + num_left + num_right
    rows = [[0] * num_left + ids + [0] * num_right, other_ids + [0] * (width - len(other_ids))]
    masks = [
        [0] * num_left + [1] * len(ids) + [0] * num_right,
        [1] * len(other_ids) + [0] * (width - len(other_ids)),
    ]
    if swapped:
        rows = rows[::-1]
        masks = masks[::-1]
    padded = EXPLAINER.explain(Tokens.from_ids(rows, masks), add_contract_options(method))
    attribution = padded[1 if swapped else 0]
    alone = EXPLAINER.explain(Tokens.from_ids([ids]), add_contract_options(method))
    assert_close(attribution.scores, alone.scores)
    assert attribution.row.ids == tuple(ids)


@pytest.mark.parametrize("method", METHODS)
def test_condition_numbers_stay_below_what_the_tolerances_assume(method):
    def explain_positive(model: Any) -> np.ndarray:
        """Return the scores of the class positive."""
        return (
            Explainer(model, TOKENIZER)
            .explain(TEXT, add_contract_options(method), "positive")
            .scores
        )

    divides = registry.load_class("methods", method).needs_precision
    assert condition_number(EXPLAINER.model, explain_positive) < (
        RELEVANCE_CONDITION if divides else PASS_CONDITION
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_answer(method):
    first, second = (
        EXPLAINER.explain(TEXT, add_contract_options(method), seed=5) for _ in range(2)
    )
    np.testing.assert_array_equal(first.scores, second.scores)
    assert first.seed == 5


@pytest.mark.parametrize("method", METHODS)
def test_an_attribution_survives_saving(method, tmp_path):
    attribution = EXPLAINER.explain(
        (TEXT, OTHERS[0]), add_contract_options(method), target="positive"
    )
    loaded = Attribution.load(attribution.save(tmp_path / "a.json"))
    for field in dataclasses.fields(Attribution):
        actual = getattr(attribution, field.name)
        expected = getattr(loaded, field.name)
        if isinstance(actual, np.ndarray):
            np.testing.assert_array_equal(actual, expected)
        else:
            assert actual == expected, field.name


@pytest.mark.parametrize("method", METHODS)
def test_layers_sum_to_the_scores(method):
    attribution = EXPLAINER.explain(TEXT, add_contract_options(method))
    if registry.load_class("methods", method).per_layer:
        assert_close(attribution.layers.sum(axis=0), attribution.scores)
    else:
        assert attribution.layers is None


@pytest.mark.parametrize("method", METHODS)
def test_float32_and_bfloat16_keep_the_float64_answer(method):
    exact = EXPLAINER.explain(TEXT, add_contract_options(method), target="positive").scores
    single = (
        Explainer(tiny_bert(torch.float32), TOKENIZER)
        .explain(TEXT, add_contract_options(method), "positive")
        .scores
    )
    if registry.load_class("methods", method).needs_precision:
        assert np.corrcoef(single, exact)[0, 1] > 0.99
        return
    assert_close(single, exact, FLOAT32)
    half = (
        Explainer(tiny_bert(torch.bfloat16), TOKENIZER)
        .explain(TEXT, add_contract_options(method), "positive")
        .scores
    )
    assert np.isfinite(half).all()
    if np.abs(exact).max() > 0:
        assert np.corrcoef(half, exact)[0, 1] > 0.9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mode_that_the_caller_set_changes_no_score(method, mode):
    texts = [TEXT, OTHERS[0]]
    expected = EXPLAINER.explain(texts, add_contract_options(method))
    with mode():
        attributions = EXPLAINER.explain(texts, add_contract_options(method))
    for actual, reference in zip(attributions, expected, strict=True):
        np.testing.assert_array_equal(actual.scores, reference.scores)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, CONTRACT_OPTIONS.get(method, {})) for method in METHODS),
        ("rollout", {"residual": False}),
    ],
    ids=[*METHODS, "rollout without residual"],
)
def test_padding_that_sees_no_key_changes_no_score(method, options):
    """With a sliding window, padded queries far behind the text have attention to nothing."""
    ids = [[5, 6, 7, *[0] * 9], [*range(5, 17)]]
    padded_texts = Tokens.from_ids(ids, [[1] * 3 + [0] * 9, [1] * 12])
    with EverythingInFloat64():
        alone = SLIDING.explain(Tokens.from_ids([ids[0][:3]]), (method, options))
        padded, _ = SLIDING.explain(padded_texts, (method, options))
    assert_close(padded.scores, alone.scores)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_that_is_not_a_number_is_named(method):
    model = tiny_bert()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    with pytest.raises(NotFinite, match=r"layer\.1\.output\.dense\.weight"):
        Explainer(model, TOKENIZER).explain(TEXT, add_contract_options(method))


@pytest.mark.parametrize("method", METHODS)
def test_masked_special_tokens_keep_their_place(method):
    attribution = EXPLAINER.explain(TEXT, add_contract_options(method), explain_mask="cls_sep")
    assert attribution.row.attention_mask[0] == 0
    assert attribution.row.attention_mask[-1] == 0
    assert len(attribution) == len(TOKENIZER(TEXT)["input_ids"])


@pytest.mark.parametrize("method", METHODS)
def test_answer_spans_are_explained(method):
    explainer = Explainer(tiny_bert_qa(), TOKENIZER)
    question = Question(question="who sat on the mat ?", context="the cat sat on the mat in town .")
    attribution = explainer.explain(question, add_contract_options(method))
    assert np.isfinite(attribution.scores).all()
    assert attribution.prediction.label in question.context


@pytest.mark.parametrize("method", METHODS)
def test_a_docstring_has_formula_citation_and_difference_from_the_paper(method):
    cls = registry.load_class("methods", method)
    text = cls.__doc__
    assert "Differs from the" in text, f"{method} does not say how it differs from its paper"
    assert cls.cites
    assert ".. math::" in text or method in {"random", "attention_flow"}


@pytest.mark.parametrize("method", METHODS)
def test_unknown_options_and_presets_are_refused_with_near_names(method):
    with pytest.raises(UnknownName, match=f"option of method {method}"):
        EXPLAINER.explain(TEXT, (method, {"no_such_option": 1}))
    with pytest.raises(UnknownName, match=f"preset of {method}"):
        EXPLAINER.explain(TEXT, (method, {"preset": "no_such_preset"}))


@pytest.mark.parametrize("method", METHODS)
def test_every_preset_runs_but_those_that_are_listed(method):
    for preset in registry.load_class("methods", method).presets:
        if (method, preset) in REFUSED_PRESETS:
            with expect_error(BadInput, "rounding-noise"):
                EXPLAINER.explain(TEXT, (method, {"preset": preset}))
        else:
            attribution = EXPLAINER.explain(TEXT, (method, {"preset": preset}))
            assert np.isfinite(attribution.scores).all()
