"""Pictures: read, cut into patches, hidden patch by patch, written and read back."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.expect import expect_error
from tests.helpers.image_models import (
    PATCH,
    SIDE,
    Processor,
    build_model,
    draw_images_with_patch,
    draw_pixels,
    make_pictures,
    train_patch_classifier,
)
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Chat, Contrast, Explainer, Picture, Question, Tokens, load, save
from tokenlight.data.attribution import Attribution
from tokenlight.data.image import MAX_PIXELS, OCCLUDED_ID
from tokenlight.errors import BadInput, DamagedFile, UnsupportedModel
from tokenlight.inputs.picture import load_picture
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds


@pytest.fixture(scope="module")
def explainer():
    return Explainer(build_model("vit"), Processor())


def draw_photo(seed=0):
    return np.random.default_rng(seed).integers(0, 256, size=(SIDE, SIDE, 3), dtype=np.uint8)


def test_every_kind_of_picture_reads_the_same(explainer, tmp_path):
    array = draw_photo()
    image = Image.fromarray(array)
    image.save(tmp_path / "photo.png")
    inputs = [
        array, image, Picture(array), Picture(image), tmp_path / "photo.png",
        Picture(str(tmp_path / "photo.png")), Picture((tmp_path / "photo.png").read_bytes()),
        Picture.from_pixels((array.transpose(2, 0, 1) / 255 - 0.5) / 0.25, mean=0.5, std=0.25),
    ]  # fmt: skip
    first, *others = (explainer.explain(image_input) for image_input in inputs)
    for other in others:
        np.testing.assert_allclose(other.scores, first.scores, rtol=1e-5, atol=1e-9)
        assert other.row.image == first.row.image
    assert others[3].text == "photo.png"


def test_an_array_of_pictures_is_a_list_of_them(explainer):
    attributions = explainer.explain(np.stack([draw_photo(0), draw_photo(1)]))
    assert isinstance(attributions, list)
    assert len(attributions) == 2
    assert attributions[0].row.fingerprint != attributions[1].row.fingerprint


def test_pictures_with_the_same_patches_are_distinguished(explainer):
    """All pictures of one size have the same token ids; nothing may take them for one another."""
    attributions = explainer.explain([draw_photo(0), draw_photo(1)], ["random", "attcat"])
    assert not np.array_equal(attributions[0].scores, attributions[2].scores)
    measured = explainer.evaluate(attributions, "deletion")
    assert [record.text_index for record in measured.records] == [0, 0, 1, 1]


def test_the_exif_orientation_is_applied(explainer, tmp_path):
    image = Image.fromarray(draw_photo())
    note = Image.Exif()
    note[0x0112] = 6  # turned to the right
    image.save(tmp_path / "held.png", exif=note)
    rotated = explainer.explain(tmp_path / "held.png").row.image.rgb
    np.testing.assert_array_equal(rotated, np.rot90(draw_photo(), -1))


@pytest.mark.parametrize("fill", ["mean", "zero", "blur"])
def test_a_hidden_patch_shows_the_filling_and_no_other_does(fill):
    runner = Explainer(build_model("vit")).runner
    row = runner.patch_inputs.encode_image(
        load_picture(make_pictures(1)[0], None, runner.patch_inputs.patch_size)
    )
    row = replace(row, image=replace(row.image, fill=fill))
    original = Perturber(row, ReplacementIds.from_model(runner))
    hidden = original.replace_tokens([1 + 6])  # [CLS] stands first: patch 6 is row 1, column 2
    values = runner.patch_inputs.build_pixels([hidden])[0].numpy()
    untouched = np.ones((SIDE, SIDE), dtype=bool)
    untouched[PATCH : 2 * PATCH, 2 * PATCH : 3 * PATCH] = False
    visible = draw_pixels(1)[0]
    np.testing.assert_array_equal(values[:, untouched], visible[:, untouched])
    if fill == "blur":
        blurred = values[:, ~untouched]
        assert blurred.std() < 0.3 * visible[:, ~untouched].std()
    else:
        colour = visible.mean(axis=(1, 2)) if fill == "mean" else np.zeros(3)
        expected = np.broadcast_to(colour[:, None], (3, PATCH * PATCH))
        np.testing.assert_allclose(values[:, ~untouched], expected, rtol=1e-5, atol=1e-7)


def test_the_engine_gives_the_bare_models_logits_of_filled_pictures(explainer):
    """The slow twin: patches are pasted into the pixels by hand, one picture at a time."""
    runner = explainer.runner
    generator = np.random.default_rng(5)
    variants = []
    expected = []
    for number, picture in enumerate(make_pictures(3)):
        row = runner.patch_inputs.encode_image(
            load_picture(picture, None, runner.patch_inputs.patch_size)
        )
        original = Perturber(row, ReplacementIds.from_model(runner))
        for _ in range(7):
            masked_patches = np.flatnonzero(generator.random(16) < 0.4)
            variants.append(original.hide_tokens(1 + masked_patches))
            values = draw_pixels(3)[number].copy()
            mean = values.mean(axis=(1, 2))
            for patch in masked_patches:
                top = PATCH * (patch // 4)
                left = PATCH * (patch % 4)
                values[:, top : top + PATCH, left : left + PATCH] = mean[:, None, None]
            with torch.no_grad():
                outputs = runner.model(pixel_values=torch.from_numpy(values).double()[None])
            expected.append(outputs.logits[0].numpy())
    logits = list(stream_logits(runner, variants, batch_tokens=100))
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_occlusion_is_the_fall_when_one_patch_shows_the_filling(explainer):
    picture = make_pictures(1)[0]
    attribution = explainer.explain(picture, ("occlusion", {"window": 1}))
    runner = explainer.runner
    original = Perturber(attribution.row, ReplacementIds.from_model(runner))
    variants = [
        original.make_unperturbed(),
        *(original.replace_tokens([patch]) for patch in range(1, 17)),
    ]
    logits = np.array(list(stream_logits(runner, variants)))[:, attribution.target.index]
    np.testing.assert_allclose(attribution.patches().ravel(), logits[0] - logits[1:], atol=1e-9)


def test_pictures_of_different_sizes_do_not_change_each_others_scores():
    """DINOv2 reads any size: each size goes through by itself."""
    explainer = Explainer(build_model("dinov2"))
    generator = np.random.default_rng(0)
    square, wide = (
        Picture.from_pixels(generator.normal(size=(3, SIDE, width))) for width in (SIDE, 2 * SIDE)
    )
    together = explainer.explain([square, wide, square])
    assert [attribution.patches().shape for attribution in together] == [(4, 4), (4, 8), (4, 4)]
    np.testing.assert_allclose(together[1].scores, explainer.explain(wide).scores, atol=1e-12)


def test_a_stream_of_pictures_is_answered_one_by_one(explainer):
    attribution = explainer.explain(iter([draw_photo(0), draw_photo(1)]), "gae")
    first = next(attribution)
    np.testing.assert_allclose(
        first.scores, explainer.explain(draw_photo(0), "gae").scores, atol=1e-9
    )
    assert len(list(attribution)) == 1


def test_a_model_that_was_cast_is_given_pixels_of_its_new_kind():
    model = build_model("vit", torch.float32)
    explainer = Explainer(model)
    before = explainer.explain(make_pictures(1)[0], "raw_att")
    model.to(torch.bfloat16)
    after = explainer.explain(make_pictures(1)[0], "raw_att")
    np.testing.assert_allclose(after.scores, before.scores, atol=0.02)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_pixels", [False, True])
def test_a_saved_picture_can_be_drawn_and_measured_again(explainer, tmp_path, from_pixels):
    picture = (
        make_pictures(1)[0] if from_pixels else Picture(draw_photo(), fill="blur", name="a <b>.png")
    )
    attribution = explainer.explain(picture)
    save([attribution], tmp_path / "a.json")
    (back,) = load(tmp_path / "a.json")
    assert back.row == attribution.row
    assert back.row.image.name == attribution.row.image.name
    np.testing.assert_allclose(back.row.image.pixels, attribution.row.image.pixels, atol=1e-5)
    np.testing.assert_array_equal(back.row.image.rgb, attribution.row.image.rgb)
    actual = explainer.evaluate(attribution, "deletion").summary
    expected = explainer.evaluate(back, "deletion").summary
    assert actual["deletion"]["mean"] == pytest.approx(expected["deletion"]["mean"], abs=1e-6)
    repeated = explainer.explain(back.row)
    np.testing.assert_allclose(repeated.scores, attribution.scores, rtol=1e-4, atol=1e-7)


def test_a_damaged_picture_in_a_file_is_refused(explainer, tmp_path):
    save([explainer.explain(draw_photo())], tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    content["row"]["image"]["png"] = content["row"]["image"]["png"][:80]
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DamagedFile):
        load(tmp_path / "a.json")


def make_bomb(across, down, kind="PNG"):
    """A file of some kilobytes that is a huge picture when it is unpacked."""
    into = io.BytesIO()
    Image.new("1", (across, down)).save(into, format=kind)
    return into.getvalue()


@pytest.mark.parametrize("side", [4100, 10_000, 14_000])
def test_a_stored_picture_is_not_unpacked_before_its_size_is_known(explainer, side, monkeypatch):
    """The last two are what Pillow warns of and refuses."""
    values = explainer.explain(draw_photo()).to_dict()
    values["row"]["image"]["png"] = base64.b64encode(make_bomb(side, side)).decode()
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("it was unpacked"))
    with pytest.raises(DamagedFile, match="pixels"):
        Attribution.from_dict(values)
    assert side * side > MAX_PIXELS


def test_a_stored_picture_is_a_png_and_nothing_else(explainer):
    values = explainer.explain(draw_photo()).to_dict()
    values["row"]["image"]["png"] = base64.b64encode(make_bomb(SIDE, SIDE, "TIFF")).decode()
    with expect_error(DamagedFile, "image-unreadable"):
        Attribution.from_dict(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("patch", [0, 4]),
        ("patch", [5, 4]),
        ("patch", [-4, -4]),
        ("fill", "black"),
        ("std", [0.0, 1.0, 1.0]),
        ("std", [1e-300, 1.0, 1.0]),
        ("mean", [0.5, 0.5]),
        ("mean", []),
        ("pixels", base64.b64encode(b"\0\0\xc0\x7f" * 3 * SIDE * SIDE).decode()),
    ],
)
def test_an_impossible_stored_picture_is_refused(explainer, field, value):
    values = explainer.explain(draw_photo()).to_dict()
    values["row"]["image"][field] = value
    with pytest.raises(DamagedFile):
        Attribution.from_dict(values)


@pytest.mark.parametrize("side", [10_000, 14_000])
def test_a_huge_picture_of_a_small_file_is_refused(explainer, tmp_path, side, monkeypatch):
    (tmp_path / "huge.png").write_bytes(make_bomb(side, side))
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(BadInput, match=r"huge\.png .*pixels"):
        explainer.explain(tmp_path / "huge.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_that_pillow_only_warns_of_is_refused_too(explainer, tmp_path):
    (tmp_path / "huge.png").write_bytes(make_bomb(10_000, 10_000))
    with expect_error(
        BadInput, "image-too-large", mentions="10000 × 10000 pixels, but at most 89,478,485"
    ):
        explainer.explain(tmp_path / "huge.png")


# --- a folder -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A tiny ViT with its processor, as a fine-tuned checkpoint is saved."""
    build_model("vit", torch.float32).save_pretrained(tmp_path / "vit")
    settings = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True,
        "do_normalize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 2,
        "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.25] * 3,
    }  # fmt: skip
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    return tmp_path / "vit"


