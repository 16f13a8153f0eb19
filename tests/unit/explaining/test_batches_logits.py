"""When the logits are read: after the backward is under way, where the target is known before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.errors import NotFinite


@pytest.mark.parametrize("target", ["predicted", 1])
def test_a_text_whose_states_are_not_finite_is_named_with_its_layer(target):
    model = tiny_bert(torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight[77] = torch.inf
    rows = Tokens.from_ids(torch.tensor([[5, 6, 7, 8], [5, 77, 7, 8]]))
    with pytest.raises(NotFinite, match=r"hidden state 0 .* of text 1 of the batch"):
        Explainer(model).explain(rows, "attcat", target)


def test_a_given_class_and_the_same_predicted_class_have_equal_scores():
    model = tiny_bert()
    rows = Tokens.from_ids(torch.tensor([[5, 6, 7, 8], [9, 10, 7, 8]]))
    attributions = Explainer(model).explain(rows, ["attcat", "transatt"])
    by_index = Explainer(model).explain(
        rows,
        ["attcat", "transatt"],
        [attribution.prediction.index for attribution in attributions[::2]],
    )
    for first, second in zip(attributions, by_index, strict=True):
        np.testing.assert_array_equal(first.scores, second.scores)
        np.testing.assert_array_equal(first.logits, second.logits)
        assert (first.target, first.prediction) == (second.target, second.prediction)
