"""The architecture matrix: families of sequence classifiers, unmodified, through one seam.

The support table of the README is made from ``tests.families``, whose fates these tests prove.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch

from tests.families import FAMILIES, build
from tests.state import same, snapshot
from tests.tolerance import FLOAT32, FLOAT64, EverythingInFloat64, Roundings, allowed, close
from tokenlight import Explainer, Tokens
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.errors import TokenlightError

SUNK = ["gpt_oss"]  # leave a part of each row of attention to no token
WORKING = [name for name, (_, _, fate) in FAMILIES.items() if fate != "refused"]
REFUSED = [name for name, (_, _, fate) in FAMILIES.items() if fate == "refused"]


def two_texts():
    """Nine tokens, and seven with two of padding behind; each ends in the end-of-text token."""
    ids = torch.randint(5, 120, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    ids[0, 8] = ids[1, 6] = 2
    ids[1, 7:] = mask[1, 7:] = 0
    return ids, mask


@pytest.mark.parametrize("family", WORKING)
def test_a_family_is_explained_and_left_as_it_was(family):
    model = build(family)
    ids, mask = two_texts()
    with torch.no_grad():
        bare = [
            model(ids[i : i + 1, :n], attention_mask=mask[i : i + 1, :n]).logits[0]
            for i, n in ((0, 9), (1, 7))
        ]
    before = snapshot(model)
    explainer = Explainer(model)
    found = explainer.explain(Tokens.from_ids(ids, mask), ["attcat", "gae"])
    assert same(before, snapshot(model))
    assert explainer.live.route == FAMILIES[family][2]
    for text in range(2):
        for attribution in found[2 * text : 2 * text + 2]:
            close(attribution.logits, bare[text].numpy(), FLOAT32)
            assert np.isfinite(attribution.scores).all()
            assert np.abs(attribution.scores).max() > 0


@pytest.mark.parametrize("family", WORKING)
def test_a_first_text_of_one_token_is_explained(family):
    model = build(family)
    with torch.no_grad():
        bare = model(torch.tensor([[2]])).logits[0]
    found = Explainer(model).explain(Tokens.from_ids([[2]]), "gae")
    close(found.logits, bare.numpy(), FLOAT32)


@pytest.mark.parametrize("family", WORKING)
def test_attention_rows_sum_to_one(family):
    explainer = Explainer(build(family))
    (row, _) = Tokens.from_ids(*two_texts())
    recording = record(explainer.live, [row], frozenset({Site.ATTENTION}))
    for maps in recording.attention:
        sums = maps.sum(dim=-1)
        if family in SUNK:
            assert float(sums.max()) < 1
        else:
            close(sums, np.ones(maps.shape[:-1]), allowed(maps.dtype, 1, maps.shape[-1]))


@pytest.mark.parametrize("family", SUNK)
def test_attention_with_a_sink_is_the_models_own_and_is_told(family):
    model = build(family)
    model.set_attn_implementation("eager")
    ids, mask = two_texts()
    with torch.no_grad():
        theirs = model(ids[:1], output_attentions=True).attentions
    explainer = Explainer(model)
    (row, _) = Tokens.from_ids(ids, mask)
    ours = record(explainer.live, [row], frozenset({Site.ATTENTION})).attention
    received = record(explainer.live, [row], frozenset({Site.RECEIVED})).received
    for one, other, share in zip(ours, theirs, received, strict=True):
        close(one, other.numpy(), FLOAT32)
        close(share, other.mean(dim=(1, 2)).numpy(), FLOAT32)
    assert "sums to less than one" in " ".join(explainer.explain(row, "raw_att").notes)
    assert explainer.explain(row, "grad_x_input").notes == ()


@pytest.mark.parametrize("family", WORKING)
def test_batch_mates_and_padding_change_no_score(family):
    if family in ("mixtral", "gpt_oss"):  # their grouped matrix product has no float64
        assert_the_second_text_is_the_same_alone(build(family), FLOAT32)
        return
    model = build(family).double()
    with EverythingInFloat64():
        with torch.no_grad(), Roundings() as roundings:
            model(two_texts()[0], attention_mask=two_texts()[1])
        assert roundings.found == set()
        assert_the_second_text_is_the_same_alone(model, FLOAT64)


def assert_the_second_text_is_the_same_alone(model, tolerance):
    ids, mask = two_texts()
    explainer = Explainer(model)
    together = explainer.explain(Tokens.from_ids(ids, mask), ["attcat", "gae"])
    alone = explainer.explain(Tokens.from_ids(ids[1:, :7], mask[1:, :7]), ["attcat", "gae"])
    for ours, theirs in zip(together[2:], alone, strict=True):
        close(ours.scores, theirs.scores, tolerance)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_would_give_wrong_numbers_is_refused_by_name(family):
    model = build(family)
    with torch.no_grad(), suppress(Exception):  # some families keep notes of their last pass
        model(*two_texts())
    before = snapshot(model)
    with pytest.raises(TokenlightError) as refusal:
        Explainer(model).explain(Tokens.from_ids(*two_texts()), ["attcat", "gae"])
    named = FAMILIES[family][0]
    assert named in str(refusal.value) or "hidden state" in str(refusal.value)
    assert same(before, snapshot(model))
