"""ALTI: its decomposition adds up, and blocks that cannot be split are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.families import build
from tests.tiny import randomised, tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.errors import UnsupportedModel
from tokenlight.methods import alti
from tokenlight.methods.alti import TokenToTokenInteractions

SITES = frozenset({Site.ATTENTION, Site.HIDDEN, Site.MIXING})


def ids():
    return torch.randint(5, 120, (2, 9), generator=torch.Generator().manual_seed(3))


def decomposed(recording, block):
    """F of one block, written out: ``batch query key hidden``."""
    maps, values = recording.attention[block], recording.values[block].detach()
    mixing = recording.mixings[block]
    heads, width = values.shape[1], values.shape[3]
    matrix = mixing.projection.view(-1, heads, width)
    brought = torch.einsum("bhij,bhjw,khw->bijk", maps, values, matrix)
    own = torch.eye(maps.shape[-1], dtype=maps.dtype)
    return brought + own[None, :, :, None] * mixing.given[:, None]


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "opt", "biogpt"])
def test_what_all_tokens_brought_is_the_attention_output(family):
    model = randomised(build(family), torch.float64)
    recording = record(Explainer(model).live, list(Tokens.from_ids(ids())), SITES)
    for block, mixing in enumerate(recording.mixings):
        parts = decomposed(recording, block)
        total = parts.sum(dim=2)
        if mixing.norm is not None:
            stream, total = mixing.norm.given, mixing.norm.linear(parts, slice(None)).sum(dim=2)
            whole = mixing.norm.linear(stream[:, :, None], slice(None))[:, :, 0]
        else:
            whole = mixing.output.reshape(total.shape)
        gap = whole - total
        if mixing.norm is None:  # the output projection's bias is what no token brought
            torch.testing.assert_close(gap, gap[:1, :1].expand_as(gap), rtol=1e-6, atol=1e-6)
        else:
            deviation = mixing.norm.given.std(dim=-1, correction=0)[..., None]
            scaled = gap * deviation
            torch.testing.assert_close(
                scaled, scaled[:1, :1].expand_as(scaled), rtol=1e-6, atol=1e-6
            )


def test_blocks_are_split_the_same_in_any_chunk(monkeypatch):
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids(ids())
    whole = explainer.explain(rows, "alti")
    monkeypatch.setattr(alti, "CHUNK_ELEMENTS", 1)
    for ours, theirs in zip(explainer.explain(rows, "alti"), whole, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-12)


def test_scores_are_shares_of_one():
    for method in ("alti", ("alti", {"p": 2}), ("alti", {"ln2": True})):
        for found in Explainer(tiny_bert()).explain(Tokens.from_ids(ids()), method):
            assert found.scores.min() >= 0
            assert found.scores.sum() == pytest.approx(1)


def test_the_second_norm_changes_the_answer():
    explainer = Explainer(tiny_bert())
    first, second = explainer.explain(Tokens.from_ids(ids()[:1]), ["alti", ("alti", {"ln2": True})])
    assert np.abs(first.scores - second.scores).max() > 1e-3


def test_a_block_that_ends_in_no_norm_has_no_second_one():
    explainer = Explainer(build("gpt2"))
    with pytest.raises(UnsupportedModel, match="ln2=True"):
        explainer.explain(Tokens.from_ids(ids()), TokenToTokenInteractions(ln2=True))


@pytest.mark.parametrize(
    ("family", "why"), [("gpt_neox", "not simply added"), ("deberta", "no output")]
)
def test_a_block_of_another_shape_is_refused(family, why):
    with pytest.raises(UnsupportedModel, match=f"block 0 of this model cannot be split.*{why}"):
        Explainer(build(family)).explain(Tokens.from_ids(ids()), "alti")
