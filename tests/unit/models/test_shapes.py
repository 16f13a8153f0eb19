"""A config is held against the headers of its weights before a model is built."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import BertForSequenceClassification, BertModel

from tests.helpers.expect import expect_error
from tests.helpers.families import (
    FAMILIES,
    PARTLY_SUPPORTED_FAMILIES,
    build_model,
    find_causal_class,
)
from tests.helpers.tiny import tiny_bert, tiny_config, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import DamagedFile, UnsupportedModel
from tokenlight.models import shapes as held
from tokenlight.models.loading import _load_config

BOMBS = {
    "wide": {"num_hidden_layers": 60, "intermediate_size": 1 << 22},
    "deep": {"num_hidden_layers": 1000},
    "labels": {"num_labels": 1 << 20, "id2label": None, "label2id": None},
    "inner labels": {"num_labels": None, "text_config": {"num_labels": 1 << 20}},
    "positions": {"max_position_embeddings": 1 << 40},
    "another width": {"hidden_size": 64},
}


@pytest.fixture
def changed(bert_folder, tmp_path):
    def change(**fields):
        folder = tmp_path / "model"
        shutil.copytree(bert_folder, folder)
        config = {**json.loads((folder / "config.json").read_text()), **fields}
        config = {field: value for field, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return change


@pytest.mark.parametrize("fields", BOMBS.values(), ids=BOMBS)
def test_a_config_larger_than_its_weights_is_refused_unbuilt(changed, monkeypatch, fields):
    def fail_if_loaded(*_, **__):
        raise AssertionError("transformers was asked to load it")

    folder = changed(**fields)
    monkeypatch.setattr(BertForSequenceClassification, "from_pretrained", fail_if_loaded)
    with pytest.raises(DamagedFile, match=r"config\.json of .* (asks for|says|does not fit)"):
        Explainer.from_pretrained(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"text_config": {"num_hidden_layers": 10**9}},
        {"vision_config": {"depths": [2, 10**9]}},
        {"encoder": {"inner": [{"hidden_size": 10**9}]}},
    ],
    ids=str,
)
def test_a_number_beyond_its_range_is_refused_at_any_depth(changed, fields):
    with expect_error(DamagedFile, "config-too-large"):
        Explainer.from_pretrained(changed(**fields))


def test_building_ends_where_the_parts_outnumber_the_tensors():
    config = tiny_config(num_hidden_layers=1000)
    weight_shapes = {"bert.embeddings.word_embeddings.weight": (150, 32)}
    with expect_error(DamagedFile, "config-parts", mentions="1 tensors"):
        held.check_shapes("it", BertForSequenceClassification, config, weight_shapes, 1 << 40, {})
    assert not torch.nn.modules.module._global_module_registration_hooks
    assert not torch.nn.modules.module._global_parameter_registration_hooks


def test_a_head_that_is_missing_is_still_named(bert_folder, tmp_path):
    BertModel(tiny_config()).save_pretrained(tmp_path)
    shutil.copy(bert_folder / "config.json", tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with expect_error(DamagedFile, "weights-missing", mentions="classifier"):
        Explainer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["AutoModel", "PreTrainedModel", "AutoModelForCausalLM"])
def test_a_class_that_is_no_model_is_refused_by_name(changed, name):
    with expect_error(UnsupportedModel, "architecture-unsupported", mentions=name):
        Explainer.from_pretrained(changed(architectures=[name]))


def test_weights_of_every_family_fit_the_config_saved_with_them(tmp_path):
    """Whatever transformers renames, ties or joins on the way to the file."""
    for name in (*FAMILIES, *PARTLY_SUPPORTED_FAMILIES):
        folder = tmp_path / name
        model = build_model(name, find_causal_class(name) or "ForSequenceClassification")
        model.save_pretrained(folder)
        stored = held.read_shapes(str(folder), {})
        assert stored is not None
        held.check_shapes(name, type(model), _load_config(name, str(folder), {}), *stored, {})


def test_a_quantized_model_may_have_more_parameters_than_bytes():
    config = tiny_config()
    config.quantization_config = {"quant_method": "aqlm"}
    packed = {"weight": (1 << 10,)}
    held.check_shapes("it", type(tiny_bert()), config, packed, 1 << 10, {})
