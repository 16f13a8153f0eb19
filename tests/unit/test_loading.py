"""From a name to a model: safe files only, and no weight made up."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import BertForMultipleChoice, BertForSequenceClassification

from tests.tiny import tiny_bert, tiny_config
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile, UnknownName, UnsupportedModel
from tokenlight.models import loading
from tokenlight.models.carriers import vectors


def test_a_folder_is_loaded_in_float32(bert_folder):
    explainer = Explainer.from_pretrained(bert_folder)
    assert explainer.live.dtype == torch.float32
    assert explainer.labels == ("negative", "neutral", "positive")
    assert explainer.explain("good film").prediction.label in explainer.labels


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16])
def test_another_dtype_is_loaded_when_asked_for(bert_folder, dtype):
    explainer = Explainer.from_pretrained(bert_folder, dtype=dtype)
    assert explainer.live.dtype == getattr(torch, str(dtype).removeprefix("torch."))
    assert explainer.explain("good film").scores.any()


def test_a_half_precision_file_is_still_loaded_in_float32(tmp_path, tokenizer):
    tiny_bert(torch.float16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert Explainer.from_pretrained(tmp_path).live.dtype == torch.float32


def test_a_wrong_dtype_is_refused(bert_folder):
    with pytest.raises(BadInput, match="dtype 'float33' is unknown"):
        Explainer.from_pretrained(bert_folder, dtype="float33")


def test_pickled_weights_are_refused_with_the_way_out(bert_folder, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(bert_folder, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(DamagedFile, match="can run code") as refusal:
        Explainer.from_pretrained(folder)
    assert "save_pretrained" in str(refusal.value)


def test_a_folder_without_a_tokenizer_is_refused(bert_folder, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(bert_folder / file, folder)
    with pytest.raises(BadInput, match="has no tokenizer"):
        Explainer.from_pretrained(folder)


def test_a_device_that_is_none_is_named(bert_folder):
    with pytest.raises(BadInput, match="cannot go to device 'banana'"):
        Explainer.from_pretrained(bert_folder, device="banana")


def test_a_device_without_room_is_said_to_have_none(bert_folder, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(BertForSequenceClassification, "to", full)
    with pytest.raises(BadInput, match="'cuda:1': CUDA out of memory") as refusal:
        Explainer.from_pretrained(bert_folder, device="cuda:1")
    assert "sees a GPU with room for it" in str(refusal.value)


def test_remote_code_is_refused(bert_folder):
    with pytest.raises(BadInput, match="runs no code that comes with a model"):
        Explainer.from_pretrained(bert_folder, trust_remote_code=True)


def test_a_model_in_a_subfolder_is_read_from_there(bert_folder):
    found = Explainer.from_pretrained(bert_folder.parent, subfolder=bert_folder.name)
    wanted = Explainer.from_pretrained(bert_folder).explain("a good film", "rollout")
    assert found.explain("a good film", "rollout").scores.tolist() == wanted.scores.tolist()


def test_a_cut_weight_file_is_named(bert_folder, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(bert_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DamagedFile, match="cut"):
        Explainer.from_pretrained(folder)


def test_missing_head_weights_are_not_made_up(tmp_path, tokenizer):
    BertForMultipleChoice(tiny_config()).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="saved as BertForMultipleChoice"):
        Explainer.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["BertForQuestionAnswering"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match=r"qa_outputs\.bias"):
        Explainer.from_pretrained(tmp_path)


def test_a_model_that_is_not_there_is_named_with_what_is(tmp_path):
    with pytest.raises(BadInput, match="no model found at"):
        Explainer.from_pretrained(tmp_path / "nothing")
    with pytest.raises(BadInput, match="tokenlight/sentiment"):
        Explainer.from_pretrained("someone/no-such-model")
    with pytest.raises(UnknownName, match="Did you mean 'tokenlight/sentiment'"):
        Explainer.from_pretrained("tokenlight/sentimant")
    with pytest.raises(UnknownName, match="Did you mean 'tokenlight/sentiment'"):
        Explainer.from_pretrained("sentiment")


def test_a_path_that_leads_nowhere_is_asked_of_no_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "AutoConfig", None)
    for name in (str(tmp_path / "nope"), "./nope", "one/two/three"):
        with pytest.raises(
            BadInput, match="there is no such folder. Give a folder with"
        ) as refusal:
            Explainer.from_pretrained(name)
        assert "Repo id" not in str(refusal.value)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(BadInput, match="it is a file, not a folder"):
        Explainer.from_pretrained(str(file))


@pytest.mark.parametrize("said", ["Torch not compiled with CUDA enabled", "No CUDA.\nMore", ""])
def test_what_torch_says_of_a_device_ends_in_a_full_stop(bert_folder, monkeypatch, said):
    def refuse(*_, **__):
        raise AssertionError(said)

    monkeypatch.setattr(BertForSequenceClassification, "to", refuse)
    first = (said.splitlines() or ["AssertionError"])[0].rstrip(".")
    with pytest.raises(BadInput, match=rf"'cuda': {first}\. Give cpu, or cuda"):
        Explainer.from_pretrained(bert_folder, device="cuda")


def test_hostile_label_names_come_through_as_they_are(tmp_path, tokenizer):
    names = {0: "<script>alert(1)</script>", 1: 'a"b', 2: "שלום"}
    config = tiny_config(id2label=names, label2id={v: k for k, v in names.items()})
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = Explainer.from_pretrained(tmp_path).explain("good film", target=0)
    assert found.target.name == "<script>alert(1)</script>"
    assert "<script>alert" not in found.to_html()


@pytest.mark.parametrize(
    ("resolves", "proxies", "expected"),
    [
        (True, {}, None),
        (False, {}, True),
        (False, {"https": "http://proxy"}, None),
        (False, {"no": "localhost"}, True),
    ],
)
def test_without_a_network_only_the_cache_is_asked(monkeypatch, resolves, proxies, expected):
    """The hub's library would try for half a minute to reach what has no address."""
    asked = {}

    def looked_up(*_):
        if not resolves:
            raise OSError("Name or service not known")

    def gone(_place, **how):
        asked.update(how)
        raise OSError("not there.")

    monkeypatch.setattr("tokenlight.models.folder.socket.getaddrinfo", looked_up)
    monkeypatch.setattr("tokenlight.models.folder.getproxies", lambda: proxies)
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", gone)
    with pytest.raises(BadInput, match="no model found at 'someone/no-such-model'"):
        Explainer.from_pretrained("someone/no-such-model")
    assert asked.get("local_files_only") is expected


