"""A model from a GGUF file: the weights that were written, said to be dequantized, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny_gguf import byte_tokens, gguf_tensors, tiny_llama, write_tiny_gguf
from tokenlight import Continuation, Explainer, cli
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, UnsupportedModel
from tokenlight.evaluation.corpus import load_model_tokenizer
from tokenlight.models import gguf_loading
from tokenlight.plots.html import render_page

TEXT = "the cat sat on the"


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def explainer(gguf_path):
    return Explainer.from_pretrained(gguf_path, device="cpu")


def test_the_logits_equal_the_logits_of_the_model_that_was_saved(explainer):
    input_ids = explainer.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = explainer.model(input_ids).logits
        expected = tiny_llama()(input_ids).logits
    # Both models multiply the same float32 numbers in the same order.
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


def test_the_tokenizer_is_the_one_in_the_file(explainer):
    assert explainer.tokenizer.tokenize(TEXT) == ["the", "Ġcat", "Ġsat", "Ġon", "Ġthe"]
    assert explainer.tokenizer.convert_ids_to_tokens([0, 258]) == ["<|end|>", "the"]


def test_an_explanation_notes_the_dtype_of_the_weights(explainer, gguf_path):
    attribution = explainer.explain(TEXT, "attnlrp")
    assert len(attribution.scores) == 5
    num_bytes = sum(parameter.nbytes for parameter in explainer.model.parameters())
    sizes = (
        f"{gguf_path.stat().st_size / 1e6:.1f} MB in the file, {num_bytes / 1e6:.1f} MB in memory"
    )
    assert f"the weights of tiny.gguf (F32) were converted to float32: {sizes}" in attribution.notes


def test_pictures_show_the_note_on_weights_once(explainer, gguf_path):
    written = explainer.explain(TEXT, "attnlrp", Continuation(max_new_tokens=3))
    assert len(written) > 1
    assert render_page(written).count(f"the weights of {gguf_path.name}") == 1


def test_quantized_weights_are_dequantized_with_a_note(tmp_path, capfd):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", quantized=True)
    explainer = Explainer.from_pretrained(path, device="cpu")
    assert capfd.readouterr().err == ""  # transformers would draw a progress bar
    assert {parameter.dtype for parameter in explainer.model.parameters()} == {torch.float32}
    expected = tiny_llama().model.layers[0].mlp.up_proj.weight
    weight = explainer.model.model.layers[0].mlp.up_proj.weight
    # Q8_0 rounds to 1/127 of the largest weight of each block of 32, and stores that scale in float16.
    step = expected.detach().abs().reshape(-1, 32).amax(1) / 127
    error = (weight - expected).detach().abs().reshape(-1, 32).amax(1)
    assert bool((error <= step * (0.5 + 127 * 2.0**-11)).all())
    (note,) = explainer.facts.notes
    assert "(F32, Q8_0) were dequantized to float32" in note


def test_another_dtype_is_loaded_when_asked_for(gguf_path):
    explainer = Explainer.from_pretrained(gguf_path, dtype="bfloat16", device="cpu")
    assert explainer.model.dtype == torch.bfloat16
    assert "converted to bfloat16" in explainer.facts.notes[0]


def test_a_loaded_model_can_be_saved_as_an_ordinary_one(explainer, tmp_path):
    explainer.model.save_pretrained(tmp_path)
    explainer.tokenizer.save_pretrained(tmp_path)
    saved = Explainer.from_pretrained(tmp_path, device="cpu")
    assert saved.facts.notes == ()
    scores = saved.explain(TEXT, "attnlrp").scores
    np.testing.assert_array_equal(scores, explainer.explain(TEXT, "attnlrp").scores)


def test_a_folder_with_one_file_is_enough(gguf_path):
    assert Explainer.from_pretrained(gguf_path.parent, device="cpu").tokenizer.tokenize("the") == [
        "the"
    ]


def test_a_folder_with_several_files_is_refused(tmp_path):
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with expect_error(BadInput, "gguf-several", mentions="a.gguf, b.gguf"):
        Explainer.from_pretrained(tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    with expect_error(BadInput, "gguf-not-found"):
        Explainer.from_pretrained(tmp_path / "missing.gguf")


def test_other_files_of_the_folder_are_not_read(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ):
        (tmp_path / name).write_text("{damaged")
    assert Explainer.from_pretrained(path, device="cpu").tokenizer.tokenize("the") == ["the"]


def test_a_damaged_file_is_refused(gguf_path, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_path.read_bytes()[:-100])
    with expect_error(DamagedFile, "gguf-tensor-extent", mentions="Download it again"):
        Explainer.from_pretrained(cut)


def test_metadata_of_a_larger_model_is_refused_before_it_is_built(tmp_path):
    path = write_tiny_gguf(tmp_path / "hostile.gguf", embedding_length=1 << 20)
    with pytest.raises(DamagedFile, match="The metadata of") as refusal:
        Explainer.from_pretrained(path)
    assert refusal.value.code in ("config-parts", "config-parameters")


def test_weights_that_do_not_fit_the_metadata_are_refused(tmp_path):
    path = write_tiny_gguf(tmp_path / "skewed.gguf", feed_forward_length=48)
    with expect_error(DamagedFile, "gguf-shape", mentions="mlp"):
        Explainer.from_pretrained(path)


def test_a_file_without_a_tensor_is_refused_rather_than_filled(tmp_path):
    tensors = gguf_tensors(tiny_llama())
    del tensors["blk.1.ffn_up.weight"]
    path = write_tiny_gguf(tmp_path / "holes.gguf", tensors=tensors)
    with expect_error(DamagedFile, "weights-missing", mentions="layers.1.mlp.up_proj"):
        Explainer.from_pretrained(path)


def test_a_vocabulary_larger_than_the_embeddings_is_refused(tmp_path):
    tensors = gguf_tensors(tiny_llama())
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = tensors[name][:-3]
    num_embeddings = len(byte_tokens()) - 3
    path = write_tiny_gguf(tmp_path / "short.gguf", tensors=tensors, vocab_size=num_embeddings)
    with expect_error(DamagedFile, "gguf-vocabulary"):
        Explainer.from_pretrained(path)


def test_an_architecture_that_transformers_does_not_read_is_refused(tmp_path):
    path = write_tiny_gguf(tmp_path / "strange.gguf", architecture="strange")
    with expect_error(UnsupportedModel, "gguf-architecture-unsupported", mentions="strange"):
        Explainer.from_pretrained(path)


def test_factors_that_transformers_leaves_out_are_named(tmp_path):
    tensors = gguf_tensors(tiny_llama()) | {"rope_freqs.weight": np.ones(4, np.float32)}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tensors=tensors)
    explainer = Explainer.from_pretrained(path, device="cpu")
    assert "does not read rope_freqs.weight" in explainer.facts.notes[1]


@pytest.mark.parametrize("option", ["quantize", "revision"])
def test_options_of_other_files_are_refused(gguf_path, option):
    with expect_error(BadInput, "gguf-option", mentions=option):
        Explainer.from_pretrained(gguf_path, **{option: "4bit"})


def test_code_of_the_model_is_not_run(gguf_path):
    with expect_error(BadInput, "option-forbidden"):
        Explainer.from_pretrained(gguf_path, trust_remote_code=True)


def test_a_package_that_would_download_code_is_refused(gguf_path, monkeypatch):
    monkeypatch.setattr(gguf_loading, "find_spec", lambda _name: object())
    with expect_error(UnsupportedModel, "gguf-downloads-code", mentions="kernels"):
        Explainer.from_pretrained(gguf_path)


def test_missing_packages_are_named_with_the_extra(gguf_path, monkeypatch):
    monkeypatch.setattr("tokenlight.errors.find_spec", lambda _name: None)
    with expect_error(MissingExtra, "missing-extra", mentions="pip install 'tokenlight[gguf]'"):
        Explainer.from_pretrained(gguf_path)


def test_the_tokenizer_is_loaded_without_the_weights(gguf_path):
    assert load_model_tokenizer(str(gguf_path)).tokenize("the cat") == ["the", "Ġcat"]


def test_the_command_line_explains_a_file(gguf_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", TEXT, "--model", str(gguf_path)])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "were converted to float32" in " ".join(output.split())


def test_the_command_line_refuses_a_damaged_file(tmp_path, capsys):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", TEXT, "--model", str(damaged)])
    assert end.value.code != 0
    assert "is cut off" in " ".join(capsys.readouterr().err.split())
