"""Light views: fields that are made when somebody reads one, and what a data set costs beside them."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.capture.packing import GPU, PROCESSOR, packs
from tokenlight.errors import BadInput
from tokenlight.explaining.batch import MANY, making, tidied
from tokenlight.explaining.stream import SIZES, windows
from tokenlight.inputs.encode import encode, encoded_together

TEXTS = ["a great film", "a dull , dull film", "great"]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def pending(value):
    return "_fields" in vars(value)


def test_an_explanation_is_made_when_it_is_read_and_then_lets_its_batch_go(explainer):
    found = explainer.explain(TEXTS, "attcat")[0]
    assert pending(found)
    assert found.steps == ()
    assert found.method == "attcat"
    assert not pending(found)
    assert not found.scores.flags.writeable
    np.testing.assert_allclose(found.layers.sum(axis=0), found.scores, rtol=1e-12, atol=1e-15)


def test_a_light_view_can_be_copied_and_changed_before_it_was_read(explainer):
    first, second = explainer.explain(TEXTS[:2], "attcat")
    assert copy.deepcopy(first).row == first.row
    assert replace(second, model="other").scores is not None
    with pytest.raises(AttributeError, match="nonsense"):
        first.nonsense  # noqa: B018


def test_two_threads_that_read_one_explanation_see_the_same(explainer):
    for found in explainer.explain(TEXTS * 20, "attcat"):
        seen: list[np.ndarray] = []
        read = partial(getattr, found)
        readers = [
            threading.Thread(target=lambda into=seen, read=read: into.append(read("scores")))
            for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert all(np.array_equal(scores, seen[0]) for scores in seen)
        assert len(seen) == 4


def test_a_row_read_among_many_is_the_row_read_alone():
    tokenizer = tiny_tokenizer()
    for text, whole in zip(TEXTS, encoded_together(TEXTS, tokenizer), strict=True):
        later = encode(text, tokenizer, limit=None, whole=whole)
        assert pending(later)
        assert later == encode(text, tokenizer, limit=None)
        assert not pending(later)


def test_windows_of_an_iterator_grow_to_what_fills_some_packs_of_the_device():
    small = [len(window) for window in windows(iter(["word"] * 3000), 2048)]
    assert small[:4] == list(SIZES)
    assert small[4:6] == [448, 448]
    large = [len(window) for window in windows(iter(["word"] * 16000), 16384)]
    assert large[4:] == [7168, 7168, 16000 - sum(SIZES) - 2 * 7168]
    # Long texts fill a window before it has as many.
    assert max(len(window) for window in windows(iter(["w" * 131072] * 40), 2048)) == 1


def test_packs_of_a_gpu_are_filled_further():
    lengths = [64] * 20 + [40] * 10
    assert len(packs(lengths, 8192, worth=PROCESSOR)) > len(packs(lengths, 8192, worth=GPU))


def folder_of(model, path):
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


def test_a_model_that_writes_is_loaded_as_it_was_saved_and_any_other_in_float32(tmp_path):
    config = LlamaConfig(
        vocab_size=200, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    writer = folder_of(LlamaForCausalLM(config).bfloat16(), tmp_path / "writer")
    reader = folder_of(tiny_bert().bfloat16(), tmp_path / "reader")
    assert Explainer.from_pretrained(writer).live.dtype == torch.bfloat16
    assert Explainer.from_pretrained(writer, dtype="float32").live.dtype == torch.float32
    assert Explainer.from_pretrained(reader).live.dtype == torch.float32
    with pytest.raises(BadInput, match="give '4bit' or '8bit'"):
        Explainer.from_pretrained(reader, quantize="3bit")


def test_a_model_is_quantised_as_it_is_loaded(tmp_path):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    folder = folder_of(tiny_bert().float(), tmp_path)
    explainer = Explainer.from_pretrained(folder, quantize="8bit")
    assert {type(m).__name__ for m in explainer.model.modules()} >= {"Linear8bitLt"}
    assert np.isfinite(explainer.explain("a great film", "attnlrp").scores).all()


def test_no_cycles_are_looked_for_while_many_values_are_made_but_those_dropped_of_late():
    class Cycle:
        def __init__(self):
            self.own = self

    def dropped():
        return weakref.ref(Cycle())

    assert gc.isenabled()
    kept = Cycle()
    gc.collect()
    dropped_before, kept = weakref.ref(kept), None
    with making(MANY):
        assert not gc.isenabled()
        with making(MANY):  # within another
            assert not gc.isenabled()
        new = dropped()
        tidied()
        assert new() is None
        assert dropped_before() is not None  # to find it, all there is would be looked through
        assert not gc.isenabled()
    assert gc.isenabled()
    with making(MANY - 1):
        assert gc.isenabled()
    with pytest.raises(ValueError, match="on the way"), making(MANY):
        raise ValueError("on the way")
    assert gc.isenabled()
