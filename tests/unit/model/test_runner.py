"""Live models: wrapped, frozen, spread over devices, quantized, or without a padding id."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from tests.helpers.expect import expect_error
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_config, tiny_tokenizer
from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight import Explainer, Tokens
from tokenlight.errors import UnsupportedModel

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)


class TestOtherKindsOfModel:
    def test_a_model_inside_no_grad_is_explained(self):
        with torch.no_grad():
            attribution = EXPLAINER.explain("good film")
        np.testing.assert_array_equal(attribution.scores, EXPLAINER.explain("good film").scores)

    def test_frozen_weights_do_not_change_scores(self):
        model = tiny_bert().requires_grad_(False)
        attribution = Explainer(model, TOKENIZER).explain("good film")
        np.testing.assert_array_equal(attribution.scores, EXPLAINER.explain("good film").scores)
        assert not any(parameter.requires_grad for parameter in model.parameters())

    def test_an_adapter_is_explained_with_its_weights(self):
        peft = pytest.importorskip("peft")
        settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
        model = peft.get_peft_model(tiny_bert(), settings)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
        model.double().eval()
        attribution = Explainer(model, TOKENIZER).explain("good film")
        with torch.no_grad():
            bare = model(**TOKENIZER("good film", return_tensors="pt")).logits[0].numpy()
        np.testing.assert_allclose(attribution.logits, bare, atol=1e-12)
        assert np.abs(attribution.logits - EXPLAINER.explain("good film").logits).max() > 1e-3

    def test_an_adapter_with_tokens_of_its_own_is_refused_by_name(self):
        peft = pytest.importorskip("peft")
        settings = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
        model = peft.get_peft_model(tiny_bert(torch.float32), settings)
        with pytest.raises(UnsupportedModel, match="PromptTuningConfig"):
            Explainer(model, TOKENIZER)

    def test_a_model_spread_by_a_device_map_is_explained(self, tmp_path):
        accelerate = pytest.importorskip("accelerate")
        plain = tiny_bert(torch.float32)
        expected = Explainer(plain, TOKENIZER).explain("good film").scores
        positions = {
            "bert.embeddings": "cpu",
            "bert.encoder": "cpu",
            "bert.pooler": "disk",
            "classifier": "cpu",
        }
        model = accelerate.dispatch_model(
            tiny_bert(torch.float32), positions, offload_dir=tmp_path, main_device="cpu"
        )
        attribution = Explainer(model, TOKENIZER).explain("good film")
        assert_close(attribution.scores, expected, FLOAT32)

    @pytest.mark.parametrize(
        "method", ["attcat", "attnlrp", "gae", "transatt", "integrated_gradients", "occlusion"]
    )
    def test_a_model_larger_than_its_devices_has_the_scores_of_the_whole_one(
        self, method, tmp_path
    ):
        """device_map="auto" leaves on disk what the devices cannot hold; each layer is read when it runs."""
        pytest.importorskip("accelerate")
        plain = tiny_bert(torch.float32)
        plain.save_pretrained(tmp_path)
        num_bytes = sum(weight.numel() * weight.itemsize for weight in plain.parameters())
        model = BertForSequenceClassification.from_pretrained(
            tmp_path,
            device_map="auto",
            max_memory={"cpu": num_bytes * 2 // 3},
            offload_folder=tmp_path / "offload",
        )
        assert "disk" in model.hf_device_map.values()
        expected = Explainer(plain, TOKENIZER).explain(["good film", "a dull plot"], method)
        attributions = Explainer(model, TOKENIZER).explain(["good film", "a dull plot"], method)
        for actual, reference in zip(attributions, expected, strict=True):
            assert_close(actual.scores, reference.scores, FLOAT32)

    @pytest.mark.filterwarnings("ignore")  # the library's own words on its processor kernels
    def test_an_eight_bit_model_is_explained_and_relevance_refused_by_name(self, tmp_path):
        pytest.importorskip("bitsandbytes")
        from transformers import BitsAndBytesConfig

        plain = tiny_bert(torch.float32, hidden_size=64, intermediate_size=128)
        plain.save_pretrained(tmp_path)
        model = BertForSequenceClassification.from_pretrained(
            tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu"
        )
        explainer = Explainer(model, TOKENIZER)
        attribution = explainer.explain("the film is not good", "attcat", target=0)
        with torch.no_grad():
            bare = model(**TOKENIZER("the film is not good", return_tensors="pt")).logits[0]
        np.testing.assert_allclose(attribution.logits, bare.double().numpy(), atol=1e-3)
        full = Explainer(plain, TOKENIZER).explain("the film is not good", "attcat", target=0)
        assert np.corrcoef(attribution.scores, full.scores)[0, 1] > 0.9
        with pytest.raises(UnsupportedModel, match="MatMul8bitLt"):
            explainer.explain("the film is not good", "transatt")

    @pytest.mark.parametrize(
        "method", ["attcat", "attnlrp", "gae", "transatt", "integrated_gradients", "occlusion"]
    )
    def test_a_compiled_model_is_explained_by_the_model_inside(self, method):
        model = torch.compile(tiny_bert())
        attribution = Explainer(model, TOKENIZER).explain("good film", method)
        expected = EXPLAINER.explain("good film", method)
        np.testing.assert_array_equal(attribution.scores, expected.scores)

    def test_a_classifier_without_a_padding_id_reads_batches(self):
        config = GPT2Config(
            vocab_size=150, n_embd=32, n_layer=2, n_head=4, n_positions=48, num_labels=3
        )
        model = randomize_weights(GPT2ForSequenceClassification(config), torch.float64)
        assert model.config.pad_token_id is None
        before = take_snapshot(model)
        explainer = Explainer(model)
        together = explainer.explain(
            [Tokens.from_ids([[5, 6, 7]]), Tokens.from_ids([[8, 9]])], "attcat"
        )
        alone = explainer.explain(Tokens.from_ids([[8, 9]]), "attcat")
        np.testing.assert_allclose(together[1].scores, alone.scores, atol=1e-12)
        assert_unchanged(before, take_snapshot(model))

    @pytest.mark.parametrize("head", [BertForMultipleChoice, BertForNextSentencePrediction])
    def test_unsupported_heads_are_refused_by_name(self, head):
        with expect_error(UnsupportedModel, "unsupported-head", mentions=head.__name__):
            Explainer(head(tiny_config()), TOKENIZER)

    def test_an_object_that_is_no_transformers_model_is_refused(self):
        with expect_error(UnsupportedModel, "no-embedding-layer", mentions="Linear"):
            Explainer(torch.nn.Linear(2, 2))
