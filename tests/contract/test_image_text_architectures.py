"""The architecture matrix of models that read a picture and a text: both in one row, one hook."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.image_text_models import (
    FAMILIES,
    IMAGE,
    QUESTION,
    REFUSED,
    SUPPORTED,
    build_model,
    make_image_tokenizer,
    make_picture,
)
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tolerance import (
    FLOAT64,
    PASS_CONDITION,
    EverythingInFloat64,
    assert_close,
    tolerance_for,
)
from tokenlight import Explainer
from tokenlight.errors import UnsupportedModel
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site

METHODS = ["attcat", "gae", "raw_att", "attnlrp", "occlusion"]
ROUNDED = tolerance_for(torch.float64, PASS_CONDITION)


@pytest.fixture(params=SUPPORTED, scope="module")
def family(request: pytest.FixtureRequest) -> str:
    """The name of a supported family."""
    return request.param


@pytest.fixture(scope="module")
def explainer(family: str) -> Explainer:
    """The explainer of a tiny model of the family."""
    return Explainer(build_model(family), make_image_tokenizer())


def build_bare_arguments(explainer: Explainer, picture: Any) -> tuple[Any, dict[str, Any]]:
    """Return the row, and what the bare model would be given: ids, types and pixels, each by its own name."""
    (row,) = [explainer.explain(picture, method="random").row]
    arguments = explainer.runner.build_inputs([row]).arguments
    model_arguments = {
        name: tensor for name, tensor in arguments.items() if name != "read_positions"
    }
    return row, model_arguments | explainer.runner.vision_inputs.build_pixel_arguments(
        model_arguments["pixel_values"]
    )


def test_a_family_is_explained_and_left_as_it_was(family):
    model = build_model(family)
    before = take_snapshot(model)
    explainer = Explainer(model, make_image_tokenizer())
    with EverythingInFloat64():
        attributions = explainer.explain(make_picture(), METHODS)
    _, arguments = build_bare_arguments(explainer, make_picture())
    assert_unchanged(before, take_snapshot(model))
    with torch.no_grad(), EverythingInFloat64():
        bare = model(**arguments).logits[0, -1].numpy()
    for attribution in attributions:
        assert_close(attribution.logits, bare, ROUNDED)
        assert attribution.patches().size == attribution.row.ids.count(IMAGE)
        assert np.abs(attribution.patches()).max() > 0
        words = [unit for unit in attribution.group_by("document") if unit.name == "prompt"]
        assert [unit.text for unit in words] == [QUESTION]


def test_input_times_gradient_is_taken_at_the_embeddings_of_the_language_model(explainer):
    model = explainer.model
    with EverythingInFloat64():
        actual = explainer.explain(make_picture(), "grad_x_input", "logit")
        row, arguments = build_bare_arguments(explainer, make_picture())
        entered = []

        def record_embeddings(
            _module: Any, _args: Any, keywords: dict[str, Any]
        ) -> tuple[tuple[()], dict[str, Any]]:
            """Keep the embeddings that the language model reads, as a leaf of the graph."""
            entered.append(keywords["inputs_embeds"].detach().requires_grad_())
            return (), {**keywords, "inputs_embeds": entered[0]}

        language = model.get_decoder()
        with language.register_forward_pre_hook(record_embeddings, with_kwargs=True):
            logit = model(**arguments).logits[0, -1, actual.target.terms[0][0][0]]
        (gradient,) = torch.autograd.grad(logit, entered)
        expected = (gradient * entered[0]).sum(dim=-1)[0].detach().numpy()
    assert_close(actual.scores, expected)
    assert_close(actual.patches().ravel(), expected[[i == IMAGE for i in row.ids]])


def test_different_pictures_have_different_scores(explainer):
    first, second = (explainer.explain(make_picture(seed), "grad_x_input") for seed in (0, 1))
    assert not np.allclose(first.patches(), second.patches(), rtol=1e-2)


def test_a_hidden_patch_is_the_picture_with_its_pixels_filled(explainer):
    attribution = explainer.explain(make_picture(), ("occlusion", {"window": 1}), "logit")
    row = attribution.row
    image = row.image
    arguments = build_bare_arguments(explainer, make_picture())[1]
    height, width = image.patch_size
    filled_pixels = image.pixels.copy()
    filled_pixels[:, :height, -width:] = image.pixels.mean(axis=(1, 2), keepdims=True)
    pixels = torch.from_numpy(filled_pixels).double()[None]
    arguments |= explainer.runner.vision_inputs.build_pixel_arguments(pixels)
    with torch.no_grad():
        bare = explainer.model(**arguments).logits[0, -1]
    best = attribution.target.terms[0][0][0]
    fall = attribution.logits[best] - bare[best].item()
    assert abs(attribution.patches()[0, -1] - fall) < ROUNDED * np.abs(attribution.logits).max()


def test_other_inputs_in_a_batch_change_no_score(explainer):
    with EverythingInFloat64():
        texts = [
            make_picture(0),
            make_picture(1, "what is this red cat on the mat ?"),
            make_picture(2),
        ]
        together = explainer.explain(texts, ["grad_x_input", "gae"])
        alone = [
            attribution
            for text in texts
            for attribution in explainer.explain(text, ["grad_x_input", "gae"])
        ]
    for actual, expected in zip(together, alone, strict=True):
        assert_close(actual.scores, expected.scores, FLOAT64)


def test_only_attention_of_the_language_model_is_recorded(explainer):
    row = explainer.explain(make_picture(), "random").row
    explainer.runner.verify(row, reads_attention=True)
    maps = record(explainer.runner, [row], frozenset({Site.ATTENTION})).attention
    assert len(maps) == 2
    assert {tuple(attention_map.shape) for attention_map in maps} == {(1, 4, len(row), len(row))}


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_without_one_token_per_patch_is_refused_by_name(family):
    model = build_model(family)
    before = take_snapshot(model)
    with pytest.raises(UnsupportedModel, match=FAMILIES[family][0]):
        Explainer(model, make_image_tokenizer()).explain(make_picture(), "occlusion")
    assert_unchanged(before, take_snapshot(model))


def test_a_picture_that_enters_at_later_blocks_too_has_no_scores_at_the_first():
    explainer = Explainer(build_model("qwen3-vl"), make_image_tokenizer())
    for method in ("grad_x_input", "integrated_gradients", "attcat", "attnlrp"):
        with pytest.raises(UnsupportedModel, match="more of a text than its token embeddings"):
            explainer.explain(make_picture(), method)
    attributions = explainer.explain(make_picture(), ["occlusion", "rollout"])
    assert [attribution.patches().shape for attribution in attributions] == [(2, 2)] * 2
