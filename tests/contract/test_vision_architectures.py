"""The architecture matrix of image classifiers: patches are tokens, unmodified models, one hook."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.image_models import FAMILIES, build_model, draw_pixels, make_pictures
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tolerance import assert_close, tolerance_for
from tokenlight import Explainer, registry
from tokenlight.errors import UnsupportedModel
from tokenlight.inputs.picture import load_picture
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site

METHODS = ["attcat", "gae", "transatt"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """The name of a family of image classifiers."""
    return request.param


def test_a_family_is_explained_and_left_as_it_was(family):
    model = build_model(family)
    with torch.no_grad():
        bare = model(pixel_values=torch.from_numpy(draw_pixels(2)).double()).logits.numpy()
    before = take_snapshot(model)
    explainer = Explainer(model)
    attributions = explainer.explain(make_pictures(2), METHODS)
    assert_unchanged(before, take_snapshot(model))
    assert explainer.runner.attention_route == "hook"
    for number, attribution in enumerate(attributions):
        assert_close(attribution.logits, bare[number // len(METHODS)])
        assert np.isfinite(attribution.scores).all()
        assert np.abs(attribution.scores).max() > 0
        assert attribution.patches().shape == (4, 4)


def test_attention_rows_sum_to_one(family):
    runner = Explainer(build_model(family)).runner
    row = runner.patch_inputs.encode_image(
        load_picture(make_pictures(1)[0], None, runner.patch_inputs.patch_size)
    )
    for maps in record(runner, [row], frozenset({Site.ATTENTION})).attention:
        assert_close(
            maps.sum(dim=-1), np.ones(maps.shape[:-1]), tolerance_for(maps.dtype, 1, maps.shape[-1])
        )


def test_other_inputs_in_a_batch_change_no_score(family):
    explainer = Explainer(build_model(family))
    together = explainer.explain(make_pictures(3), METHODS)
    alone = explainer.explain(make_pictures(3)[1], METHODS)
    for actual, expected in zip(together[3:6], alone, strict=True):
        assert_close(actual.scores, expected.scores)


def test_relevance_is_conserved_at_every_layer(family):
    attributions = Explainer(build_model(family)).explain(make_pictures(1)[0], ["lrp", "transatt"])
    for attribution in attributions:
        np.testing.assert_allclose(attribution.extras["conservation"], 1.0, rtol=0, atol=1e-6)


# What cannot work, and a word of the reason.
WITHOUT_WORDS = {
    "decoded_gradcam": "no language model",
    "decoded_simple": "no language model",
    "context_cite": "An image has no sentence",
    "alti_logit": "cannot be",  # followed: the last norm stands behind the last hidden state
}
SCALED_LAYERS = {"alti": "cannot be split"}  # LayerScale stands between attention and the sum


@pytest.mark.parametrize(
    "family", ["vit", "siglip", "dinov2_with_registers", "beit with relative positions"]
)
@pytest.mark.parametrize("method", registry.list_names("methods"))
def test_every_method_works_on_pictures_or_is_refused_with_a_reason(family, method):
    explainer = Explainer(build_model(family))
    reasons = WITHOUT_WORDS | (SCALED_LAYERS if family not in ("vit", "siglip") else {})
    if method in reasons:
        with pytest.raises(UnsupportedModel, match=reasons[method]):
            explainer.explain(make_pictures(1)[0], method)
        return
    together = explainer.explain(make_pictures(2), [method])
    alone = explainer.explain(make_pictures(2)[1], method)
    assert np.abs(alone.scores).max() > 0
    assert_close(together[1].scores, alone.scores)
