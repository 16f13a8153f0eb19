"""The architecture matrix of image classifiers: patches are tokens, unmodified models, one seam."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.state import same, snapshot
from tests.tolerance import allowed, close
from tests.vision import FAMILIES, REFUSED, build, build_refused, pictures, pixels
from tokenlight import Explainer, registry
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.errors import UnsupportedModel
from tokenlight.inputs.picture import opened

METHODS = ["attcat", "gae", "transatt"]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_a_family_is_explained_and_left_as_it_was(family):
    model = build(family)
    with torch.no_grad():
        bare = model(pixel_values=torch.from_numpy(pixels(2)).double()).logits.numpy()
    before = snapshot(model)
    explainer = Explainer(model)
    found = explainer.explain(pictures(2), METHODS)
    assert same(before, snapshot(model))
    assert explainer.live.route == "seam"
    for number, attribution in enumerate(found):
        close(attribution.logits, bare[number // len(METHODS)])
        assert np.isfinite(attribution.scores).all()
        assert np.abs(attribution.scores).max() > 0
        assert attribution.patches().shape == (4, 4)


def test_the_tokens_of_the_model_s_own_are_named_and_special(family):
    attribution = Explainer(build(family)).explain(pictures(1)[0])
    own = FAMILIES[family][3]
    row = attribution.row
    assert row.pieces == (*own, *(f"{i},{j}" for i in range(4) for j in range(4)))
    assert row.special == (True,) * len(own) + (False,) * 16


def test_attention_rows_sum_to_one(family):
    live = Explainer(build(family)).live
    row = live.patches.read(opened(pictures(1)[0], None, live.patches.patch))
    for maps in record(live, [row], frozenset({Site.ATTENTION})).attention:
        close(maps.sum(dim=-1), np.ones(maps.shape[:-1]), allowed(maps.dtype, 1, maps.shape[-1]))


def test_batch_mates_change_no_score(family):
    explainer = Explainer(build(family))
    together = explainer.explain(pictures(3), METHODS)
    alone = explainer.explain(pictures(3)[1], METHODS)
    for ours, theirs in zip(together[3:6], alone, strict=True):
        close(ours.scores, theirs.scores)


def test_relevance_is_conserved_at_every_layer(family):
    found = Explainer(build(family)).explain(pictures(1)[0], ["lrp", "transatt"])
    for attribution in found:
        np.testing.assert_allclose(attribution.extras["conservation"], 1.0, rtol=0, atol=1e-6)


# What cannot work, and a word of the reason.
WITHOUT_WORDS = {
    "decoded_gradcam": "no language model",
    "decoded_simple": "no language model",
    "context_cite": "a picture has no sentence",
    "alti_logit": "cannot be",  # followed: the last norm stands behind the last hidden state
}
SCALED_LAYERS = {"alti": "cannot be split"}  # LayerScale stands between attention and the sum


@pytest.mark.parametrize(
    "family", ["vit", "siglip", "dinov2_with_registers", "beit with relative positions"]
)
@pytest.mark.parametrize("method", registry.names("methods"))
def test_every_method_works_on_pictures_or_says_why_not(family, method):
    explainer = Explainer(build(family))
    reasons = WITHOUT_WORDS | (SCALED_LAYERS if family not in ("vit", "siglip") else {})
    if method in reasons:
        with pytest.raises(UnsupportedModel, match=reasons[method]):
            explainer.explain(pictures(1)[0], method)
        return
    together = explainer.explain(pictures(2), [method])
    alone = explainer.explain(pictures(2)[1], method)
    assert np.abs(alone.scores).max() > 0
    close(together[1].scores, alone.scores)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_without_one_grid_of_patches_is_refused_by_name(family):
    model = build_refused(family)
    before = snapshot(model)
    with pytest.raises(UnsupportedModel, match="does not keep one token a patch") as refusal:
        Explainer(model)
    assert type(model).__name__ in str(refusal.value)
    assert same(before, snapshot(model))
