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

from tests.sights import (
    ANSWER,
    IMAGE,
    PATCH,
    QUESTION,
    SIDE,
    build,
    pictured,
    pixels,
    reading,
)
from tests.tolerance import FLOAT32, FLOAT64, EverythingInFloat64, close
from tokenlight import Attribution, Chat, Continuation, Explainer, NextToken, Picture
from tokenlight.cli.app import app
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.inputs.picture import seen
from tokenlight.plots.colours import STEPS, VEIL, step
from tokenlight.plots.figures import heat_maps
from tokenlight.plots.html import page
from tokenlight.plots.terminal import show
from tokenlight.trust import trusted

CATS = np.random.RandomState(3).randint(0, 255, (40, 60, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def llava():
    return Explainer(build("llava"), reading())


@pytest.fixture(scope="module")
def paligemma():
    return Explainer(build("paligemma"), reading())


def llava_processor():
    size = {"height": SIDE, "width": SIDE}
    reader = transformers.CLIPImageProcessorPil(size=size, crop_size=size)
    return transformers.LlavaProcessor(
        reader, reading(), patch_size=PATCH, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<image>",
    )  # fmt: skip


def paligemma_processor():
    reader = transformers.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    reader.image_seq_length = 16
    return transformers.PaliGemmaProcessor(reader, reading())


def idefics_processor():
    edge = {"longest_edge": SIDE}
    reader = transformers.Idefics3ImageProcessorPil(
        size=edge, max_image_size=edge, do_image_splitting=False
    )
    return transformers.Idefics3Processor(reader, reading(), image_seq_len=4)


# --- numbers, by hand -----------------------------------------------------------------------------


def merged(model, ids, values):
    """inputs_embeds as LLaVA and PaliGemma build them: the projector's vectors at the image's tokens."""
    words = model.get_input_embeddings()(torch.tensor([ids])).detach()
    inner = model.model
    tower = inner.vision_tower(torch.from_numpy(values)[None].double(), output_hidden_states=True)
    if hasattr(inner.multi_modal_projector, "linear"):
        vectors = inner.multi_modal_projector(tower.last_hidden_state)
    else:
        vectors = inner.multi_modal_projector(tower.hidden_states[-1][:, 1:])
    places = torch.tensor(ids) == IMAGE
    whole = words.clone()
    whole[0, places] = vectors[0].detach()
    return whole


def by_hand(model, vectors, target):
    """The logit of ``target`` behind the last vector: no pixels and no ids go in."""
    more = {}
    if model.config.model_type == "paligemma":  # its prompt is read in both directions
        more["token_type_ids"] = torch.zeros(vectors.shape[:2], dtype=torch.long)
    return model(inputs_embeds=vectors, **more).logits[:, -1, target]


@pytest.mark.parametrize("family", ["llava", "paligemma"])
def test_input_times_gradient_equals_a_computation_by_hand(family, request):
    explainer = request.getfixturevalue(family)
    model, target = explainer.model, 14
    with EverythingInFloat64():
        ours = explainer.explain(pictured(), "grad_x_input", target=NextToken(target))
        vectors = merged(model, ours.row.ids, pixels()).requires_grad_()
        logit = by_hand(model, vectors, target)
        (slope,) = torch.autograd.grad(logit.sum(), vectors)
    close(ours.scores, (slope * vectors).sum(dim=-1)[0].detach().numpy())
    close(ours.logits[target], logit.item())


@pytest.mark.parametrize("family", ["llava", "paligemma"])
def test_integrated_gradients_equal_a_computation_by_hand(family, request):
    """From padding and a picture of the mean colour to the question and the picture."""
    explainer, steps, target = request.getfixturevalue(family), 12, 14
    model = explainer.model
    with EverythingInFloat64():
        method = ("integrated_gradients", {"n_steps": steps})
        ours = explainer.explain(pictured(), method, target=NextToken(target))
        ids = ours.row.ids
        grey = np.broadcast_to(pixels().mean(axis=(1, 2), keepdims=True), pixels().shape).copy()
        text = merged(model, ids, pixels())
        begin = merged(model, [i if i == IMAGE else 0 for i in ids], grey)
        total = torch.zeros_like(text)
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
            point = (begin + float(node) * (text - begin)).requires_grad_()
            (slope,) = torch.autograd.grad(by_hand(model, point, target).sum(), point)
            total += float(weight) * slope
    close(ours.scores, (total * (text - begin)).sum(dim=-1)[0].detach().numpy())


def test_relevance_reaches_the_patches_and_stops_at_them(llava):
    """Relevance of a model without biases in its language model: what the logit is, arrives."""
    with EverythingInFloat64():
        found = llava.explain(pictured(), "attnlrp", target=NextToken("cat"))
    shares = {one.name: one.share for one in found.segment_shares()}
    assert set(shares) == {"image", "prompt"}
    assert min(shares.values()) > 0.05
    assert found.patches().shape == (4, 4)


def test_a_patch_that_shows_what_hides_it_has_no_score_and_the_bright_one_has_all(llava):
    for place in ((0, 3), (2, 1)):
        black = np.zeros((3, SIDE, SIDE), dtype=np.float32)
        row, column = (PATCH * i for i in place)
        black[:, row : row + PATCH, column : column + PATCH] = 1.0
        given = Picture.from_pixels(black, fill="zero", text=QUESTION)
        found = llava.explain(given, ("occlusion", {"window": 1})).patches()
        assert np.flatnonzero(np.abs(found) > 1e-12).tolist() == [place[0] * 4 + place[1]]


def planted():
    """A LLaVA whose vision tower mixes no places and whose language model looks everywhere alike; its
    answer ``red`` is what one bright patch writes into the last token, whatever its place."""
    model = build("llava")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "self_attn.out_proj" in name or "position_embedding" in name or "mlp.down" in name:
                weight.zero_()
            if "language_model" in name and ("q_proj" in name or "k_proj" in name):
                weight.zero_()
    return model


def bright(place):
    values = np.zeros((3, SIDE, SIDE), dtype=np.float32)
    row, column = (PATCH * i for i in divmod(place, 4))
    values[:, row : row + PATCH, column : column + PATCH] = 2.0
    return values


def test_the_one_patch_that_decides_comes_first_wherever_it_stands():
    model = planted()
    red, explainer = 13, Explainer(model, reading())
    ids = torch.tensor([[IMAGE] * 16 + [8, 9, 10, 11]])
    shown = [
        torch.from_numpy(np.stack([v])).double() for v in (bright(0), np.zeros_like(bright(0)))
    ]
    with torch.no_grad():
        last = [
            model.model(input_ids=ids, pixel_values=one).last_hidden_state[0, -1] for one in shown
        ]
        model.lm_head.weight[red] = (last[0] - last[1]) / (last[0] - last[1]).norm()
    methods = ["integrated_gradients", ("occlusion", {"window": 1, "baseline": "pad"}), "attnlrp"]
    first = np.zeros(len(methods))
    for place in range(16):
        given = Picture.from_pixels(bright(place), fill="zero", text=QUESTION)
        found = explainer.explain(given, methods, target=NextToken(red))
        first += [np.abs(a.patches()).argmax() == place for a in found]
    assert first.tolist() == [16, 16, 16]


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llava", "paligemma", "gemma3", "qwen2-vl"])
def test_each_token_of_a_continuation_has_a_row_of_patches_words_and_what_was_written(family):
    model = build(family)
    explainer = Explainer(model, reading())
    with EverythingInFloat64():
        found = explainer.explain(pictured(), "grad_x_input", target=Continuation(ANSWER))
        (whole,) = explainer.explain(
            pictured(), "grad_x_input", target=Continuation(ANSWER, together=True)
        )
    assert [a.target.name for a in found] == ["‘a’", "‘red’", "‘cat’"]
    assert [a.row.names for a in found][-1] == ("image", "prompt", "written")
    close(whole.scores, sum(np.pad(a.scores, (0, len(whole) - len(a))) for a in found))


def test_the_prompt_of_paligemma_is_read_in_both_directions_and_the_answer_forward(paligemma):
    (*_, last) = paligemma.explain(pictured(), "random", target=Continuation(ANSWER))
    assert last.row.token_types == (0,) * 20 + (1, 1)
    ids = torch.tensor([[*last.row.ids]])
    types = torch.tensor([[*last.row.token_types]])
    values = torch.from_numpy(pixels())[None].double()
    with torch.no_grad():
        bare = paligemma.model(input_ids=ids, pixel_values=values, token_type_ids=types).logits[
            0, -1
        ]
        forward = paligemma.model(input_ids=ids, pixel_values=values).logits[0, -1]
    close(last.logits, bare.numpy())
    assert (bare - forward).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llava", "paligemma", "gemma3", "qwen2-vl"])
def test_what_the_model_writes_by_itself_is_what_it_generates(family):
    model = build(family)
    with torch.no_grad():
        model.get_output_embeddings().weight[1] = 0  # it does not end before it begins
    explainer = Explainer(model, reading())
    row = explainer.explain(pictured(), "random").row
    found = explainer.explain(pictured(), "random", target=Continuation(tokens=3))
    arguments, _, _ = explainer.live.inputs([row])
    given = {k: v for k, v in arguments.items() if k != "at"}
    given |= explainer.live.sight.laid(given["pixel_values"])
    made = explainer.model.generate(**given, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert [a.target.terms[0][0][0] for a in found] == made[0, len(row) :].tolist()[: len(found)]


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
def test_a_processor_is_read_as_the_model_s_own_code_reads_it(family, processor, pieces):
    own = processor()
    explainer = Explainer(build(family, torch.float32), own)
    found = explainer.explain(Picture(CATS, text=QUESTION, name="cats"), "grad_x_input")
    given = own(images=[Image.fromarray(CATS)], text=[f"<image>{QUESTION}"], return_tensors="pt")
    given.pop("labels", None)
    with torch.no_grad():
        bare = explainer.model(**given).logits[0, -1].numpy()
    close(found.logits, bare, FLOAT32)
    assert found.row.ids == tuple(given["input_ids"][0].tolist())
    assert found.row.texts == ("cats", QUESTION)
    assert sum(found.row.special) == pieces
    assert found.row.image.size == (60, 40)


def test_pixels_laid_out_by_qwen_s_processor_are_read_back_and_laid_out_the_same():
    reader = transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=1024
    )
    image = Image.fromarray(CATS)
    found = reader(images=[image], return_tensors="pt")
    values = seen(found, reader, image).pixels
    assert values.shape == (3, 24, 32)
    again = Explainer(build("qwen2-vl", torch.float32), reading()).live.sight.laid(
        torch.from_numpy(values)[None]
    )
    assert torch.equal(again["pixel_values"], found["pixel_values"])
    assert torch.equal(again["image_grid_thw"], found["image_grid_thw"])


def test_a_picture_that_is_wider_than_high_keeps_its_grid():
    explainer = Explainer(build("qwen2-vl"), reading())
    values = np.random.RandomState(0).standard_normal((3, 16, 32)).astype(np.float32)
    found = explainer.explain(Picture.from_pixels(values, text=QUESTION), "grad_x_input")
    assert found.patches().shape == (2, 4)
    assert found.row.image.patch == (8, 8)


def test_the_picture_stands_where_the_person_put_its_mark(llava):
    found = llava.explain(pictured(text="what is <image> this ?"), "random")
    assert found.row.names == ("image", "prompt", "prompt")
    assert found.row.image.places == tuple(range(2, 18))
    assert found.row.texts == ("image 16 × 16", "what is ", " this ?")
    assert [piece for piece in found.row.surface if "," not in piece] == ["what", "is", "this", "?"]


def test_a_chat_begins_with_the_picture():
    template = (
        "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}<image> {% else %}"
        "{{ c.text }} {% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}on{% endif %}"
    )
    explainer = Explainer(build("llava"), reading())
    chat = Chat([{"role": "user", "content": QUESTION}], template=template)
    found = explainer.explain(pictured(text=chat), "random")
    assert found.row.names == ("image", "user")
    assert found.row.surface[16:] == ("what", "is", "this", "?", "on")
    assert found.row.special == (False,) * 20 + (True,)


def test_a_mapping_of_an_image_and_a_text_is_read_too(llava):
    explainer = Explainer(llava.model.float(), llava_processor())
    one = explainer.explain({"image": CATS, "text": QUESTION}, "grad_x_input")
    two = explainer.explain(Picture(CATS, text=QUESTION), "grad_x_input")
    llava.model.double()
    assert np.array_equal(one.scores, two.scores)


def test_words_and_the_whole_picture_are_units(llava):
    by_word = llava.explain(pictured(), ("occlusion", {"units": "word"}))
    assert len(by_word.by("word")) == 20
    by_part = llava.explain(pictured(), ("occlusion", {"units": "document"}))
    assert [one.name for one in by_part.by("document")] == ["image", "prompt"]
    assert len({round(float(score), 12) for score in by_part.patches().ravel()}) == 1


def test_a_result_is_saved_and_explained_again(llava, tmp_path):
    found = llava.explain(pictured(), "grad_x_input")
    found.save(tmp_path / "a.json")
    again = Attribution.load(tmp_path / "a.json")
    assert again.row.image.places == tuple(range(16))
    assert np.array_equal(again.patches(), found.patches())
    close(llava.explain(again.row, "grad_x_input").scores, found.scores, FLOAT64)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (QUESTION, "reads a picture with a text"),
        (Picture.from_pixels(pixels()), "reads a picture with a text"),
        (pictured(text="<image> or <image> ?"), "2 marks of a picture"),
        (Picture(CATS, text=QUESTION), "has no image processor"),
        (pictured(text="a cat " * 41), "reads at most 96"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(llava, given, words):
    with pytest.raises(BadInput, match=words):
        llava.explain(given, "random")


def test_a_classifier_of_pictures_reads_no_text_beside_them():
    from tests.vision import build as classifier

    with pytest.raises(UnsupportedModel, match="does not read text"):
        Explainer(classifier("vit")).explain(pictured())


def test_a_row_of_another_model_is_refused(llava):
    row = llava.explain(pictured(), "random").row
    with pytest.raises(BadInput, match="not made for it"):
        Explainer(build("gemma3"), reading()).explain(row, "random")


def test_crops_of_a_picture_are_refused():
    own = idefics_processor()
    own.image_processor.do_image_splitting = True
    own.image_processor.size = {"longest_edge": 2 * SIDE}
    with pytest.raises(BadInput, match="switch off its crops"):
        Explainer(build("idefics3"), own).explain(Picture(CATS, text=QUESTION), "random")


# --- pictures of them, and the command line -------------------------------------------------------


@pytest.fixture(scope="module")
def shown(llava):
    given = Picture.from_pixels(pixels(), mean=0.5, std=0.2, text=QUESTION, name="<cat>.png")
    return llava.explain(given, ["grad_x_input", "attcat"])


def test_a_page_shows_the_heat_map_and_the_words_on_one_scale(shown):
    html = page(shown)
    assert "&lt;cat&gt;.png" in html
    assert "<cat>" not in html
    share = shown[0].segment_shares()[0]
    assert share.name == "image"
    assert f"image · {100 * share.share:.0f} % of the weight" in html
    assert html.count('class="photo coarse over"') == 2 + len(shown[1].layers)
    assert html.count("<title>row 1, column 2 ") == 2
    words = re.findall(r'<span class="token[^"]*" title="what', html)
    assert len(words) == 2
    largest = np.abs(shown[0].scores).max()
    strengths = [step(float(score), largest) for score in shown[0].patches().ravel()]
    drawn = re.findall(r'fill-opacity="([\d.]+)"><title>', html)[:16]
    assert [float(one) for one in drawn] == [round(VEIL * abs(s) / STEPS, 3) for s in strengths]


def test_the_terminal_shows_the_weight_of_the_picture_and_its_strongest_patches(shown):
    console = Console(width=100, color_system=None, file=io.StringIO())
    show(shown[0], console=console)
    text = console.file.getvalue()
    assert re.search(r"image \d+ % \([+-].*\)\n( +( ·|[+-]\d)){4}", text)
    assert re.search(r"prompt \d+ % .*what.* is.* this", text)
    assert re.search(r"patch \d,\d +[+-]", text)


def test_each_written_token_has_a_heat_map_of_its_own(llava):
    html = page(llava.explain(pictured(), "grad_x_input", target=Continuation(ANSWER)))
    assert html.count('class="photo coarse over"') == 3
    assert "written · 0 % of the weight" in html


def test_a_figure_tells_what_the_image_weighs(shown):
    titles = [one.get_title() for one in heat_maps(shown).axes[1:]]
    shares = [f"({100 * a.segment_shares()[0].share:.0f} % the image)" for a in shown]
    assert all(share in title for share, title in zip(shares, titles, strict=True))


def test_scores_behind_the_vision_tower_say_so_and_those_of_changed_pixels_need_not(llava):
    notes = [a.notes for a in llava.explain(pictured(), ["grad_x_input", "occlusion"])]
    assert [any("vision tower" in note for note in own) for own in notes] == [True, False]


def test_trust_names_patches_and_words(llava):
    found = llava.explain(pictured(), "grad_x_input", target=NextToken("dog"))
    assert re.search(
        r"patches and words|patch or word", trusted(llava, found).extras["trust"]["verdict"]
    )


def test_the_command_explains_an_image_beside_a_text(tmp_path):
    build("llava", torch.float32).save_pretrained(tmp_path / "llava")
    llava_processor().save_pretrained(tmp_path / "llava")
    Image.fromarray(CATS).save(tmp_path / "cats.png")
    out = tmp_path / "out.json"
    done = CliRunner().invoke(
        app,
        ["explain", "--image", str(tmp_path / "cats.png"), QUESTION, "--model", str(tmp_path / "llava"),
         "--method", "grad_x_input", "--target", "cat", "--json", str(out)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert re.search(r"image \d+ %", done.output)
    assert len(json.loads(out.read_text())["row"]["image"]["places"]) == 16
    alone = CliRunner().invoke(app, ["explain", QUESTION, "--model", str(tmp_path / "llava")])
    assert alone.exit_code == 2
    assert "give --image FILE beside the text" in " ".join(alone.output.split())
