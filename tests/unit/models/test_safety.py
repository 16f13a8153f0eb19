"""A model folder from anywhere: no code of it runs, no pickle is opened, no file outside is read."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys

import pytest
import torch

from tests.helpers.commands import run_command
from tests.helpers.expect import expect_error
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile, TokenlightError, UnsupportedModel
from tokenlight.methods import _decoding
from tokenlight.models import embedded as models
from tokenlight.models.safety import check_model_files

CODE = """
from pathlib import Path
from transformers import BertConfig, BertTokenizer, BertForSequenceClassification
Path(__file__).with_name("it_ran").write_text("yes")
Path({ran!r}).write_text("yes")
class C(BertConfig):
    model_type = "mine"
class T(BertTokenizer): ...
class M(BertForSequenceClassification): ...
"""


@pytest.fixture
def folder(bert_folder, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(bert_folder, path)
    return path


@pytest.fixture(autouse=True)
def no_pickle(monkeypatch):
    def refuse_torch_load(*inputs, **_):
        raise AssertionError(f"torch.load was called with {inputs}")

    monkeypatch.setattr(torch, "load", refuse_torch_load)


def change(file, **values):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}))


def bring_code(folder):
    """A folder whose config, tokenizer and model are classes of its own, in a file beside them."""
    ran = folder.parent / "it_ran"
    (folder / "conf.py").write_text(CODE.format(ran=str(ran)))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(ran=str(ran)))
    expected = {"AutoConfig": "conf.C", "AutoModelForSequenceClassification": "conf.M"}
    change(folder / "config.json", model_type="mine", auto_map=expected)
    return ran


COMMANDS = {
    "explain": ["explain", "good film", "--model"],
    "serve": ["serve", "--port", "0", "--model"],
    "heads": ["heads", "attention", "--model"],
    "idf": ["idf", __file__, "-o", os.devnull, "--model"],
}


@pytest.mark.parametrize("command", ["explain", "serve"])
def test_code_of_a_folder_never_runs_even_if_prompts_are_confirmed(folder, command):
    ran = bring_code(folder)
    for answers in ("y\n" * 50, "1\n" * 50):
        result = run_command(*COMMANDS[command], folder, answers=answers)
        assert result.status == 2, result.errors
        assert "brings its own code (config.json: auto_map)" in result.errors
        assert not ran.exists()


@pytest.mark.parametrize("command", ["heads", "idf"])
def test_no_command_that_loads_a_part_of_a_model_runs_its_code(folder, command):
    from typer.testing import CliRunner

    from tokenlight.cli.app import app

    ran = bring_code(folder)
    result = CliRunner().invoke(app, [*COMMANDS[command], str(folder)], input="y\n" * 50)
    assert result.exit_code == 2
    assert not ran.exists()


@pytest.mark.parametrize("inputs", [{}, {"trust_remote_code": False}])
def test_no_confirmation_is_requested_on_standard_input(folder, monkeypatch, inputs):
    ran = bring_code(folder)
    answers = io.StringIO("y\n" * 50)
    monkeypatch.setattr(sys, "stdin", answers)
    with expect_error(UnsupportedModel, "model-brings-code"):
        Explainer.from_pretrained(folder, **inputs)
    assert answers.tell() == 0
    assert not ran.exists()


def test_code_of_a_tokenizer_does_not_run(folder, monkeypatch):
    """The model's family is unknown, too: else transformers takes its own class for it."""
    ran = bring_code(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 50))
    for auto_map in ({"AutoTokenizer": ["conf.T", None]}, ["conf.T", None]):
        change(folder / "config.json", model_type="mine", auto_map=None)
        change(folder / "tokenizer_config.json", tokenizer_class="T", auto_map=auto_map)
        with expect_error(
            UnsupportedModel, "model-brings-code", mentions="tokenizer_config.json: auto_map"
        ):
            check_model_files("it", str(folder))
        assert not ran.exists()


