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
from tokenlight import Explainer, Tokens
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.errors import TokenlightError

# Their norms or softmax compute in float32 whatever the model's dtype, so the law of float32 holds.
FLOAT32_INSIDE = {
    "gemma", "gemma2", "gemma3", "glm", "gpt_neo", "gptj", "llama", "mistral", "mixtral", "mpt", "mt5",
    "olmo2", "phi3", "qwen2", "qwen3", "smollm3", "t5", "umt5",
}  # fmt: skip
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
            np.testing.assert_allclose(attribution.logits, bare[text].numpy(), atol=1e-5)
            assert np.isfinite(attribution.scores).all()
            assert np.abs(attribution.scores).max() > 0


@pytest.mark.parametrize("family", WORKING)
def test_a_first_text_of_one_token_is_explained(family):
    model = build(family)
    with torch.no_grad():
        bare = model(torch.tensor([[2]])).logits[0]
    found = Explainer(model).explain(Tokens.from_ids([[2]]), "gae")
    np.testing.assert_allclose(found.logits, bare.numpy(), atol=1e-5)


@pytest.mark.parametrize("family", WORKING)
def test_attention_rows_sum_to_one(family):
    explainer = Explainer(build(family))
    (row, _) = Tokens.from_ids(*two_texts())
    recording = record(explainer.live, [row], frozenset({Site.ATTENTION}))
    for maps in recording.attention:
        torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:-1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", WORKING)
def test_batch_mates_and_padding_change_no_score(family):
    # Mixtral's grouped matrix product has no float64.
    model = build(family) if family == "mixtral" else build(family).double()
    explainer = Explainer(model)
    tolerance = 1e-5 if family in FLOAT32_INSIDE else 1e-9
    ids, mask = two_texts()
    together = explainer.explain(Tokens.from_ids(ids, mask), ["attcat", "gae"])
    alone = explainer.explain(Tokens.from_ids(ids[1:, :7], mask[1:, :7]), ["attcat", "gae"])
    for ours, theirs in zip(together[2:], alone, strict=True):
        scale = np.abs(theirs.scores).max()
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=0, atol=tolerance * scale)


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
