"""ALTI: its decomposition adds up, and blocks that cannot be split are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.families import build_model
from tests.helpers.tiny import randomize_weights, tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.methods import alti
from tokenlight.methods.alti import TokenToTokenInteractions
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site

SITES = frozenset({Site.ATTENTION, Site.HIDDEN_STATES, Site.MIXING})


def make_ids():
    return torch.randint(5, 120, (2, 9), generator=torch.Generator().manual_seed(3))


def decompose(recording, block):
    """F of one block, written out: ``batch query key hidden``."""
    maps = recording.attention[block]
    values = recording.values[block].detach()
    mixing = recording.mixings[block]
    heads = values.shape[1]
    width = values.shape[3]
    matrix = mixing.projection.view(-1, heads, width)
    brought = torch.einsum("bhij,bhjw,khw->bijk", maps, values, matrix)
    identity = torch.eye(maps.shape[-1], dtype=maps.dtype)
    return brought + identity[None, :, :, None] * mixing.residual[:, None]


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "opt", "biogpt"])
def test_contributions_of_all_tokens_sum_to_the_attention_output(family):
    model = randomize_weights(build_model(family), torch.float64)
    recording = record(Explainer(model).runner, list(Tokens.from_ids(make_ids())), SITES)
    for block, mixing in enumerate(recording.mixings):
        parts = decompose(recording, block)
        total = parts.sum(dim=2)
        if mixing.norm is not None:
            stream = mixing.norm.inputs
            total = mixing.norm.apply_linear(parts, slice(None)).sum(dim=2)
            output = mixing.norm.apply_linear(stream[:, :, None], slice(None))[:, :, 0]
        else:
            output = mixing.stream.reshape(total.shape)
        gap = output - total
        if mixing.norm is None:  # the output projection's bias is what no token brought
            torch.testing.assert_close(gap, gap[:1, :1].expand_as(gap), rtol=1e-6, atol=1e-6)
        else:
            deviation = mixing.norm.inputs.std(dim=-1, correction=0)[..., None]
            scaled = gap * deviation
            torch.testing.assert_close(
                scaled, scaled[:1, :1].expand_as(scaled), rtol=1e-6, atol=1e-6
            )


def test_blocks_are_split_the_same_in_any_chunk(monkeypatch):
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids(make_ids())
    unchunked = explainer.explain(rows, "alti")
    monkeypatch.setattr(alti, "CHUNK_ELEMENTS", 1)
    for actual, expected in zip(explainer.explain(rows, "alti"), unchunked, strict=True):
        np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-12)


def test_scores_are_shares_of_one():
    for method in ("alti", ("alti", {"p": 2}), ("alti", {"ln2": True})):
        for attribution in Explainer(tiny_bert()).explain(Tokens.from_ids(make_ids()), method):
            assert attribution.scores.min() >= 0
            assert attribution.scores.sum() == pytest.approx(1)


def test_the_second_norm_changes_the_answer():
    explainer = Explainer(tiny_bert())
    first, second = explainer.explain(
        Tokens.from_ids(make_ids()[:1]), ["alti", ("alti", {"ln2": True})]
    )
    assert np.abs(first.scores - second.scores).max() > 1e-3


def test_a_block_that_ends_in_no_norm_has_no_second_one():
    explainer = Explainer(build_model("gpt2"))
    with expect_error(UnsupportedModel, "ln2-without-norm"):
        explainer.explain(Tokens.from_ids(make_ids()), TokenToTokenInteractions(ln2=True))


@pytest.mark.parametrize(
    ("family", "why"), [("gpt_neox", "not simply added"), ("deberta", "no output")]
)
def test_a_block_of_another_shape_is_refused(family, why):
    with pytest.raises(UnsupportedModel, match=f"Block 0 of this model cannot be split.*{why}"):
        Explainer(build_model(family)).explain(Tokens.from_ids(make_ids()), "alti")
