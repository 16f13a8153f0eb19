"""The probes of a model before its first use, and the rows they run on."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import (
    BertLMHeadModel,
    FalconConfig,
    FalconForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from tests.helpers.expect import expect_error
from tests.helpers.tiny import (
    randomize_weights,
    tiny_bert,
    tiny_bert_qa,
    tiny_config,
    tiny_tokenizer,
)
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import NotFinite, UnsupportedModel

TOKENIZER = tiny_tokenizer()
TEXT = "the film is not very charming , but we love it !"
SMALL = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "num_labels": 3}


class AmnesicFalcon(FalconForSequenceClassification):
    """Falcon without a causal mask in its fused attention, which it uses even when maps are requested."""

    def forward(self, *arguments, **keywords):
        self.config._attn_implementation_internal = "sdpa"
        return super().forward(*arguments, **keywords)


def build_falcon(scale=1.0):
    config = FalconConfig(**SMALL, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = randomize_weights(AmnesicFalcon(config), torch.float32)
    with torch.no_grad():
        model.score.weight.mul_(scale)
    return model


def tokens(*ids):
    return Tokens.from_ids([ids], [[1] * len(ids)])


class TestProbeRow:
    @pytest.mark.parametrize("first", [(5,), (5, 5), (5,) * 12, (5,) * 60], ids=len)
    def test_a_model_with_other_attention_is_refused_whatever_the_first_text(self, first):
        explainer = Explainer(build_falcon())
        for text in (first, (5, 6), (5, 6, 7, 8, 9, 10)):
            with expect_error(
                UnsupportedModel, "attention-changes-logits", mentions="AmnesicFalcon"
            ):
                explainer.explain(tokens(*text), "gae")

    @pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
    def test_small_logits_hide_no_other_attention(self, scale):
        with expect_error(UnsupportedModel, "attention-changes-logits"):
            Explainer(build_falcon(scale)).explain(tokens(5, 6, 7, 8, 9), "gae")

    def test_masked_tokens_do_not_count_as_distinct_tokens(self):
        masked_tokens = Tokens.from_ids([[5, *range(20, 40)]], [[1] + [0] * 20])
        with expect_error(UnsupportedModel, "attention-changes-logits"):
            Explainer(build_falcon()).explain(masked_tokens, "gae")

    def test_a_language_model_that_is_not_causal_is_refused_every_time(self):
        model = randomize_weights(BertLMHeadModel(tiny_config()), torch.float64)
        for text in ((5,), (5,), (5, 6, 7)):
            with expect_error(UnsupportedModel, "not-causal"):
                Explainer(model).explain(tokens(*text), "grad_x_input")

    def test_a_model_that_draws_at_random_is_refused(self):
        model = tiny_bert().requires_grad_(False)

        def draw(*_):
            model.bert.pooler.dense.bias.normal_()

        model.bert.encoder.register_forward_hook(draw)
        with expect_error(UnsupportedModel, "random-logits"):
            Explainer(model).explain(tokens(5, 6, 7), "occlusion")

    @pytest.mark.parametrize("num_positions", [1, 2, 3, 6, 7, 9, 12])
    def test_a_model_of_few_positions_is_probed_within_them(self, num_positions):
        explainer = Explainer(tiny_bert(max_position_embeddings=num_positions))
        attribution = explainer.explain(tokens(*range(5, 5 + num_positions)), "gae")
        assert len(attribution) == num_positions

    @pytest.mark.parametrize("vocabulary", [2, 3, 9])
    def test_a_small_vocabulary_without_a_padding_id_keeps_one_id_free(self, vocabulary):
        names = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
        config = GPT2Config(**GPT, **names, vocab_size=vocabulary)
        model = randomize_weights(GPT2ForSequenceClassification(config), torch.float64)
        attribution = Explainer(model).explain(tokens(1), "gae")
        with torch.no_grad():
            bare = model(torch.tensor([[1]])).logits[0].numpy()
        np.testing.assert_allclose(attribution.logits, bare, atol=1e-12)

    def test_an_answer_to_the_shortest_question_is_explained(self):
        question = Question(question="who", context="cat")
        assert len(Explainer(tiny_bert_qa(), TOKENIZER).explain(question, "gae")) == 5

    def test_a_model_is_probed_once(self):
        model = tiny_bert()
        explainer = Explainer(model, TOKENIZER)
        explainer.explain("good", "gae")
        passes = []
        model.register_forward_hook(lambda *_: passes.append(1))
        explainer.explain(TEXT, "gae")
        Explainer(model, TOKENIZER).explain(TEXT, "attcat")
        assert len(passes) == 2


class TestNonFiniteWeights:
    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("part", ["query.weight", "key.weight", "key.bias", "value.weight"])
    @pytest.mark.parametrize("method", ["random", "grad_x_input", "rollout", "attcat"])
    def test_the_weight_is_named_even_if_fused_attention_hides_it(self, value, part, method):
        model = tiny_bert(dtype=torch.float32)
        name = f"bert.encoder.layer.1.attention.self.{part}"
        with torch.no_grad():
            model.get_parameter(name).view(-1)[0] = value
        with expect_error(NotFinite, "model-not-finite", mentions=f"the weight {name}"):
            Explainer(model, TOKENIZER).explain(TEXT, method)

    def test_unused_weights_may_be_nan(self):
        model = tiny_bert()
        sound = Explainer(tiny_bert(), TOKENIZER).explain(TEXT).scores
        model.bert.register_buffer("mask", torch.tensor([0.0, -torch.inf, torch.nan]))
        fixed = torch.nn.Parameter(torch.tensor([0.0, -torch.inf]), requires_grad=False)
        model.bert.register_parameter("added", fixed)
        spare = torch.nn.Linear(2, 2)
        model.add_module("spare", spare)
        with torch.no_grad():
            spare.weight.fill_(torch.nan)
            model.bert.embeddings.position_embeddings.weight[-1] = torch.nan  # no text reaches it
        np.testing.assert_array_equal(Explainer(model, TOKENIZER).explain(TEXT).scores, sound)

    def test_a_position_that_is_read_is_named(self):
        model = tiny_bert()
        with torch.no_grad():
            model.bert.embeddings.position_embeddings.weight[1] = torch.nan
        with expect_error(NotFinite, "model-not-finite", mentions="position_embeddings.weight"):
            Explainer(model, TOKENIZER).explain(TEXT)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_huge_weights_are_finite(self, dtype):
        model = tiny_bert(dtype=torch.float32)
        huge = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
        model.bert.register_parameter("unused", torch.nn.Parameter(huge))
        assert len(Explainer(model, TOKENIZER).explain(TEXT)) > 0

    def test_float8_meta_and_empty_weights_are_not_checked_for_nan(self):
        model = tiny_bert()
        eight = torch.zeros(4).to(torch.float8_e4m3fn)
        model.bert.register_buffer("eight", eight)
        model.bert.register_parameter("away", torch.nn.Parameter(torch.zeros(4, device="meta")))
        model.bert.register_buffer("empty", torch.zeros(0))
        assert len(Explainer(model, TOKENIZER).explain(TEXT)) > 0

    def test_activations_that_overflow_in_attention_are_named_by_their_layer(self):
        model = tiny_bert(dtype=torch.float32)
        with torch.no_grad():  # some kernels hide what comes of this, and the logits are finite
            model.bert.encoder.layer[1].attention.self.query.weight.fill_(3e38)
        with pytest.raises(NotFinite, match=r"hidden state 2 \(0 is the embedding\)"):
            Explainer(model, TOKENIZER).explain(TEXT, "rollout")

    def test_a_nan_row_of_the_token_table_matters_only_to_texts_with_its_token(self):
        model = tiny_bert(dtype=torch.float32)
        with torch.no_grad():
            model.get_input_embeddings().weight[60:] = torch.nan
        explainer = Explainer(model)
        assert len(explainer.explain(tokens(2, 5, 3), "rollout")) == 3
        with pytest.raises(NotFinite, match="hidden state 0"):
            explainer.explain(tokens(2, 70, 3), "rollout")
        with expect_error(
            NotFinite,
            "model-not-finite",
            mentions="the weight bert.embeddings.word_embeddings.weight",
        ):
            Explainer(copy.deepcopy(model)).explain(tokens(2, 70, 3), "rollout")


class Packed(torch.nn.Linear):
    """A linear layer packed for inference: right outputs without a gradient."""

    def forward(self, features):
        return super().forward(features).detach()


def build_packed_bert(name):
    model = tiny_bert(torch.float32)
    original = model.get_submodule(name)
    layer = Packed(original.in_features, original.out_features)
    layer.load_state_dict(original.state_dict())
    model.set_submodule(name, layer)
    return model


class TestGraphBreak:
    @pytest.mark.parametrize(
        "method",
        [
            "grad_x_input",
            "attcat",
            "simple",
            "integrated_gradients",
            "deeplift_shap",
            "attnlrp",
            "lrp",
        ],
    )
    def test_a_layer_without_gradient_is_refused_by_name(self, method):
        name = "bert.encoder.layer.0.attention.self.value"
        explainer = Explainer(build_packed_bert(name), TOKENIZER)
        for _ in range(2):
            with pytest.raises(UnsupportedModel, match=rf"{name} \(Packed\).* no gradient"):
                explainer.explain(TEXT, method)

    def test_methods_without_gradients_explain_a_model_without_gradients(self):
        explainer = Explainer(build_packed_bert("bert.encoder.layer.0.output.dense"), TOKENIZER)
        original = Explainer(tiny_bert(torch.float32), TOKENIZER)
        for method in ("occlusion", "raw_att"):
            scores = explainer.explain(TEXT, method).scores
            np.testing.assert_allclose(scores, original.explain(TEXT, method).scores, atol=1e-6)