def test_a_folder_is_loaded_with_its_processor(folder):
    explainer = Explainer.from_pretrained(folder)
    array = np.random.default_rng(0).integers(0, 256, size=(50, 40, 3), dtype=np.uint8)
    attribution = explainer.explain(array)
    assert attribution.row.image.original_size == (40, 50)
    assert attribution.row.image.rgb.shape == (SIDE, SIDE, 3)
    resized = np.asarray(Image.fromarray(array).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(attribution.row.image.rgb, resized)


def test_a_folder_without_processor_is_refused(folder):
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(DamagedFile, match="processor.save_pretrained"):
        Explainer.from_pretrained(folder)


# --- trust and choice -----------------------------------------------------------------------------


def test_trust_occludes_patches_and_states_it():
    from tokenlight.evaluation.trust import assess_trust

    explainer = train_patch_classifier()
    attribution = assess_trust(
        explainer,
        explainer.explain(draw_images_with_patch(1, seed=3)[0][0], "attnlrp"),
        max_orders=6,
    )
    trust = attribution.extras["trust"]
    assert "with the 3 top patches (" in trust["verdict"]
    assert [removal["removal"] for removal in trust["removals"]] == ["mean", "blur", "zero"]
    assert "same alone and in a batch" in trust["health_line"]
    assert trust["after"] < trust["before"]


def test_method_best_measures_occluded_patches(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    from tokenlight.evaluation.choose import choose_best

    result, _, _ = draw_images_with_patch(6, seed=5)
    choice = choose_best(train_patch_classifier(), list(result), candidates=["gae", "random"])
    assert choice.method == "gae"


# --- wrong uses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    ["a text", ("a", "pair"), Question("who?", "me"), Chat([{"role": "user", "content": "hi"}]),
     Tokens.from_ids([[1, 0, 1]])],
)  # fmt: skip
def test_an_image_model_reads_no_text(explainer, inputs):
    with pytest.raises(
        UnsupportedModel, match=r"does not read text: it classifies images as LABEL_0"
    ):
        explainer.explain(inputs)