def test_a_broken_config_is_not_taken_for_a_missing_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", ')
    with pytest.raises(DamagedFile, match=r"config\.json cannot be read.*line 1"):
        Explainer.from_pretrained(str(tmp_path))


def test_a_family_that_is_not_known_is_no_damaged_file(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "of_tomorrow"}')
    with pytest.raises(UnsupportedModel, match=r"of_tomorrow.*A newer transformers may know it"):
        Explainer.from_pretrained(str(tmp_path))


def test_a_folder_asks_no_network_how_it_pools(tmp_path, monkeypatch):
    def looked_up(*_):
        raise AssertionError("a folder needs no network")

    monkeypatch.setattr("tokenlight.models.folder.socket.getaddrinfo", looked_up)
    assert vectors(str(tmp_path))[0] == "mean"


def test_an_adapter_alone_is_refused_by_name_with_the_way_to_load_it(tmp_path):
    described = {"base_model_name_or_path": "some/base", "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(UnsupportedModel, match="PEFT adapter of some/base") as refusal:
        Explainer.from_pretrained(str(tmp_path))
    assert "AutoPeftModelFor….from_pretrained" in str(refusal.value)


def test_a_damaged_adapter_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(DamagedFile, match=r"adapter_config\.json holds no table of names"):
        Explainer.from_pretrained(str(tmp_path))


def test_a_model_loaded_for_inference_can_be_explained(bert_folder):
    with torch.inference_mode():
        explainer = Explainer.from_pretrained(bert_folder)
    assert explainer.explain("good film").scores.any()
