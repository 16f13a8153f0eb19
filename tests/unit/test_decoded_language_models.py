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

from tests.state import same, snapshot
from tests.tiny import tiny_bert, tiny_bert_lm, tiny_tokenizer
from tokenlight import Attribution, Explainer, Tokens
from tokenlight.errors import BadInput, UnknownName, UnsupportedModel
from tokenlight.methods._decoding import head_of, probabilities

TOKENIZER = tiny_tokenizer()
TEXT = "the film is not very charming , but we love it !"


@pytest.fixture(scope="module")
def language_model():
    return tiny_bert_lm(torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, language_model):
    place = tmp_path_factory.mktemp("models") / "tiny-lm"
    language_model.save_pretrained(place)
    TOKENIZER.save_pretrained(place)
    return place


def explained(explainer, **options):
    return explainer.explain(TEXT, ("decoded_gradcam", options))


def test_a_path_and_a_model_decode_alike(folder, language_model):
    explainer = Explainer(tiny_bert(torch.float32), TOKENIZER)
    wanted = explained(explainer, lm=language_model)
    assert np.abs(wanted.scores).max() > 0
    found = explained(explainer, lm=str(folder))
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)


def test_the_language_model_is_written_down_by_name(folder, language_model, tmp_path):
    explainer = Explainer(tiny_bert(torch.float32), TOKENIZER)
    assert explained(explainer, lm=str(folder)).options["lm"] == str(folder)
    named = explained(explainer, lm=language_model)
    again = Attribution.load(named.save(tmp_path / "a.json"))
    assert again.options["lm"] in {"BertForMaskedLM", str(folder)}


def test_a_language_model_is_left_as_it_was(language_model):
    before = snapshot(language_model)
    explained(Explainer(tiny_bert(torch.float32), TOKENIZER), lm=language_model)
    assert same(before, snapshot(language_model))
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
    found = explained(Explainer.from_pretrained(tmp_path))
    assert np.abs(found.scores).max() > 0
    assert "lm" not in found.options


def test_a_checkpoint_without_a_head_is_refused_in_words(bert_folder):
    with pytest.raises(BadInput, match=r"none was found in .*Give it as the option lm"):
        explained(Explainer.from_pretrained(bert_folder))


def test_a_model_from_nowhere_is_refused_in_words():
    with pytest.raises(BadInput, match="not loaded from a checkpoint"):
        explained(Explainer(tiny_bert(), TOKENIZER))


def test_a_name_that_no_file_system_has_is_refused_in_words():
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    with pytest.raises(UnknownName, match="no model can be called"):
        explainer.explain("good film", ("decoded_gradcam", {"lm": "x" * 5000}))


def test_a_path_that_holds_nothing_is_refused_in_words(tmp_path):
    with pytest.raises(BadInput, match="none was found"):
        explained(Explainer(tiny_bert(), TOKENIZER), lm=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"hidden_size": 16}, "width 16.* has width 32"), ({"vocab_size": 99}, "99 tokens.*150")],
)
def test_a_language_model_of_another_encoder_is_refused(changes, said):
    other = tiny_bert_lm(**changes)
    with pytest.raises(UnsupportedModel, match=said):
        explained(Explainer(tiny_bert(), TOKENIZER), lm=other)


def test_a_tokenizer_of_other_meanings_is_refused(folder):
    other = tiny_tokenizer()
    other.add_tokens(["quite", "new"])
    with pytest.raises(UnsupportedModel, match="other meanings"):
        explained(Explainer(tiny_bert(), other), lm=str(folder))


def test_a_model_without_a_head_is_no_language_model(language_model):
    with pytest.raises(BadInput, match="no encoder with a head on it"):
        explained(Explainer(tiny_bert(), TOKENIZER), lm=language_model.bert)


@pytest.mark.parametrize("layer", [9, -9])
def test_a_layer_that_does_not_exist_is_refused(layer, language_model):
    with pytest.raises(BadInput, match=f"layer={layer} does not exist.*0 .embedding. to 3"):
        explained(Explainer(tiny_bert(), TOKENIZER), lm=language_model, layer=layer)


def test_a_tau_that_keeps_nothing_is_refused(language_model):
    with pytest.raises(BadInput, match="tau=0 of decoded_.* cannot be: give 1"):
        explained(Explainer(tiny_bert(), TOKENIZER), lm=language_model, tau=0)


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
def test_what_stands_behind_the_encoder_is_the_head_in_any_family(family):
    config, classifier, kind, by_hand = FAMILIES[family]
    torch.manual_seed(0)
    model, language_model = classifier(config).eval(), kind(config).eval()
    states = torch.randn(5, 32)
    wanted = torch.arange(5).expand(5, 5)
    found = probabilities(head_of(language_model), states, wanted)
    with torch.no_grad():
        expected = by_hand(language_model, states[None])[0].softmax(dim=-1)[:, :5]
    torch.testing.assert_close(found, expected)
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
    found = explainer.explain(text, ("decoded_gradcam", {"layer": 5}))
    assert found.prediction.label == "negative"
    assert {token for token, _ in found.top(3)} & {"boring", "badly"}
    named = explainer.explain(text, ("decoded_gradcam", {"layer": 5, "lm": "tokenlight/masked_lm"}))
    np.testing.assert_allclose(named.scores, found.scores, rtol=1e-4, atol=1e-9)
