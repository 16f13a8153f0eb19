"""A batch's scores: finite, or refused by the place of what is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput, NotFinite
from tokenlight.methods.base import Method
from tokenlight.trace.sites import Site

EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())
TEXTS = ["the film was good , we love it", "a dull plot"]  # 10 and 5 tokens


@dataclass(frozen=True)
class FixedScores(Method):
    """Numbers that a test chose."""

    values: list | tuple = ()
    cites: ClassVar[str] = "none"

    @property
    def needs(self):
        return frozenset({Site.HIDDEN_STATES})

    def __call__(self, _tape):
        return torch.tensor(self.values, dtype=torch.float64)


def scores(layers):
    return (
        np.arange(2.0 * max(layers, 1) * 10).reshape(2, layers, 10) if layers else np.ones((2, 10))
    )


@pytest.mark.parametrize("layers", [0, 3])
def test_scores_of_padding_may_be_anything(layers):
    values = scores(layers)
    values[1, ..., 5:] = np.nan
    first, second = EXPLAINER.explain(TEXTS, FixedScores(values.tolist()))
    assert (len(first), len(second)) == (10, 5)
    np.testing.assert_array_equal(second.scores, values.reshape(2, -1, 10).sum(axis=1)[1, :5])
    if layers:
        np.testing.assert_array_equal(second.layers, values[1, :, :5])
        assert not second.layers.flags.writeable
    assert not second.scores.flags.writeable


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("layers", "location"), [(0, "token 3"), (3, "layer 2, token 3")])
def test_a_score_that_is_not_finite_is_named_by_its_position(number, layers, location):
    values = scores(layers)
    values[(1, 2, 3) if layers else (1, 3)] = number
    with expect_error(NotFinite, "scores-not-finite", mentions=f"{location} of a text of 5"):
        EXPLAINER.explain(TEXTS, _make_named_method(values))


@pytest.mark.parametrize("shape", [(2, 8), (1, 10), (10,), (2, 3, 9), (2, 3, 1, 10)])
def test_scores_of_another_shape_are_refused(shape):
    with expect_error(BadInput, "method-scores-shape", mentions="for 2 texts of up to 10"):
        EXPLAINER.explain(TEXTS, _make_named_method(np.ones(shape)))


METHODS = ["lime", "gae", "lrp", "attcat", "random", "attnlrp", "grad_x_input"]


@pytest.mark.parametrize("method", METHODS)
def test_nan_of_the_model_is_reported_for_every_method(method):
    model = tiny_bert()
    explainer = Explainer(model, tiny_tokenizer())
    explainer.explain(TEXTS, method, target=1)
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match=r"hidden state 2 \(0 is the embedding\) of text 0"):
        explainer.explain(TEXTS, method, target=1)


def test_a_sum_that_overflows_is_refused():
    values = np.full((2, 3, 10), 1e308)
    with expect_error(NotFinite, "scores-not-finite", mentions="token 0 of a text of 10"):
        EXPLAINER.explain(TEXTS, _make_named_method(values))


def _make_named_method(values):
    class Named(FixedScores):
        name = "given"

    return Named(values.tolist())
