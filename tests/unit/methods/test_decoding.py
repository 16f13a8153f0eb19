"""Which language model decodes: given, found in the checkpoint, or embedded; or refused in words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from tests.helpers.expect import expect_error
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import tiny_bert, tiny_bert_lm, tiny_tokenizer
from tokenlight import Attribution, Explainer, Tokens
from tokenlight.errors import BadInput, UnknownName, UnsupportedModel
from tokenlight.methods._decoding import compute_token_probabilities, extract_lm_head

TOKENIZER = tiny_tokenizer()
TEXT = "the film is not very charming , but we love it !"


@pytest.fixture(scope="module")
def language_model():
    return tiny_bert_lm(torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, language_model):
    path = tmp_path_factory.mktemp("models") / "tiny-lm"
    language_model.save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def explain_decoded(explainer, **options):
    return explainer.explain(TEXT, ("decoded_gradcam", options))


def test_a_path_and_a_model_decode_alike(folder, language_model):
    explainer = Explainer(tiny_bert(torch.float32), TOKENIZER)
    expected = explain_decoded(explainer, lm=language_model)
    assert np.abs(expected.scores).max() > 0
    attribution = explain_decoded(explainer, lm=str(folder))
    np.testing.assert_allclose(attribution.scores, expected.scores, rtol=1e-5)


def test_the_language_model_is_written_down_by_name(folder, language_model, tmp_path):
    explainer = Explainer(tiny_bert(torch.float32), TOKENIZER)
    assert explain_decoded(explainer, lm=str(folder)).options["lm"] == str(folder)
    attribution_by_option = explain_decoded(explainer, lm=language_model)
    loaded = Attribution.load(attribution_by_option.save(tmp_path / "a.json"))
    assert loaded.options["lm"] in {"BertForMaskedLM", str(folder)}


def test_a_language_model_is_left_as_it_was(language_model):
    before = take_snapshot(language_model)
    explain_decoded(Explainer(tiny_bert(torch.float32), TOKENIZER), lm=language_model)
    assert_unchanged(before, take_snapshot(language_model))
    assert type(language_model.bert).__name__ == "BertModel"


def test_a_checkpoint_that_carries_a_head_needs_no_option(tmp_path, language_model):
    tiny_bert(torch.float32).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    head = {
        name: weight.clone()
        for name, weight in language_model.state_dict().items()
        if name.startswith("cls.") and name not in weights
    }
    save_file(weights | head, tmp_path / "model.safetensors", metadata={"format": "pt"})
    attribution = explain_decoded(Explainer.from_pretrained(tmp_path))
    assert np.abs(attribution.scores).max() > 0
    assert "lm" not in attribution.options


def test_a_checkpoint_without_a_head_is_refused(bert_folder):
    with expect_error(BadInput, "lm-not-found", mentions="Give it as the option lm"):
        explain_decoded(Explainer.from_pretrained(bert_folder))


def test_an_unknown_model_name_is_refused():
    with expect_error(BadInput, "lm-unknown"):
        explain_decoded(Explainer(tiny_bert(), TOKENIZER))


def test_a_name_that_no_file_system_has_is_refused():
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    with pytest.raises(UnknownName, match="not a valid model name"):
        explainer.explain("good film", ("decoded_gradcam", {"lm": "x" * 5000}))


def test_an_empty_folder_is_refused(tmp_path):
    with expect_error(BadInput, "lm-not-found"):
        explain_decoded(Explainer(tiny_bert(), TOKENIZER), lm=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("changes", "code", "numbers"),
    [
        ({"hidden_size": 16}, "lm-width", ("width 16", "width 32")),
        ({"vocab_size": 99}, "lm-vocabulary-size", ("99 tokens", "150")),
    ],
)
def test_a_language_model_of_another_encoder_is_refused(changes, code, numbers):
    other = tiny_bert_lm(**changes)
    with expect_error(UnsupportedModel, code) as caught:
        explain_decoded(Explainer(tiny_bert(), TOKENIZER), lm=other)
    assert all(number in str(caught.value) for number in numbers)


def test_a_tokenizer_of_other_meanings_is_refused(folder):
    other = tiny_tokenizer()
    other.add_tokens(["quite", "new"])
    with expect_error(UnsupportedModel, "lm-vocabulary"):
        explain_decoded(Explainer(tiny_bert(), other), lm=str(folder))


def test_a_model_without_a_head_is_no_language_model(language_model):
    with expect_error(BadInput, "lm-without-head"):
        explain_decoded(Explainer(tiny_bert(), TOKENIZER), lm=language_model.bert)


@pytest.mark.parametrize("layer", [9, -9])
def test_a_layer_that_does_not_exist_is_refused(layer, language_model):
    with expect_error(BadInput, "layer-value", mentions=f"layer={layer} does not exist") as caught:
        explain_decoded(Explainer(tiny_bert(), TOKENIZER), lm=language_model, layer=layer)
    assert "0 (embedding) to 3" in str(caught.value)


def test_a_tau_that_keeps_no_token_is_refused(language_model):
    with pytest.raises(BadInput, match="tau=0 of decoded_.* is not valid. Give a number from 1"):
        explain_decoded(Explainer(tiny_bert(), TOKENIZER), lm=language_model, tau=0)


SIZES = {"vocab_size": 120, "num_labels": 3, "pad_token_id": 0}
FAMILIES = {
    "roberta": (
        RobertaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=66, **SIZES,
        ),
        RobertaForSequenceClassification, RobertaForMaskedLM,
        lambda lm, states: lm.lm_head(states),
    ),
    "distilbert": (
        DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, **SIZES),
        DistilBertForSequenceClassification, DistilBertForMaskedLM,
        lambda lm, states: lm.vocab_projector(
            lm.vocab_layer_norm(lm.activation(lm.vocab_transform(states)))
        ),
    ),
    "gpt2": (
        GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SIZES),
        GPT2ForSequenceClassification, GPT2LMHeadModel,
        lambda lm, states: lm.lm_head(states),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_modules_after_the_encoder_are_the_head_in_any_family(family):
    config, classifier, kind, by_hand = FAMILIES[family]
    torch.manual_seed(0)
    model = classifier(config).eval()
    language_model = kind(config).eval()
    states = torch.randn(5, 32)
    token_ids = torch.arange(5).expand(5, 5)
    probabilities = compute_token_probabilities(extract_lm_head(language_model), states, token_ids)
    with torch.no_grad():
        expected = by_hand(language_model, states[None])[0].softmax(dim=-1)[:, :5]
    torch.testing.assert_close(probabilities, expected)
    ids = torch.randint(5, 120, (1, 9))
    scores = (
        Explainer(model)
        .explain(Tokens.from_ids(ids), ("decoded_gradcam", {"lm": language_model, "relu": "none"}))
        .scores
    )
    assert np.isfinite(scores).all()
    assert np.abs(scores).max() > 0


def test_embedded_models_find_the_embedded_language_model():
    explainer = Explainer.from_pretrained("tokenlight/sentiment")
    text = "an utterly boring , badly acted film"
    attribution = explainer.explain(text, ("decoded_gradcam", {"layer": 5}))
    assert attribution.prediction.label == "negative"
    assert {token for token, _ in attribution.top(3)} & {"boring", "badly"}
    attribution_by_option = explainer.explain(
        text, ("decoded_gradcam", {"layer": 5, "lm": "tokenlight/masked_lm"})
    )
    np.testing.assert_allclose(
        attribution_by_option.scores, attribution.scores, rtol=1e-4, atol=1e-9
    )
