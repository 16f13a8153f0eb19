"""The architecture matrix of models that read a picture and a text: both in one row, one seam."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.sights import FAMILIES, IMAGE, QUESTION, REFUSED, TAKEN, build, pictured, reading
from tests.state import same, snapshot
from tests.tolerance import FLOAT64, PLAIN, EverythingInFloat64, allowed, close
from tokenlight import Explainer
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site
from tokenlight.errors import UnsupportedModel

METHODS = ["attcat", "gae", "raw_att", "attnlrp", "occlusion"]
ROUNDED = allowed(torch.float64, PLAIN)


@pytest.fixture(params=TAKEN, scope="module")
def family(request):
    return request.param


@pytest.fixture(scope="module")
def explainer(family):
    return Explainer(build(family), reading())


def given(explainer, picture):
    """What the bare model would be given: ids, types and pixels, each by its own name."""
    (row,) = [explainer.explain(picture, method="random").row]
    arguments, _, _ = explainer.live.inputs([row])
    found = {k: v for k, v in arguments.items() if k != "at"}
    return row, found | explainer.live.sight.laid(found["pixel_values"])


def test_a_family_is_explained_and_left_as_it_was(family):
    model = build(family)
    before = snapshot(model)
    explainer = Explainer(model, reading())
    with EverythingInFloat64():
        found = explainer.explain(pictured(), METHODS)
    _, arguments = given(explainer, pictured())
    assert same(before, snapshot(model))
    with torch.no_grad(), EverythingInFloat64():
        bare = model(**arguments).logits[0, -1].numpy()
    for attribution in found:
        close(attribution.logits, bare, ROUNDED)
        assert attribution.patches().size == attribution.row.ids.count(IMAGE)
        assert np.abs(attribution.patches()).max() > 0
        words = [one for one in attribution.by("document") if one.name == "prompt"]
        assert [one.text for one in words] == [QUESTION]


def test_input_times_gradient_is_that_of_the_vectors_the_language_model_reads(explainer):
    model = explainer.model
    with EverythingInFloat64():
        ours = explainer.explain(pictured(), "grad_x_input")
        row, arguments = given(explainer, pictured())
        entered = []

        def keep(_module, _args, named):
            entered.append(named["inputs_embeds"].detach().requires_grad_())
            return (), {**named, "inputs_embeds": entered[0]}

        language = model.get_decoder()
        with language.register_forward_pre_hook(keep, with_kwargs=True):
            logit = model(**arguments).logits[0, -1, ours.target.terms[0][0][0]]
        (slope,) = torch.autograd.grad(logit, entered)
        theirs = (slope * entered[0]).sum(dim=-1)[0].detach().numpy()
    close(ours.scores, theirs)
    close(ours.patches().ravel(), theirs[[i == IMAGE for i in row.ids]])


def test_another_picture_gets_other_scores(explainer):
    one, other = (explainer.explain(pictured(seed), "grad_x_input") for seed in (0, 1))
    assert not np.allclose(one.patches(), other.patches(), rtol=1e-2)


def test_a_hidden_patch_is_the_picture_with_its_pixels_filled(explainer):
    found = explainer.explain(pictured(), ("occlusion", {"window": 1}))
    row = found.row
    image, arguments = row.image, given(explainer, pictured())[1]
    height, width = image.patch
    filled = image.pixels.copy()
    filled[:, :height, -width:] = image.pixels.mean(axis=(1, 2), keepdims=True)
    pixels = torch.from_numpy(filled).double()[None]
    with torch.no_grad():
        bare = explainer.model(**arguments | explainer.live.sight.laid(pixels)).logits[0, -1]
    best = found.target.terms[0][0][0]
    fall = found.logits[best] - bare[best].item()
    assert abs(found.patches()[0, -1] - fall) < ROUNDED * np.abs(found.logits).max()


def test_batch_mates_change_no_score(explainer):
    with EverythingInFloat64():
        texts = [pictured(0), pictured(1, "what is this red cat on the mat ?"), pictured(2)]
        together = explainer.explain(texts, ["grad_x_input", "gae"])
        alone = [a for text in texts for a in explainer.explain(text, ["grad_x_input", "gae"])]
    for ours, theirs in zip(together, alone, strict=True):
        close(ours.scores, theirs.scores, FLOAT64)


def test_only_the_language_model_is_listened_to(explainer):
    row = explainer.explain(pictured(), "random").row
    explainer.live.verify(row, maps=True)
    maps = record(explainer.live, [row], frozenset({Site.ATTENTION})).attention
    assert len(maps) == 2
    assert {tuple(own.shape) for own in maps} == {(1, 4, len(row), len(row))}


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_whose_tokens_are_no_places_of_the_picture_is_refused_by_name(family):
    model = build(family)
    before = snapshot(model)
    with pytest.raises(UnsupportedModel, match=FAMILIES[family][0]):
        Explainer(model, reading()).explain(pictured(), "occlusion")
    assert same(before, snapshot(model))


def test_a_picture_that_enters_at_later_blocks_too_has_no_scores_at_the_first():
    explainer = Explainer(build("qwen3-vl"), reading())
    for method in ("grad_x_input", "integrated_gradients", "attcat", "attnlrp"):
        with pytest.raises(UnsupportedModel, match="other ways than its token embeddings"):
            explainer.explain(pictured(), method)
    found = explainer.explain(pictured(), ["occlusion", "rollout"])
    assert [a.patches().shape for a in found] == [(2, 2)] * 2
