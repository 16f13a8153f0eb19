"""Light views: fields that are made when somebody reads one, and what a data set costs besides them."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.inputs.encode import encode_batch, encode_text
from tokenlight.model.packing import CPU_PADDING_POLICY, GPU_PADDING_POLICY, pack_batches

TEXTS = ["a great film", "a dull , dull film", "great"]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), tiny_tokenizer())


def is_pending(value):
    return "_fields" in vars(value)


def test_a_lazy_attribution_builds_its_fields_once_and_releases_its_batch(explainer):
    attribution = explainer.explain(TEXTS, "attcat")[0]
    assert is_pending(attribution)
    assert attribution.steps == ()
    assert attribution.method == "attcat"
    assert not is_pending(attribution)
    assert not attribution.scores.flags.writeable
    np.testing.assert_allclose(
        attribution.layers.sum(axis=0), attribution.scores, rtol=1e-12, atol=1e-15
    )


def test_a_lazy_attribution_can_be_copied_and_replaced_before_it_is_read(explainer):
    first, second = explainer.explain(TEXTS[:2], "attcat")
    assert copy.deepcopy(first).row == first.row
    assert replace(second, model="other").scores is not None
    with pytest.raises(AttributeError, match="nonsense"):
        first.nonsense  # noqa: B018


def test_two_threads_that_read_one_explanation_see_the_same(explainer):
    for attribution in explainer.explain(TEXTS * 20, "attcat"):
        scores_by_thread: list[np.ndarray] = []
        read = partial(getattr, attribution)
        readers = [
            threading.Thread(
                target=lambda into=scores_by_thread, read=read: into.append(read("scores"))
            )
            for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert all(np.array_equal(scores, scores_by_thread[0]) for scores in scores_by_thread)
        assert len(scores_by_thread) == 4


def test_a_row_tokenized_in_a_batch_equals_the_row_tokenized_by_itself():
    tokenizer = tiny_tokenizer()
    for text, encoding in zip(TEXTS, encode_batch(TEXTS, tokenizer), strict=True):
        later = encode_text(text, tokenizer, max_tokens=None, encoding=encoding)
        assert is_pending(later)
        assert later == encode_text(text, tokenizer, max_tokens=None)
        assert not is_pending(later)


def test_batches_on_a_gpu_hold_more_tokens():
    lengths = [64] * 20 + [40] * 10
    assert len(pack_batches(lengths, 8192, padding_policy=CPU_PADDING_POLICY)) > len(
        pack_batches(lengths, 8192, padding_policy=GPU_PADDING_POLICY)
    )