@pytest.mark.parametrize("inputs", [draw_photo(), Image.fromarray(draw_photo()), Path("cat.png")])
def test_a_text_model_sees_no_images(inputs):
    with pytest.raises(
        UnsupportedModel, match="does not read images: it is a classifier with the labels"
    ):
        Explainer(tiny_bert(), tiny_tokenizer()).explain(inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (draw_photo().astype(float), r"dtype float64 .*\. Give a uint8"),
        (draw_photo().transpose(2, 0, 1), r"shape \(3, 16, 16\)"),
        (Path("no such.png"), "cannot be read as an image: .*No such file"),
        (Path(__file__), "cannot be read as an image"),
        (Picture(3.5), "Cannot read an image from float"),
        (torch.zeros(1, 3, SIDE, SIDE), r"Picture.from_pixels"),
        (Picture.from_pixels(np.zeros((3, 10, 10))), "not a multiple of the patch size, 4 × 4"),
        (Picture.from_pixels(np.zeros((3, 20, 20))), "does not read images of 20 × 20"),
        (Picture.from_pixels(np.zeros((1, SIDE, SIDE))), "and 1 channels: .*3"),
    ],
)
def test_invalid_pictures_are_refused(explainer, inputs, message):
    with pytest.raises(BadInput, match=message):
        explainer.explain(inputs)