def test_a_family_that_transformers_knows_is_read_with_its_own_classes(folder):
    ran = bring_code(folder)
    expected = {"AutoConfig": "conf.C", "AutoTokenizer": ["conf.T", None]}
    change(folder / "config.json", model_type="bert", auto_map=expected)
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["conf.T", None]})
    assert Explainer.from_pretrained(folder).explain("good film").scores.any()
    assert not ran.exists()


def test_code_that_a_config_names_on_a_hub_is_refused(folder):
    change(folder / "config.json", attn_implementation="someone/kernel")
    with expect_error(
        UnsupportedModel,
        "config-downloads-code",
        mentions="attn_implementation is 'someone/kernel'",
    ):
        Explainer.from_pretrained(folder)


def test_the_language_model_of_a_method_brings_no_code_either(folder, bert, tokenizer):
    ran = bring_code(folder)
    explainer = Explainer(bert, tokenizer)
    with expect_error(UnsupportedModel, "model-brings-code"):
        _decoding.resolve_lm_head(explainer.runner, str(folder))
    assert not ran.exists()


class TestWeights:
    def index(self, folder, shard, **more):
        (folder / "model.safetensors").rename(folder / "weights.safetensors")
        weights = {"bert.embeddings.word_embeddings.weight": shard}
        content = {"metadata": {}, "weight_map": weights, **more}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    @pytest.mark.parametrize(
        "shard",
        [
            "weights.bin",
            "/etc/passwd",
            "../model.safetensors",
            "sub/w.safetensors",
            "..\\w.safetensors",
        ],
    )
    def test_a_shard_that_is_no_safetensors_file_of_the_folder_is_refused(self, folder, shard):
        self.index(folder, shard)
        (folder / "weights.bin").write_bytes(pickle.dumps({"a": 1}))
        with expect_error(DamagedFile, "weight-file-name"):
            Explainer.from_pretrained(folder)

    def test_a_folder_of_shards_is_loaded(self, folder):
        from safetensors import safe_open

        with safe_open(folder / "model.safetensors", "pt") as file:
            names = list(file.keys())
        self.index(folder, "weights.safetensors")
        change(
            folder / "model.safetensors.index.json",
            weight_map=dict.fromkeys(names, "weights.safetensors"),
        )
        assert Explainer.from_pretrained(folder).explain("good film").scores.any()

    def test_only_embedded_models_may_link_to_the_shared_encoder(self, folder):
        self.index(folder, f"../{models.ENCODER_FILE}")
        shutil.copy(models.MODELS_FOLDER / models.ENCODER_FILE, folder.parent)
        with expect_error(DamagedFile, "weight-file-name", mentions="../encoder.safetensors"):
            Explainer.from_pretrained(folder)
        check_model_files("tokenlight/topics", models.resolve_path("tokenlight/topics"))

    def test_a_missing_shard_is_named(self, folder):
        self.index(folder, "gone.safetensors")
        with expect_error(DamagedFile, "weight-shard-missing", mentions="gone.safetensors"):
            Explainer.from_pretrained(folder)

    @pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": 5}', "null", "{", "[" * 2000])
    def test_a_damaged_index_is_named(self, folder, content):
        (folder / "model.safetensors.index.json").write_text(content)
        with pytest.raises(DamagedFile, match=r"model\.safetensors\.index\.json"):
            Explainer.from_pretrained(folder)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
    def test_a_folder_with_only_a_pickle_is_refused_unopened(self, folder, name):
        (folder / "model.safetensors").rename(folder / name)
        with expect_error(DamagedFile, "weights-pickle"):
            Explainer.from_pretrained(folder)
        with expect_error(DamagedFile, "weights-pickle"):
            check_model_files("lm", str(folder))
        check_model_files("tokenizer", str(folder), with_weights=False)

    def test_an_adapter_next_to_a_whole_model_is_refused(self, folder):
        (folder / "adapter_model.bin").write_bytes(pickle.dumps({}))
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        with expect_error(UnsupportedModel, "model-is-an-adapter"):
            Explainer.from_pretrained(folder)

    def test_weights_that_a_config_names_are_no_pickle(self, folder):
        (folder / "adapter_model.bin").write_bytes(pickle.dumps({}))
        change(folder / "config.json", transformers_weights="adapter_model.bin")
        with expect_error(DamagedFile, "weight-file-name", mentions="adapter_model.bin"):
            Explainer.from_pretrained(folder)

    @pytest.mark.parametrize("word", ["use_safetensors", "weights_only", "allow_all_kernels"])
    def test_no_keyword_opens_a_pickle_or_fetches_code(self, folder, word):
        with expect_error(BadInput, "option-forbidden", mentions=word):
            Explainer.from_pretrained(folder, **{word: word == "allow_all_kernels"})


class TestFiles:
    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
    def test_a_link_out_of_the_folder_is_not_followed(self, folder, name):
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)
        with expect_error(DamagedFile, "model-file-outside"):
            Explainer.from_pretrained(folder)

    def test_a_link_inside_the_folder_is_followed(self, folder):
        (folder / "model.safetensors").rename(folder / "v1.safetensors")
        (folder / "model.safetensors").symlink_to("v1.safetensors")
        assert Explainer.from_pretrained(folder).explain("good film").scores.any()

    @pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
    @pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nowhere"])
    def test_only_regular_files_are_opened(self, folder, name, kind):
        path = folder / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if kind == "device" else folder / "gone")
        with pytest.raises(DamagedFile, match="is not a regular file|outside its folder"):
            Explainer.from_pretrained(folder)

    def test_the_layout_of_the_hubs_cache_is_read(self, folder, tmp_path):
        snapshot = tmp_path / "models--me--it" / "snapshots" / "0123"
        blobs = tmp_path / "models--me--it" / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for i, file in enumerate(sorted(folder.iterdir())):
            shutil.copy(file, blobs / f"blob{i}")
            (snapshot / file.name).symlink_to(f"../../blobs/blob{i}")
        assert Explainer.from_pretrained(snapshot).explain("good film").scores.any()
        (snapshot / "vocab.txt").symlink_to("../../../secret")
        (tmp_path / "secret").write_text("x")
        with expect_error(DamagedFile, "model-file-outside"):
            Explainer.from_pretrained(snapshot)

    def test_a_model_in_the_hubs_cache_is_looked_at_too(self, folder, tmp_path):
        cached = tmp_path / "cache" / "models--me--it"
        snapshot = cached / "snapshots" / ("0" * 40)
        shutil.copytree(folder, snapshot)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("0" * 40)
        inputs = {"cache_dir": tmp_path / "cache", "local_files_only": True}
        assert Explainer.from_pretrained("me/it", **inputs).explain("good film").scores.any()
        TestWeights().index(snapshot, "weights.bin")
        (snapshot / "weights.bin").write_bytes(pickle.dumps({}))
        with expect_error(DamagedFile, "weight-file-name", mentions="weights.bin"):
            Explainer.from_pretrained("me/it", **inputs)
        bring_code(snapshot)
        with pytest.raises(TokenlightError):
            Explainer.from_pretrained("me/it", **inputs)
        assert not (snapshot.parent / "it_ran").exists()

    def test_a_tokenizer_that_names_a_file_elsewhere_is_refused(self, folder):
        change(folder / "tokenizer_config.json", vocab_file="/dev/zero")
        with expect_error(DamagedFile, "tokenizer-file-outside", mentions="/dev/zero"):
            Explainer.from_pretrained(folder)
        change(
            folder / "tokenizer_config.json", vocab_file="/gone/long/ago.txt"
        )  # an old release's
        assert Explainer.from_pretrained(folder).explain("good film").scores.any()
