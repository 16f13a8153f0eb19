"""From a name to a model: safe files only, and no weight made up."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import (
    BertForMultipleChoice,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_config, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile, UnknownName, UnsupportedModel
from tokenlight.models import loading
from tokenlight.models.wrappers import read_embedding_config


def test_a_folder_is_loaded_in_float32(bert_folder):
    explainer = Explainer.from_pretrained(bert_folder)
    assert explainer.runner.dtype == torch.float32
    assert explainer.labels == ("negative", "neutral", "positive")
    assert explainer.explain("good film").prediction.label in explainer.labels


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16])
def test_another_dtype_is_loaded_when_asked_for(bert_folder, dtype):
    explainer = Explainer.from_pretrained(bert_folder, dtype=dtype)
    assert explainer.runner.dtype == getattr(torch, str(dtype).removeprefix("torch."))
    assert explainer.explain("good film").scores.any()


def test_a_half_precision_file_is_still_loaded_in_float32(tmp_path, tokenizer):
    tiny_bert(torch.float16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert Explainer.from_pretrained(tmp_path).runner.dtype == torch.float32


def test_a_wrong_dtype_is_refused(bert_folder):
    with expect_error(BadInput, "dtype-unknown", mentions="float33"):
        Explainer.from_pretrained(bert_folder, dtype="float33")


def test_pickled_weights_are_refused_with_the_way_out(bert_folder, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(bert_folder, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with expect_error(DamagedFile, "weights-pickle") as refusal:
        Explainer.from_pretrained(folder)
    assert "save_pretrained" in str(refusal.value)


def test_a_folder_without_a_tokenizer_is_refused(bert_folder, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(bert_folder / file, folder)
    with expect_error(BadInput, "tokenizer-not-saved"):
        Explainer.from_pretrained(folder)


def test_a_tokenizer_with_ids_beyond_the_embeddings_is_refused(bert_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(bert_folder, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["film"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(content))
    explainer = Explainer.from_pretrained(folder)
    attribution = explainer.explain("good plot", "grad_x_input")
    assert attribution.scores.any()
    for inputs in ("good film", ["good plot", "good film"]):
        with expect_error(BadInput, "id-outside-vocabulary", mentions="this model knows 0 to 149"):
            explainer.explain(inputs, "grad_x_input")


def test_an_unknown_device_is_refused_by_name(bert_folder):
    with expect_error(BadInput, "device-unusable", mentions="banana"):
        Explainer.from_pretrained(bert_folder, device="banana")


def test_a_device_without_memory_is_reported(bert_folder, monkeypatch):
    def raise_out_of_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(BertForSequenceClassification, "to", raise_out_of_memory)
    with expect_error(
        BadInput, "device-unusable", mentions="'cuda:1': CUDA out of memory"
    ) as refusal:
        Explainer.from_pretrained(bert_folder, device="cuda:1")
    assert "finds a GPU with room for it" in str(refusal.value)


def test_remote_code_is_refused(bert_folder):
    with expect_error(BadInput, "option-forbidden"):
        Explainer.from_pretrained(bert_folder, trust_remote_code=True)


@pytest.mark.parametrize("subfolder", ["x" * 256, "models/" + "ä" * 128])
def test_a_subfolder_whose_name_is_too_long_is_refused(bert_folder, subfolder):
    with expect_error(BadInput, "subfolder-too-long"):
        Explainer.from_pretrained(bert_folder, subfolder=subfolder)


def test_an_attention_implementation_that_is_no_name_is_refused(bert_folder):
    with expect_error(UnsupportedModel, "config-downloads-code"):
        Explainer.from_pretrained(bert_folder, attn_implementation=np.array([]))


def test_a_model_in_a_subfolder_is_read_from_there(bert_folder):
    explainer = Explainer.from_pretrained(bert_folder.parent, subfolder=bert_folder.name)
    attribution = Explainer.from_pretrained(bert_folder).explain("a good film", "rollout")
    assert (
        explainer.explain("a good film", "rollout").scores.tolist() == attribution.scores.tolist()
    )


def test_a_cut_weight_file_is_named(bert_folder, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(bert_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DamagedFile, match="cut"):
        Explainer.from_pretrained(folder)


def test_a_folder_without_weights_is_refused_with_the_way_out(bert_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(bert_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with expect_error(DamagedFile, "weights-file-missing", mentions="save_pretrained"):
        Explainer.from_pretrained(str(folder))


def test_missing_head_weights_are_not_made_up(tmp_path, tokenizer):
    BertForMultipleChoice(tiny_config()).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with expect_error(
        UnsupportedModel, "architecture-unsupported", mentions="BertForMultipleChoice"
    ):
        Explainer.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["BertForQuestionAnswering"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with expect_error(DamagedFile, "weights-missing", mentions="qa_outputs.bias"):
        Explainer.from_pretrained(tmp_path)


def test_a_missing_model_is_named_with_the_available_ones(tmp_path):
    with expect_error(BadInput, "model-folder-missing"):
        Explainer.from_pretrained(tmp_path / "nothing")
    with expect_error(BadInput, "model-not-found", mentions="tokenlight/sentiment"):
        Explainer.from_pretrained("someone/no-such-model")
    with pytest.raises(UnknownName, match="Did you mean 'tokenlight/sentiment'"):
        Explainer.from_pretrained("tokenlight/sentimant")
    with expect_error(UnknownName, "model-unknown", mentions="tokenlight/sentiment"):
        Explainer.from_pretrained("sentiment")


def test_a_missing_path_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "AutoConfig", None)
    for name in (str(tmp_path / "nope"), "./nope", "one/two/three"):
        with expect_error(BadInput, "model-folder-missing") as refusal:
            Explainer.from_pretrained(name)
        assert "Repo id" not in str(refusal.value)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with expect_error(BadInput, "model-is-a-file"):
        Explainer.from_pretrained(str(file))


@pytest.mark.parametrize("message", ["Torch not compiled with CUDA enabled", "No CUDA.\nMore", ""])
def test_the_message_of_torch_about_a_device_ends_in_a_full_stop(bert_folder, monkeypatch, message):
    def refuse(*_, **__):
        raise AssertionError(message)

    monkeypatch.setattr(BertForSequenceClassification, "to", refuse)
    first = (message.splitlines() or ["AssertionError"])[0].rstrip(".")
    with expect_error(BadInput, "device-unusable", mentions=f"'cuda': {first}."):
        Explainer.from_pretrained(bert_folder, device="cuda")


def test_hostile_label_names_come_through_as_they_are(tmp_path, tokenizer):
    names = {0: "<script>alert(1)</script>", 1: 'a"b', 2: "שלום"}
    config = tiny_config(id2label=names, label2id={v: k for k, v in names.items()})
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    attribution = Explainer.from_pretrained(tmp_path).explain("good film", target=0)
    assert attribution.target.name == "<script>alert(1)</script>"
    assert "<script>alert" not in attribution.to_html()


@pytest.mark.parametrize(
    ("resolves", "proxies", "expected"),
    [
        (True, {}, None),
        (False, {}, True),
        (False, {"https": "http://proxy"}, None),
        (False, {"no": "localhost"}, True),
    ],
)
def test_without_a_network_only_the_cache_is_searched(monkeypatch, resolves, proxies, expected):
    """The hub's library would try for half a minute to reach what has no address."""
    question = {}

    def looked_up(*_):
        if not resolves:
            raise OSError("Name or service not known")

    def refuse_connection(_path, **options):
        question.update(options)
        raise OSError("not there.")

    monkeypatch.setattr("tokenlight.models.safety.socket.getaddrinfo", looked_up)
    monkeypatch.setattr("tokenlight.models.safety.getproxies", lambda: proxies)
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", refuse_connection)
    with expect_error(BadInput, "model-not-found", mentions="someone/no-such-model"):
        Explainer.from_pretrained("someone/no-such-model")
    assert question.get("local_files_only") is expected