def test_invalid_pixel_values_are_refused():
    with expect_error(BadInput, "pixel-values"):
        Picture.from_pixels(np.zeros((2, 3, SIDE, SIDE)))
    with expect_error(BadInput, "pixel-values"):
        Picture.from_pixels(np.full((3, SIDE, SIDE), np.nan))
    with pytest.raises(BadInput, match="fill='black'"):
        Picture(draw_photo(), fill="black")


def test_without_a_processor_a_picture_is_refused():
    with expect_error(BadInput, "image-processor-missing"):
        Explainer(build_model("vit")).explain(draw_photo())


def test_a_processor_that_refuses_is_quoted(explainer):
    class Broken(Processor):
        def __call__(self, images, return_tensors):  # noqa: ARG002 - refuses whatever comes
            raise ValueError("too dark")

    with expect_error(BadInput, "image-refused", mentions="too dark"):
        explainer.explain(Picture(draw_photo(), processor=Broken()))


def test_patches_are_hidden_never_deleted(explainer):
    attribution = explainer.explain(draw_photo())
    metrics = ["aopc", ("aopc", {"perturb": "mask"})]
    deleted, masked = explainer.evaluate(attribution, metrics).summary.values()
    assert deleted["count"] == 1
    assert deleted["mean"] == masked["mean"]
    original = Perturber(attribution.row, ReplacementIds.from_model(explainer.runner))
    with pytest.raises(BadInput, match="cannot be deleted"):
        original.delete_tokens([3])


def test_the_models_own_tokens_cannot_be_hidden(explainer):
    attribution = explainer.explain(draw_photo())
    skipped = ("deletion", {"protect_special": False})
    with pytest.raises(BadInput, match="belong to the model"):
        explainer.evaluate(attribution, [skipped])
    with pytest.raises(BadInput, match="belong to the model"):
        explainer.explain(draw_photo(), ("occlusion", {"special": "replace"}))


def test_options_of_texts_are_refused_for_pictures(explainer):
    with pytest.raises(BadInput, match="explain_mask"):
        explainer.explain(draw_photo(), explain_mask="sep")


def test_a_row_cut_for_another_model_is_refused(explainer):
    other = load_picture(make_pictures(1)[0], None, (8, 8))
    row = explainer.explain(draw_photo()).row
    from dataclasses import replace

    with pytest.raises(BadInput, match="for another model"):
        explainer.explain(replace(row, image=other))


def test_classes_can_be_compared(explainer):
    (item, two, joint) = (
        explainer.explain(draw_photo(), "cat", target)
        for target in (0, 1, Contrast("LABEL_0", "LABEL_1"))
    )
    np.testing.assert_allclose(joint.scores, item.scores - two.scores, atol=1e-9)


def test_ids_mark_visible_and_occluded_patches(explainer):
    row = explainer.explain(draw_photo()).row
    hidden = Perturber(row, ReplacementIds.from_model(explainer.runner)).hide_tokens([1, 2])
    assert OCCLUDED_ID in hidden.ids
    assert hidden.attention_mask.all()


def test_a_file_that_may_start_a_program_is_not_opened(explainer, tmp_path):
    path = tmp_path / "drawing.eps"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with expect_error(BadInput, "image-unreadable"):
        explainer.explain(Picture(path))
