"""Models that read images: the tokens of an image, and models without one grid of patches."""

from __future__ import annotations

import pytest

from tests.helpers.image_models import (
    FAMILIES,
    REFUSED,
    build_model,
    build_refused_model,
    make_pictures,
)
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tokenlight import Explainer
from tokenlight.errors import UnsupportedModel


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_tokens_that_an_image_model_adds_are_named_and_special(family):
    attribution = Explainer(build_model(family)).explain(make_pictures(1)[0])
    model_tokens = FAMILIES[family][3]
    row = attribution.row
    assert row.pieces == (*model_tokens, *(f"{i},{j}" for i in range(4) for j in range(4)))
    assert row.special_tokens_mask == (True,) * len(model_tokens) + (False,) * 16


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_without_one_grid_of_patches_is_refused_by_name(family):
    model = build_refused_model(family)
    before = take_snapshot(model)
    with pytest.raises(UnsupportedModel, match="does not keep one token per patch") as refusal:
        Explainer(model)
    assert type(model).__name__ in str(refusal.value)
    assert_unchanged(before, take_snapshot(model))
