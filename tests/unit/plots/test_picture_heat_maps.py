"""Heat maps over pictures: in HTML, in the terminal, as a PNG, and from the command line."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from tests.helpers.expect import expect_error
from tests.helpers.image_models import (
    Processor,
    build_model,
    draw_images_with_patch,
    train_patch_classifier,
)
from tests.helpers.terminal import render_terminal
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Picture, save
from tokenlight.errors import BadInput
from tokenlight.plots.figures import draw_image_heat_maps
from tokenlight.plots.html import render_fragment, render_page

NASTY = '"><script>alert(1)</script>.png'


@pytest.fixture(scope="module")
def attributions():
    picture = Picture(draw_images_with_patch(1, seed=2)[0][0], name=NASTY)
    return train_patch_classifier().explain(picture, ["attcat", "gae"])


def find_rectangles(html):
    """Each heat map of the page as (x, y, opacity, hover) rectangles."""
    maps = re.findall(r'<svg class="photo coarse over".*?</svg>', html, re.S)
    pattern = re.compile(
        r'<rect x="(\d+)" y="(\d+)" width="4" height="4"(?: class="(\w+)")? '
        r'fill-opacity="([\d.]+)">(?:<title>(.*?)</title>)?</rect>'
    )
    return [pattern.findall(heat_map) for heat_map in maps]


def test_a_page_holds_the_image_once_and_one_rectangle_per_patch(attributions):
    html = render_page(attributions)
    stored = re.findall(r'href="data:image/png;base64,([^"]+)"', html)
    assert len(stored) == 1
    with Image.open(io.BytesIO(base64.b64decode(stored[0]))) as image:
        np.testing.assert_array_equal(np.asarray(image), attributions[0].row.image.rgb)
    maps = find_rectangles(html)
    layers = 0 if attributions[0].layers is None else len(attributions[0].layers)
    assert len(maps) == 2 + layers
    for heat_map, attribution in zip(maps[:2], attributions, strict=True):
        values = attribution.patches()
        assert len(heat_map) == values.size
        largest = np.abs(values).max()
        for x, y, look, opacity, hover in heat_map:
            row = int(y) // 4
            column = int(x) // 4
            value = values[row, column]
            assert hover.startswith(f"row {row}, column {column}  ")
            assert float(hover.split()[-1].replace("−", "-")) == pytest.approx(value, rel=1e-2)
            assert float(opacity) == pytest.approx(0.78 * abs(value) / largest, abs=0.04)
            assert look == "" or (look == "f12") == (value > 0)


def test_the_page_runs_nothing_and_fetches_nothing(attributions):
    html = render_page(attributions)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "img-src data:;" in html
    outside = re.findall(r'(?:href|src)="(?!data:image/png|#photo-)[^"]*"', html)
    assert not outside
    assert not re.search(r'\sstyle="', html)
    assert "<svg" in render_fragment(attributions)


def test_a_page_of_texts_allows_no_images():
    texts = Explainer(tiny_bert(), tiny_tokenizer()).explain("a good film")
    assert "img-src" not in render_page(texts)


def test_the_terminal_shows_signs_and_tenths_without_colours(attributions):
    text = render_terminal(attributions[1:], width=80, layers=True)
    grid = [
        line.strip()
        for line in text.splitlines()
        if re.fullmatch(r"( {2}.[\d·] ?)( ?.[\d·] ?){3}", line)
    ]
    values = attributions[1].patches()
    expected = []
    for line in values:
        cells = (round(10 * abs(v) / np.abs(values).max()) for v in line)
        expected.append(
            [
                f"{'+' if v > 0 else '-'}{min(9, t)}" if t else "·"
                for v, t in zip(line, cells, strict=True)
            ]
        )
    assert [line.split() for line in grid[:4]] == expected


def test_the_terminal_shows_coloured_blocks(attributions):
    assert "\x1b[" in render_terminal(attributions, colours="truecolor", width=80, layers=True)


def test_a_figure_is_a_png_of_all_methods(attributions, tmp_path):
    save(attributions, tmp_path / "maps.png")
    with Image.open(tmp_path / "maps.png") as image:
        assert image.format == "PNG"
        assert image.width > 2 * image.height  # the picture and two maps beside it


def test_a_text_has_no_heat_map(tmp_path):
    attribution = Explainer(tiny_bert(), tiny_tokenizer()).explain("a good film")
    with expect_error(BadInput, "heat-map-of-text"):
        draw_image_heat_maps([attribution])
    assert attribution.save(tmp_path / "text.png").exists()


def test_options_about_words_do_not_apply_to_pictures(attributions):
    assert attributions[0].words() == [
        (piece, pytest.approx(score))
        for piece, score in zip(
            attributions[0].row.pieces[1:], attributions[0].scores[1:], strict=True
        )
    ]
    assert "whole words" not in render_page(attributions)


def test_every_class_has_its_map():
    attributions = train_patch_classifier().explain(
        draw_images_with_patch(1, seed=2)[0][0], target="all"
    )
    assert len(attributions) == 4
    assert (
        len(
            [
                heat_map
                for heat_map in find_rectangles(render_page(attributions))
                if len(heat_map) == 16 and heat_map[0][4]
            ]
        )
        >= 4
    )


# --- command line ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    train_patch_classifier().model.save_pretrained(tmp_path / "vit")
    settings = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True,
        "do_normalize": True, "size": {"height": 16, "width": 16}, "resample": 2,
        "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.25] * 3,
    }  # fmt: skip
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    Image.fromarray(draw_images_with_patch(1, seed=2)[0][0]).save(tmp_path / "spot.png")
    return tmp_path


def run(*arguments):
    from typer.testing import CliRunner

    from tokenlight.cli.app import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_explains_an_image_and_writes_files(folder):
    files = {ending: folder / f"out.{ending}" for ending in ("html", "png", "json", "csv")}
    process = run(
        "explain", "--image", folder / "spot.png", "--model", folder / "vit", "--method", "gae",
        "--fill", "blur", *(part for ending, file in files.items() for part in (f"--{ending}", file)),
    )  # fmt: skip
    assert process.exit_code == 0, process.output
    assert "prediction" in process.output
    assert all(file.stat().st_size > 500 for file in files.values())
    assert json.loads(files["json"].read_text())["row"]["image"]["fill"] == "blur"


def test_the_doctor_tries_every_method_on_a_picture(folder):
    process = run("doctor", folder / "vit")
    assert process.exit_code == 0, process.output
    assert "it classifies images as" in process.output
    assert re.search(r"ok\s+attcat", process.output)
    assert re.search(r"no\s+decoded_gradcam", process.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--image", "spot.png"],
            "--image spot.png needs --model with an image classifier",
        ),
        (["a text", "--image", "spot.png", "--model", "vit"], "does not read text"),
        (
            ["--image", "spot.png", "--model", "vit", "--pair", "b"],
            "--image cannot be combined with --pair. Leave one of them out.",
        ),
        (["--file", "a.csv", "--png", "out.png"], "--file cannot be combined with --png"),
        (["--image", "none.png", "--model", "vit"], "none.png cannot be read as an image"),
        (
            ["a text", "--model", "vit"],
            "does not read text: it classifies images as red, green, blue",
        ),
    ],
)
def test_invalid_uses_give_a_one_line_error(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    process = run("explain", *arguments)
    assert process.exit_code == 2
    assert message in " ".join(process.output.split())


def test_a_picture_for_a_tiny_model_needs_no_file():
    """Arrays and PIL images go in as they are."""
    explainer = Explainer(build_model("deit"), Processor())
    assert explainer.explain(
        Image.fromarray(draw_images_with_patch(1, seed=2)[0][0])
    ).patches().shape == (4, 4)
