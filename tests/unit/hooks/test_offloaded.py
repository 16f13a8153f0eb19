"""Models whose weights accelerate keeps on disk between the calls of a module."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight import Explainer
from tokenlight.hooks.offloaded import find_execution_device, loaded_weights

TOKENIZER = tiny_tokenizer()


@pytest.fixture
def offloaded_model(tmp_path):
    """A model of which no weight is in memory, not even that of its embeddings."""
    accelerate = pytest.importorskip("accelerate")
    return accelerate.disk_offload(tiny_bert(torch.float32), tmp_path, execution_device="cpu")


@pytest.mark.parametrize(
    "method",
    ["attcat", "attnlrp", "alti", "alti_logit", "fullgrad_plus", "lrp", "value_zeroing", "lime"],
)
def test_a_model_that_is_all_on_disk_has_the_scores_of_the_one_in_memory(offloaded_model, method):
    texts = ["good film", "a dull plot"]
    attributions = Explainer(offloaded_model, TOKENIZER).explain(texts, method, target=0)
    expected = Explainer(tiny_bert(torch.float32), TOKENIZER).explain(texts, method, target=0)
    for ours, theirs in zip(attributions, expected, strict=True):
        assert_close(ours.scores, theirs.scores, FLOAT32)
    assert {weight.device.type for weight in offloaded_model.parameters()} == {"meta"}


def test_weights_are_loaded_only_inside_the_block(offloaded_model):
    layer = offloaded_model.classifier
    assert find_execution_device(layer, layer.weight) == torch.device("cpu")
    with loaded_weights(layer):
        assert torch.equal(layer.weight, tiny_bert(torch.float32).classifier.weight)
    assert layer.weight.device.type == "meta"


def test_a_model_in_memory_is_left_alone():
    layer = tiny_bert().classifier
    assert find_execution_device(layer, layer.weight) == torch.device("cpu")
    with loaded_weights(layer):
        assert layer.weight.device.type == "cpu"
