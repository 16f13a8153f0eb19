"""Rows of token ids: which of their tokens are padding."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.tiny import tiny_gpt
from tokenlight import Explainer, Tokens
from tokenlight.errors import BadInput
from tokenlight.explaining.session import find_pad_id


class TestWithoutAPadId:
    explainer = Explainer(tiny_gpt())

    @pytest.mark.parametrize(
        ("ids", "mask"),
        [([5, 6, 7, 0, 0], [1, 1, 1, 0, 0]), ([0, 0, 5, 6, 7], [0, 0, 1, 1, 1])],
        ids=["behind", "before"],
    )
    def test_masked_tokens_at_an_end_are_padding(self, ids, mask):
        assert find_pad_id(self.explainer) is None
        padded = self.explainer.explain(Tokens.from_ids([ids], [mask]), "grad_x_input")
        bare = self.explainer.explain(Tokens.from_ids([[5, 6, 7]]), "grad_x_input")
        assert (padded.row.ids, padded.row.attention_mask) == (
            bare.row.ids,
            bare.row.attention_mask,
        )
        np.testing.assert_array_equal(padded.scores, bare.scores)
        np.testing.assert_array_equal(padded.logits, bare.logits)

    def test_masked_tokens_in_the_middle_are_kept(self):
        attribution = self.explainer.explain(
            Tokens.from_ids([[5, 6, 7, 8]], [[1, 0, 1, 0]]), "random"
        )
        assert attribution.row.ids == (5, 6, 7)
        assert attribution.row.attention_mask == (1, 0, 1)

    def test_a_row_with_all_tokens_masked_is_refused(self):
        with pytest.raises(BadInput, match="all padding"):
            self.explainer.explain(Tokens.from_ids([[5, 6]], [[0, 0]]))
