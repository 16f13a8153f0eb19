"""A picture and a text: how both become one row, and what is refused."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from tests.helpers.expect import expect_error
from tests.helpers.image_text_models import (
    ANSWER,
    IMAGE,
    PATCH,
    QUESTION,
    SIDE,
    build_model,
    draw_pixels,
    make_image_tokenizer,
    make_picture,
)
from tests.helpers.tolerance import FLOAT32, FLOAT64, EverythingInFloat64, assert_close
from tokenlight import Attribution, Chat, Continuation, Explainer, NextToken, Picture
from tokenlight.cli.app import app
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.inputs.picture import build_patch_image
from tokenlight.plots.colours import NUM_STEPS, OVERLAY_OPACITY, score_to_step
from tokenlight.plots.descriptions import round_segment_shares
from tokenlight.plots.figures import draw_image_heat_maps
from tokenlight.plots.html import render_page
from tokenlight.plots.terminal import show
from tokenlight.trust import assess_trust

CATS = np.random.RandomState(3).randint(0, 255, (40, 60, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def llava():
    return Explainer(build_model("llava"), make_image_tokenizer())


@pytest.fixture(scope="module")
def paligemma():
    return Explainer(build_model("paligemma"), make_image_tokenizer())


def llava_processor():
    size = {"height": SIDE, "width": SIDE}
    reader = transformers.CLIPImageProcessorPil(size=size, crop_size=size)
    return transformers.LlavaProcessor(
        reader, make_image_tokenizer(), patch_size=PATCH, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<image>",
    )  # fmt: skip


def paligemma_processor():
    reader = transformers.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    reader.image_seq_length = 16
    return transformers.PaliGemmaProcessor(reader, make_image_tokenizer())


def idefics_processor():
    edge = {"longest_edge": SIDE}
    reader = transformers.Idefics3ImageProcessorPil(
        size=edge, max_image_size=edge, do_image_splitting=False
    )
    return transformers.Idefics3Processor(reader, make_image_tokenizer(), image_seq_len=4)


# --- numbers, by hand -----------------------------------------------------------------------------


def merge_embeddings(model, ids, values):
    """inputs_embeds as LLaVA and PaliGemma build them: the projector's vectors at the image's tokens."""
    words = model.get_input_embeddings()(torch.tensor([ids])).detach()
    inner = model.model
    tower = inner.vision_tower(torch.from_numpy(values)[None].double(), output_hidden_states=True)
    if hasattr(inner.multi_modal_projector, "linear"):
        vectors = inner.multi_modal_projector(tower.last_hidden_state)
    else:
        vectors = inner.multi_modal_projector(tower.hidden_states[-1][:, 1:])
    positions = torch.tensor(ids) == IMAGE
    full = words.clone()
    full[0, positions] = vectors[0].detach()
    return full


def by_hand(model, vectors, target):
    """The logit of ``target`` behind the last vector: no pixels and no ids go in."""
    more = {}
    if model.config.model_type == "paligemma":  # its prompt is read in both directions
        more["token_type_ids"] = torch.zeros(vectors.shape[:2], dtype=torch.long)
    return model(inputs_embeds=vectors, **more).logits[:, -1, target]


@pytest.mark.parametrize("family", ["llava", "paligemma"])
def test_input_times_gradient_equals_a_computation_by_hand(family, request):
    explainer = request.getfixturevalue(family)
    model = explainer.model
    target = 14
    with EverythingInFloat64():
        token = NextToken(target, against=None)
        actual = explainer.explain(make_picture(), "grad_x_input", target=token)
        vectors = merge_embeddings(model, actual.row.ids, draw_pixels()).requires_grad_()
        logit = by_hand(model, vectors, target)
        (slope,) = torch.autograd.grad(logit.sum(), vectors)
    assert_close(actual.scores, (slope * vectors).sum(dim=-1)[0].detach().numpy())
    assert_close(actual.logits[target], logit.item())


@pytest.mark.parametrize("family", ["llava", "paligemma"])
def test_integrated_gradients_equal_a_computation_by_hand(family, request):
    """From padding and a picture of the mean colour to the question and the picture."""
    explainer = request.getfixturevalue(family)
    steps = 12
    target = 14
    model = explainer.model
    with EverythingInFloat64():
        method = ("integrated_gradients", {"num_steps": steps})
        actual = explainer.explain(make_picture(), method, target=NextToken(target, against=None))
        ids = actual.row.ids
        grey = np.broadcast_to(
            draw_pixels().mean(axis=(1, 2), keepdims=True), draw_pixels().shape
        ).copy()
        text = merge_embeddings(model, ids, draw_pixels())
        begin = merge_embeddings(model, [i if i == IMAGE else 0 for i in ids], grey)
        total = torch.zeros_like(text)
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
            point = (begin + float(node) * (text - begin)).requires_grad_()
            (slope,) = torch.autograd.grad(by_hand(model, point, target).sum(), point)
            total += float(weight) * slope
    assert_close(actual.scores, (total * (text - begin)).sum(dim=-1)[0].detach().numpy())


def test_relevance_reaches_the_patches_and_stops_at_them(llava):
    """Relevance of a model without biases in its language model: what the logit is, arrives."""
    with EverythingInFloat64():
        attribution = llava.explain(make_picture(), "attnlrp", target=NextToken("cat"))
    shares = {segment.name: segment.share for segment in attribution.segment_shares()}
    assert set(shares) == {"image", "prompt"}
    assert min(shares.values()) > 0.05
    assert attribution.patches().shape == (4, 4)


def test_a_patch_that_shows_what_hides_it_has_no_score_and_the_bright_one_has_all(llava):
    for patch in ((0, 3), (2, 1)):
        black = np.zeros((3, SIDE, SIDE), dtype=np.float32)
        row, column = (PATCH * i for i in patch)
        black[:, row : row + PATCH, column : column + PATCH] = 1.0
        inputs = Picture.from_pixels(black, fill="zero", text=QUESTION)
        attribution = llava.explain(inputs, ("occlusion", {"window": 1})).patches()
        assert np.flatnonzero(np.abs(attribution) > 1e-12).tolist() == [patch[0] * 4 + patch[1]]


def make_planted_model():
    """A LLaVA whose vision tower mixes no places and whose language model looks everywhere alike; its
    answer ``red`` is what one bright patch writes into the last token, whatever its place."""
    model = build_model("llava")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "self_attn.out_proj" in name or "position_embedding" in name or "mlp.down" in name:
                weight.zero_()
            if "language_model" in name and ("q_proj" in name or "k_proj" in name):
                weight.zero_()
    return model


def make_bright_picture(patch):
    values = np.zeros((3, SIDE, SIDE), dtype=np.float32)
    row, column = (PATCH * i for i in divmod(patch, 4))
    values[:, row : row + PATCH, column : column + PATCH] = 2.0
    return values


def test_the_deciding_patch_ranks_first_at_every_position():
    model = make_planted_model()
    red = 13
    explainer = Explainer(model, make_image_tokenizer())
    ids = torch.tensor([[IMAGE] * 16 + [8, 9, 10, 11]])
    visible = [
        torch.from_numpy(np.stack([v])).double()
        for v in (make_bright_picture(0), np.zeros_like(make_bright_picture(0)))
    ]
    with torch.no_grad():
        last = [
            model.model(input_ids=ids, pixel_values=pixel_values).last_hidden_state[0, -1]
            for pixel_values in visible
        ]
        model.lm_head.weight[red] = (last[0] - last[1]) / (last[0] - last[1]).norm()
    methods = ["integrated_gradients", ("occlusion", {"window": 1, "baseline": "pad"}), "attnlrp"]
    first = np.zeros(len(methods))
    for patch in range(16):
        inputs = Picture.from_pixels(make_bright_picture(patch), fill="zero", text=QUESTION)
        attributions = explainer.explain(inputs, methods, target=NextToken(red))
        first += [np.abs(attribution.patches()).argmax() == patch for attribution in attributions]
    assert first.tolist() == [16, 16, 16]


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llava", "paligemma", "gemma3", "qwen2-vl"])
def test_each_token_of_a_continuation_has_a_row_of_patches_words_and_generated_tokens(family):
    model = build_model(family)
    explainer = Explainer(model, make_image_tokenizer())
    with EverythingInFloat64():
        each = Continuation(ANSWER, against=None)
        attributions = explainer.explain(make_picture(), "grad_x_input", target=each)
        whole = Continuation(ANSWER, joint=True, against=None)
        (full,) = explainer.explain(make_picture(), "grad_x_input", target=whole)
    assert [attribution.target.name for attribution in attributions] == ["‘a’", "‘red’", "‘cat’"]
    assert [attribution.row.segment_names for attribution in attributions][-1] == (
        "image",
        "prompt",
        "written",
    )
    assert_close(
        full.scores,
        sum(
            np.pad(attribution.scores, (0, len(full) - len(attribution)))
            for attribution in attributions
        ),
    )


def test_the_prompt_of_paligemma_is_read_in_both_directions_and_the_answer_forward(paligemma):
    (*_, last) = paligemma.explain(make_picture(), "random", target=Continuation(ANSWER))
    assert last.row.token_type_ids == (0,) * 20 + (1, 1)
    ids = torch.tensor([[*last.row.ids]])
    types = torch.tensor([[*last.row.token_type_ids]])
    values = torch.from_numpy(draw_pixels())[None].double()
    with torch.no_grad():
        bare = paligemma.model(input_ids=ids, pixel_values=values, token_type_ids=types).logits[
            0, -1
        ]
        forward = paligemma.model(input_ids=ids, pixel_values=values).logits[0, -1]
    assert_close(last.logits, bare.numpy())
    assert (bare - forward).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llava", "paligemma", "gemma3", "qwen2-vl"])
def test_a_free_continuation_is_what_the_model_generates(family):
    model = build_model(family)
    with torch.no_grad():
        model.get_output_embeddings().weight[1] = 0  # it does not end before it begins
    explainer = Explainer(model, make_image_tokenizer())
    row = explainer.explain(make_picture(), "random").row
    attributions = explainer.explain(
        make_picture(), "random", target=Continuation(max_new_tokens=3)
    )
    arguments = explainer.runner.build_inputs([row]).arguments
    inputs = {k: v for k, v in arguments.items() if k != "read_positions"}
    inputs |= explainer.runner.vision_inputs.build_pixel_arguments(inputs["pixel_values"])
    created = explainer.model.generate(
        **inputs, max_new_tokens=3, do_sample=False, eos_token_id=None
    )
    assert [attribution.target.terms[0][0][0] for attribution in attributions] == created[
        0, len(row) :
    ].tolist()[: len(attributions)]


# --- processors and prompts -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's own
@pytest.mark.parametrize(
    ("family", "processor", "pieces"),
    [
        ("llava", llava_processor, 0),
        ("paligemma", paligemma_processor, 1),
        ("idefics3", idefics_processor, 3),
    ],
)
def test_a_processor_is_read_as_the_models_own_code_reads_it(family, processor, pieces):
    expected = processor()
    explainer = Explainer(build_model(family, torch.float32), expected)
    attribution = explainer.explain(Picture(CATS, text=QUESTION, name="cats"), "grad_x_input")
    inputs = expected(
        images=[Image.fromarray(CATS)], text=[f"<image>{QUESTION}"], return_tensors="pt"
    )
    inputs.pop("labels", None)
    with torch.no_grad():
        bare = explainer.model(**inputs).logits[0, -1].numpy()
    assert_close(attribution.logits, bare, FLOAT32)
    assert attribution.row.ids == tuple(inputs["input_ids"][0].tolist())
    assert attribution.row.texts == ("cats", QUESTION)
    assert sum(attribution.row.special_tokens_mask) == pieces
    assert attribution.row.image.original_size == (60, 40)


def test_pixels_laid_out_by_qwens_processor_are_read_back_and_laid_out_the_same():
    reader = transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=1024
    )
    image = Image.fromarray(CATS)
    result = reader(images=[image], return_tensors="pt")
    values = build_patch_image(result, reader, image).pixels
    assert values.shape == (3, 24, 32)
    repeated = Explainer(
        build_model("qwen2-vl", torch.float32), make_image_tokenizer()
    ).runner.vision_inputs.build_pixel_arguments(torch.from_numpy(values)[None])
    assert torch.equal(repeated["pixel_values"], result["pixel_values"])
    assert torch.equal(repeated["image_grid_thw"], result["image_grid_thw"])


def test_a_picture_that_is_wider_than_high_keeps_its_grid():
    explainer = Explainer(build_model("qwen2-vl"), make_image_tokenizer())
    values = np.random.RandomState(0).standard_normal((3, 16, 32)).astype(np.float32)
    attribution = explainer.explain(Picture.from_pixels(values, text=QUESTION), "grad_x_input")
    assert attribution.patches().shape == (2, 4)
    assert attribution.row.image.patch_size == (8, 8)


def test_the_image_is_inserted_at_its_marker(llava):
    attribution = llava.explain(make_picture(text="what is <image> this ?"), "random")
    assert attribution.row.segment_names == ("image", "prompt", "prompt")
    assert attribution.row.image.token_positions == tuple(range(2, 18))
    assert attribution.row.texts == ("image 16 × 16", "what is ", " this ?")
    assert [piece for piece in attribution.row.surface_forms if "," not in piece] == [
        "what",
        "is",
        "this",
        "?",
    ]


def test_a_chat_begins_with_the_picture():
    template = (
        "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}<image> {% else %}"
        "{{ c.text }} {% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}on{% endif %}"
    )
    explainer = Explainer(build_model("llava"), make_image_tokenizer())
    chat = Chat([{"role": "user", "content": QUESTION}], template=template)
    attribution = explainer.explain(make_picture(text=chat), "random")
    assert attribution.row.segment_names == ("image", "user")
    assert attribution.row.surface_forms[16:] == ("what", "is", "this", "?", "on")
    assert attribution.row.special_tokens_mask == (False,) * 20 + (True,)


def test_a_mapping_of_an_image_and_a_text_is_read_too(llava):
    explainer = Explainer(llava.model.float(), llava_processor())
    from_mapping = explainer.explain({"image": CATS, "text": QUESTION}, "grad_x_input")
    from_picture = explainer.explain(Picture(CATS, text=QUESTION), "grad_x_input")
    llava.model.double()
    assert np.array_equal(from_mapping.scores, from_picture.scores)


def test_words_and_the_whole_picture_are_units(llava):
    by_word = llava.explain(make_picture(), ("occlusion", {"units": "word"}))
    assert len(by_word.group_by("word")) == 20
    by_part = llava.explain(make_picture(), ("occlusion", {"units": "document"}))
    assert [unit.name for unit in by_part.group_by("document")] == ["image", "prompt"]
    assert len({round(float(score), 12) for score in by_part.patches().ravel()}) == 1


def test_a_result_is_saved_and_explained_again(llava, tmp_path):
    attribution = llava.explain(make_picture(), "grad_x_input")
    attribution.save(tmp_path / "a.json")
    loaded = Attribution.load(tmp_path / "a.json")
    assert loaded.row.image.token_positions == tuple(range(16))
    assert np.array_equal(loaded.patches(), attribution.patches())
    assert_close(llava.explain(loaded.row, "grad_x_input").scores, attribution.scores, FLOAT64)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (QUESTION, "reads an image with a text"),
        (Picture.from_pixels(draw_pixels()), "reads an image with a text"),
        (make_picture(text="<image> or <image> ?"), "2 image markers"),
        (Picture(CATS, text=QUESTION), "has no image processor"),
        (make_picture(text="a cat " * 41), "reads at most 96"),
    ],
)
def test_invalid_image_prompts_are_refused(llava, inputs, words):
    with pytest.raises(BadInput, match=words):
        llava.explain(inputs, "random")


def test_an_image_classifier_refuses_a_text():
    from tests.helpers.image_models import build_model as classifier

    with pytest.raises(UnsupportedModel, match="does not read text"):
        Explainer(classifier("vit")).explain(make_picture())


def test_a_row_of_another_model_is_refused(llava):
    row = llava.explain(make_picture(), "random").row
    with pytest.raises(BadInput, match="not made for it"):
        Explainer(build_model("gemma3"), make_image_tokenizer()).explain(row, "random")


def test_crops_of_a_picture_are_refused():
    expected = idefics_processor()
    expected.image_processor.do_image_splitting = True
    expected.image_processor.size = {"longest_edge": 2 * SIDE}
    with expect_error(BadInput, "image-crops"):
        Explainer(build_model("idefics3"), expected).explain(Picture(CATS, text=QUESTION), "random")


# --- pictures of them, and the command line -------------------------------------------------------


@pytest.fixture(scope="module")
def pictured_attributions(llava):
    inputs = Picture.from_pixels(draw_pixels(), mean=0.5, std=0.2, text=QUESTION, name="<cat>.png")
    return llava.explain(inputs, ["grad_x_input", "attcat"])


def test_a_page_shows_the_heat_map_and_the_words_on_one_scale(pictured_attributions):
    html = render_page(pictured_attributions)
    assert "&lt;cat&gt;.png" in html
    assert "<cat>" not in html
    share = round_segment_shares(pictured_attributions[0])[0]
    assert share.name == "image"
    assert f"image · {share.percent} % of the total score" in html
    assert html.count('class="photo coarse over"') == 2 + len(pictured_attributions[1].layers)
    assert html.count("<title>row 1, column 2 ") == 2
    words = re.findall(r'<span class="token[^"]*" title="what', html)
    assert len(words) == 2
    largest = np.abs(pictured_attributions[0].scores).max()
    strengths = [
        score_to_step(float(score), largest) for score in pictured_attributions[0].patches().ravel()
    ]
    opacities = re.findall(r'fill-opacity="([\d.]+)"><title>', html)[:16]
    assert [float(item) for item in opacities] == [
        round(OVERLAY_OPACITY * abs(s) / NUM_STEPS, 3) for s in strengths
    ]


def test_the_terminal_shows_the_weight_of_the_picture_and_its_strongest_patches(
    pictured_attributions,
):
    console = Console(width=100, color_system=None, file=io.StringIO())
    show(pictured_attributions[0], console=console)
    text = console.file.getvalue()
    assert re.search(r"image \d+ % \([+-].*\)\n( +( ·|[+-]\d)){4}", text)
    assert re.search(r"prompt \d+ % .*what.* is.* this", text)
    assert re.search(r"patch \d,\d +[+-]", text)


def test_each_generated_token_has_a_separate_heat_map(llava):
    html = render_page(llava.explain(make_picture(), "grad_x_input", target=Continuation(ANSWER)))
    assert html.count('class="photo coarse over"') == 3
    assert "written · 0 % of the total score" in html


def test_a_figure_states_the_weight_of_the_image(pictured_attributions):
    titles = [axes.get_title() for axes in draw_image_heat_maps(pictured_attributions).axes[1:]]
    shares = [
        f"({100 * attribution.segment_shares()[0].share:.0f} % the image)"
        for attribution in pictured_attributions
    ]
    assert all(share in title for share, title in zip(shares, titles, strict=True))


def test_scores_after_the_vision_tower_get_a_note_and_perturbed_pixels_do_not(llava):
    notes = [
        attribution.notes
        for attribution in llava.explain(make_picture(), ["grad_x_input", "occlusion"])
    ]
    assert [any("vision tower" in note for note in expected) for expected in notes] == [True, False]


def test_trust_names_patches_and_words(llava):
    attribution = llava.explain(make_picture(), "grad_x_input", target=NextToken("dog"))
    assert re.search(
        r"patches and words|patch or word",
        assess_trust(llava, attribution).extras["trust"]["verdict"],
    )


def test_the_command_explains_an_image_with_a_text(tmp_path):
    build_model("llava", torch.float32).save_pretrained(tmp_path / "llava")
    llava_processor().save_pretrained(tmp_path / "llava")
    Image.fromarray(CATS).save(tmp_path / "cats.png")
    out = tmp_path / "out.json"
    path = CliRunner().invoke(
        app,
        ["explain", "--image", str(tmp_path / "cats.png"), QUESTION, "--model", str(tmp_path / "llava"),
         "--method", "grad_x_input", "--target", "cat", "--json", str(out)],
    )  # fmt: skip
    assert path.exit_code == 0, path.output
    assert re.search(r"image \d+ %", path.output)
    assert len(json.loads(out.read_text())["row"]["image"]["places"]) == 16
    alone = CliRunner().invoke(app, ["explain", QUESTION, "--model", str(tmp_path / "llava")])
    assert alone.exit_code == 2
    assert "Give --image FILE with the text" in " ".join(alone.output.split())
