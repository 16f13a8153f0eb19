"""The laws every method obeys; a new file in methods/ is tested by existing."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForSequenceClassification

from tests.state import same, snapshot
from tests.tiny import randomised, tiny_bert, tiny_bert_lm, tiny_bert_qa, tiny_tokenizer
from tests.tolerance import DIVIDING, FLOAT32, PLAIN, EverythingInFloat64, close, condition
from tokenlight import Attribution, Contrast, Explainer, Question, Tokens, registry
from tokenlight.capture.tape import Recording, Tape
from tokenlight.errors import BadInput, NotFinite, TokenlightError, UnknownName

METHODS = registry.names("methods")
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
    randomised(
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
OTHERS = ["a dull plot", "never ever hate this movie . it was fun and the acting is great", "good"]


def asked(method):
    return (method, CONTRACT_OPTIONS[method]) if method in CONTRACT_OPTIONS else method


@pytest.mark.parametrize("method", METHODS)
def test_logits_are_the_bare_models(method):
    found = EXPLAINER.explain(TEXT, asked(method))
    arguments = TOKENIZER(TEXT, return_tensors="pt")
    with torch.no_grad():
        bare = EXPLAINER.model(**arguments).logits[0]
    close(found.logits, bare.numpy())
    assert found.prediction.index == int(bare.argmax())
    np.testing.assert_allclose(found.prediction.probabilities, bare.softmax(0).numpy(), atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_as_before_after_success(method):
    model = tiny_bert().train()
    model.bert.encoder.layer[1].eval()
    before = snapshot(model)
    Explainer(model, TOKENIZER).explain([TEXT, OTHERS[0]], asked(method), target="all")
    assert same(before, snapshot(model))


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_as_before_after_an_error_inside_it(method):
    model = tiny_bert()
    explainer = Explainer(model, TOKENIZER)
    explainer.explain(TEXT, asked(method))
    before = snapshot(model)
    handle = model.classifier.register_forward_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        explainer.explain(OTHERS[0], asked(method))
    handle.remove()
    assert same(before, snapshot(model))


def _fail(*_):
    raise RuntimeError("on purpose")


def _held():
    """Tensors and tapes that something still holds."""
    return sum(type(one) in (torch.Tensor, Tape, Recording) for one in gc.get_objects())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["predicted", Contrast("negative", "positive")], ids=str)
def test_nothing_of_a_pass_is_left_for_the_garbage_collector(method, target):
    """A graph in a cycle fills a GPU: Python looks for cycles by the count of its own objects."""
    gc.freeze()  # what was there before is neither counted nor searched
    try:
        EXPLAINER.explain([TEXT, OTHERS[0]], asked(method), target=target)
        gc.collect()
        gc.disable()
        before = _held()
        EXPLAINER.explain([TEXT, OTHERS[0]], asked(method), target=target)
        assert _held() == before
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize("method", METHODS)
def test_a_text_scores_the_same_alone_and_in_any_batch(method):
    alone = EXPLAINER.explain(TEXT, asked(method))
    for texts in ([TEXT, *OTHERS], [*OTHERS, TEXT]):
        together = EXPLAINER.explain(texts, asked(method))
        close(together[texts.index(TEXT)].scores, alone.scores)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=6)
@given(left=st.integers(0, 4), right=st.integers(0, 4), swapped=st.booleans())
def test_padding_on_either_side_changes_no_score(method, left, right, swapped):
    ids = TOKENIZER(TEXT)["input_ids"]
    mate = TOKENIZER(OTHERS[0])["input_ids"]
    width = len(ids) + left + right
    rows = [[0] * left + ids + [0] * right, mate + [0] * (width - len(mate))]
    masks = [[0] * left + [1] * len(ids) + [0] * right, [1] * len(mate) + [0] * (width - len(mate))]
    if swapped:
        rows, masks = rows[::-1], masks[::-1]
    found = EXPLAINER.explain(Tokens.from_ids(rows, masks), asked(method))[1 if swapped else 0]
    close(found.scores, EXPLAINER.explain(Tokens.from_ids([ids]), asked(method)).scores)
    assert found.row.ids == tuple(ids)


@pytest.mark.parametrize("method", METHODS)
def test_no_answer_is_worse_conditioned_than_the_tolerances_assume(method):
    def scores(model):
        return Explainer(model, TOKENIZER).explain(TEXT, asked(method), "positive").scores

    divides = registry.find("methods", method).needs_precision
    assert condition(EXPLAINER.model, scores) < (DIVIDING if divides else PLAIN)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_answer(method):
    first, second = (EXPLAINER.explain(TEXT, asked(method), seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.scores, second.scores)
    assert first.seed == 5


@pytest.mark.parametrize("method", METHODS)
def test_an_attribution_survives_saving(method, tmp_path):
    found = EXPLAINER.explain((TEXT, OTHERS[0]), asked(method), target="positive")
    again = Attribution.load(found.save(tmp_path / "a.json"))
    for field in dataclasses.fields(Attribution):
        ours, theirs = getattr(found, field.name), getattr(again, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours == theirs, field.name


@pytest.mark.parametrize("method", METHODS)
def test_layers_sum_to_the_scores(method):
    found = EXPLAINER.explain(TEXT, asked(method))
    if registry.find("methods", method).per_layer:
        close(found.layers.sum(axis=0), found.scores)
    else:
        assert found.layers is None


@pytest.mark.parametrize("method", METHODS)
def test_float32_and_bfloat16_keep_the_float64_answer(method):
    exact = EXPLAINER.explain(TEXT, asked(method), target="positive").scores
    single = (
        Explainer(tiny_bert(torch.float32), TOKENIZER)
        .explain(TEXT, asked(method), "positive")
        .scores
    )
    if registry.find("methods", method).needs_precision:
        assert np.corrcoef(single, exact)[0, 1] > 0.99
        return
    close(single, exact, FLOAT32)
    half = (
        Explainer(tiny_bert(torch.bfloat16), TOKENIZER)
        .explain(TEXT, asked(method), "positive")
        .scores
    )
    assert np.isfinite(half).all()
    if np.abs(exact).max() > 0:
        assert np.corrcoef(half, exact)[0, 1] > 0.9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mode_that_the_caller_set_changes_no_score(method, mode):
    texts = [TEXT, OTHERS[0]]
    expected = EXPLAINER.explain(texts, asked(method))
    with mode():
        found = EXPLAINER.explain(texts, asked(method))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"residual": False}], ids=["", "no residual"])
def test_padding_that_sees_no_key_changes_no_score(method, options):
    """With a sliding window, padded queries far behind the text have attention to nothing."""
    if options and method != "rollout":
        return
    ids = [[5, 6, 7, *[0] * 9], [*range(5, 17)]]
    both = Tokens.from_ids(ids, [[1] * 3 + [0] * 9, [1] * 12])
    (name, given) = asked(method) if method in CONTRACT_OPTIONS else (method, {})
    with EverythingInFloat64():
        try:
            alone = SLIDING.explain(Tokens.from_ids([ids[0][:3]]), (name, given | options))
        except TokenlightError as refusal:
            assert "language model" in str(refusal) or "vocabulary" in str(refusal)
            return
        padded, _ = SLIDING.explain(both, (name, given | options))
    close(padded.scores, alone.scores)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_that_is_not_a_number_is_named(method):
    model = tiny_bert()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    with pytest.raises(NotFinite, match=r"layer\.1\.output\.dense\.weight"):
        Explainer(model, TOKENIZER).explain(TEXT, asked(method))


@pytest.mark.parametrize("method", METHODS)
def test_masked_special_tokens_keep_their_place(method):
    found = EXPLAINER.explain(TEXT, asked(method), explain_mask="cls_sep")
    assert found.row.attention[0] == 0
    assert found.row.attention[-1] == 0
    assert len(found) == len(TOKENIZER(TEXT)["input_ids"])


@pytest.mark.parametrize("method", METHODS)
def test_answer_spans_are_explained(method):
    explainer = Explainer(tiny_bert_qa(), TOKENIZER)
    question = Question(question="who sat on the mat ?", context="the cat sat on the mat in town .")
    try:
        found = explainer.explain(question, asked(method))
    except TokenlightError as refusal:
        assert "question" in str(refusal) or "span" in str(refusal)  # refused in words, or right
        return
    assert np.isfinite(found.scores).all()
    assert found.prediction.label in question.context


@pytest.mark.parametrize("method", METHODS)
def test_a_docstring_tells_formula_citation_and_difference(method):
    cls = registry.find("methods", method)
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
def test_every_preset_runs(method):
    for preset in registry.find("methods", method).presets:
        try:
            found = EXPLAINER.explain(TEXT, (method, {"preset": preset}))
        except BadInput as refusal:
            assert preset in str(refusal) or method in str(refusal)
            continue
        assert np.isfinite(found.scores).all()