def test_a_broken_config_is_not_taken_for_a_missing_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", ')
    with expect_error(DamagedFile, "model-json-unreadable", mentions="config.json"):
        Explainer.from_pretrained(str(tmp_path))


def test_a_family_that_is_not_known_is_no_damaged_file(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "of_tomorrow"}')
    with expect_error(UnsupportedModel, "config-unsupported", mentions="of_tomorrow"):
        Explainer.from_pretrained(str(tmp_path))


def test_the_pooling_of_a_folder_is_found_without_the_network(tmp_path, monkeypatch):
    def looked_up(*_):
        raise AssertionError("a folder needs no network")

    monkeypatch.setattr("tokenlight.models.safety.socket.getaddrinfo", looked_up)
    assert read_embedding_config(str(tmp_path))[0] == "mean"


def test_an_adapter_without_a_model_is_refused_with_the_way_to_load_it(tmp_path):
    described = {"base_model_name_or_path": "some/base", "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(described))
    with expect_error(UnsupportedModel, "model-is-an-adapter", mentions="some/base") as refusal:
        Explainer.from_pretrained(str(tmp_path))
    assert "AutoPeftModelFor….from_pretrained" in str(refusal.value)


def test_a_damaged_adapter_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("[]")
    with expect_error(DamagedFile, "model-json-type", mentions="adapter_config.json"):
        Explainer.from_pretrained(str(tmp_path))


def test_a_model_loaded_for_inference_can_be_explained(bert_folder):
    with torch.inference_mode():
        explainer = Explainer.from_pretrained(bert_folder)
    assert explainer.explain("good film").scores.any()


def save_model(model, path):
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


def test_a_language_model_is_loaded_in_its_saved_dtype_and_any_other_in_float32(tmp_path):
    config = LlamaConfig(
        vocab_size=200, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    writer = save_model(LlamaForCausalLM(config).bfloat16(), tmp_path / "writer")
    reader = save_model(tiny_bert().bfloat16(), tmp_path / "reader")
    assert Explainer.from_pretrained(writer).runner.dtype == torch.bfloat16
    assert Explainer.from_pretrained(writer, dtype="float32").runner.dtype == torch.float32
    assert Explainer.from_pretrained(reader).runner.dtype == torch.float32
    with expect_error(BadInput, "quantize-choice"):
        Explainer.from_pretrained(reader, quantize="3bit")


@pytest.mark.parametrize(("quantize", "layer"), [("8bit", "Linear8bitLt"), ("4bit", "Linear4bit")])
def test_a_model_is_quantized_as_it_is_loaded(tmp_path, quantize, layer):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    folder = save_model(tiny_bert().float(), tmp_path)
    explainer = Explainer.from_pretrained(folder, quantize=quantize)
    assert {type(m).__name__ for m in explainer.model.modules()} >= {layer}
    assert np.isfinite(explainer.explain("a great film", "attnlrp").scores).all()


def test_models_that_are_loaded_at_once_keep_their_tied_weights():
    """The decoder of a masked language model is tied to its embeddings."""
    from concurrent.futures import ThreadPoolExecutor

    from tokenlight.models.embedded import load_masked_lm

    with ThreadPoolExecutor(3) as pool:
        loaded = [pool.submit(load_masked_lm) for _ in range(3)]
        for job in loaded:
            model, _ = job.result()
            decoder = model.cls.predictions.decoder
            assert decoder.weight is model.get_input_embeddings().weight
