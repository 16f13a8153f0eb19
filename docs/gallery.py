"""The pictures of the gallery and of the home page, each from a model that anyone has.

Three small models are embedded. The two that write, the one that sees and the one that does both are
taught here in minutes, on sentences and pictures drawn by rule, so that what decides is known. A browser
takes the pictures: this needs playwright, and ``CHROMIUM`` may name the browser's file.

    python docs/gallery.py            # all of them, into docs/images/gallery
    python docs/gallery.py pair qa    # some
    python docs/gallery.py truths     # the table of "A picture and a text", printed
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

import tokenlight
from tokenlight import Continuation, Explainer, Picture, Question
from tokenlight.datafiles import read_examples
from tokenlight.plots.html import render_page
from tokenlight.trust import assess_trust_of_all

FOLDER = Path(__file__).parent / "images" / "gallery"
REVIEWS = Path(tokenlight.__file__).parent / "bench" / "suites" / "quick.jsonl"


class Shot(NamedTuple):
    """A page to show, which part of it, and what is done to it first."""

    page: Path
    selector: str = "main"
    width: int = 920
    script: str = ""
    height: int | None = None


# --- models that are taught here ------------------------------------------------------------------


def build_tokenizer(sentences: list[str]) -> Any:
    """A tokenizer of the words in ``sentences``, with ``</s>`` behind each text."""
    vocabulary = [
        "<pad>",
        "</s>",
        "<unk>",
        *sorted({word for sentence in sentences for word in sentence.split()}),
    ]
    word_tokenizer = Tokenizer(
        WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>")
    )
    word_tokenizer.pre_tokenizer = Whitespace()
    word_tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    special_tokens = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer, model_max_length=48, **special_tokens
    )


def train(
    model: Any, batches: Iterator[dict[str, torch.Tensor]], steps: int, rate: float = 3e-3
) -> Any:
    """The model after so many steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _, batch in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


SPECIAL_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
ENGLISH = {
    "red": "rote",
    "small": "kleine",
    "old": "alte",
    "cat": "katze",
    "mouse": "maus",
    "lamp": "lampe",
}
VERBS = {"sees": "sieht", "finds": "findet", "likes": "mag"}


def draw_translation(generator: random.Random) -> tuple[str, str]:
    """An English sentence and a German one whose verb stands at the end."""
    subject_adjective, object_adjective = (generator.choice(list(ENGLISH)[:3]) for _ in "ab")
    subject, object_noun = (generator.choice(list(ENGLISH)[3:]) for _ in "ab")
    verb = generator.choice(list(VERBS))
    german = (
        ENGLISH[subject_adjective],
        ENGLISH[subject],
        "die",
        ENGLISH[object_adjective],
        ENGLISH[object_noun],
        VERBS[verb],
    )
    return (
        f"the {subject_adjective} {subject} {verb} the {object_adjective} {object_noun}",
        f"dass die {' '.join(german)}",
    )


def train_translator() -> Explainer:
    """A tiny BART that writes what ``translated`` says."""
    generator = random.Random(0)
    tokenizer = build_tokenizer([side for _ in range(500) for side in draw_translation(generator)])
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=48, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
        max_position_embeddings=48, decoder_start_token_id=1, forced_eos_token_id=None, dropout=0.0,
        **SPECIAL_IDS,
    )  # fmt: skip

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            pairs = [draw_translation(generator) for _ in range(64)]
            encoding = tokenizer(
                [a for a, _ in pairs], return_tensors="pt", return_token_type_ids=False
            )
            yield {
                **encoding,
                "labels": tokenizer([b for _, b in pairs], return_tensors="pt").input_ids,
            }

    model = transformers.BartForConditionalGeneration(config)
    return Explainer(train(model, batches(), 400), tokenizer)


LANGUAGES = {"France": "French", "Spain": "Spanish", "Poland": "Polish", "Greece": "Greek"}


def draw_story(generator: random.Random) -> str:
    """Where somebody lives, what they do, and the language that follows from the first."""
    name = generator.choice(["Anna", "Ben", "Cleo"])
    job = generator.choice(["cook", "pilot", "nurse"])
    country = generator.choice(list(LANGUAGES))
    return f"{name} lives in {country} and works as a {job} . {name} speaks {LANGUAGES[country]} at work ."


def train_storyteller() -> Explainer:
    """A tiny GPT-2 that writes what ``remembered`` says."""
    generator = random.Random(0)
    tokenizer = build_tokenizer([draw_story(generator) for _ in range(500)])
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=48, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, **SPECIAL_IDS,
    )  # fmt: skip

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            ids = tokenizer(
                [draw_story(generator) for _ in range(64)], return_tensors="pt"
            ).input_ids
            yield {"input_ids": ids, "labels": ids}

    return Explainer(train(transformers.GPT2LMHeadModel(config), batches(), 200), tokenizer)


COLOURS = ("red", "green", "blue")


def draw_spotted_images(
    generator: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Grey noise with one coloured patch each, and its colour."""
    pixels = np.repeat(generator.normal(0, 0.3, (count, 1, 48, 48)), 3, axis=1).astype(np.float32)
    colours = generator.integers(0, 3, count)
    for picture, (row, column), colour in zip(
        pixels, 8 * generator.integers(0, 6, (count, 2)), colours, strict=True
    ):
        picture[colour, row : row + 8, column : column + 8] += 2
    return pixels, colours


def train_image_classifier() -> Explainer:
    """A tiny ViT that names the colour of the patch."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    config = transformers.ViTConfig(
        image_size=48, patch_size=8, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, id2label={0: "red", 1: "green", 2: "blue"},
    )  # fmt: skip

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            pixels, colours = draw_spotted_images(generator, 64)
            yield {"pixel_values": torch.from_numpy(pixels), "labels": torch.from_numpy(colours)}

    return Explainer(train(transformers.ViTForImageClassification(config), batches(), 250))


def train_vision_language_model() -> Explainer:
    """A tiny LLaVA that tells the colour of the patch, or that there is one, as the question wants."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    questions = ("what colour is it ?", "is there a patch ?")
    tokenizer = build_tokenizer([*COLOURS, "yes", *questions])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {
        "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    }  # fmt: skip
    config = transformers.LlavaConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "pad_token_id": 0,
            **size,
        },
        vision_config={
            "model_type": "clip_vision_model",
            "image_size": 48,
            "patch_size": 8,
            **size,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            pixels, colours = draw_spotted_images(generator, 64)
            question_index = int(generator.integers(2))
            answers = ["yes" if question_index else COLOURS[colour] for colour in colours]
            texts = ["<image>" * 36 + f"{questions[question_index]} {answer}" for answer in answers]
            ids = tokenizer(texts, return_tensors="pt")["input_ids"][:, :-1]
            labels = torch.full_like(ids, -100)
            labels[:, -1] = ids[:, -1]
            yield {"input_ids": ids, "pixel_values": torch.from_numpy(pixels), "labels": labels}

    model = transformers.LlavaForConditionalGeneration(config)
    return Explainer(train(model, batches(), 400, 1e-3), tokenizer)


# --- pictures -------------------------------------------------------------------------------------


def load_embedded(task: str) -> Explainer:
    return Explainer.from_pretrained(f"tokenlight/{task}")


def save_page(attributions: Any, folder: Path) -> Path:
    """The page of an explanation or of a list of them."""
    path = folder / "page.html"
    path.write_text(render_page(attributions), encoding="utf-8")
    return path


def home(folder: Path) -> Shot:
    """One sentence, two methods, and how far each can be trusted."""
    explainer = load_embedded("sentiment")
    text = "The plot is thin, but the actors never let it become dull."
    attributions = assess_trust_of_all(
        explainer, explainer.explain(text, ["attnlrp", "integrated_gradients"])
    )
    return Shot(save_page(list(attributions), folder))


def classes(folder: Path) -> Shot:
    text = "The club sold its striker for a record fee."
    return Shot(save_page(load_embedded("topics").explain(text, "attnlrp", "all"), folder))


def layers(folder: Path) -> Shot:
    text = "The plot is thin, but the actors never let it become dull."
    open_details = "document.querySelector('details').open = true"
    return Shot(
        save_page(load_embedded("sentiment").explain(text, "attcat"), folder), script=open_details
    )


def qa(folder: Path) -> Shot:
    question = Question(
        question="Who designed the engine?",
        context="Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine.",
    )
    return Shot(save_page(load_embedded("qa").explain(question), folder))


def pair(folder: Path) -> Shot:
    texts = ("The club sold its striker.", "Shares rose by ten percent.")
    return Shot(save_page(load_embedded("topics").explain(texts), folder))


def continuation(folder: Path) -> Shot:
    prompt = "Anna lives in Greece and works as a pilot . Anna"
    return Shot(
        save_page(
            train_storyteller().explain(prompt, "attnlrp", Continuation(max_new_tokens=4)), folder
        ),
        width=1100,
    )


def translation(folder: Path) -> Shot:
    source = "the old cat sees the small mouse"
    attributions = train_translator().explain(
        source, "integrated_gradients", Continuation(max_new_tokens=8)
    )
    return Shot(save_page(attributions, folder), width=1200)


def image(folder: Path) -> Shot:
    pixels, _ = draw_spotted_images(np.random.default_rng(1000), 1)
    picture = Picture.from_pixels(pixels[0], mean=0.4, std=0.2)
    return Shot(save_page(train_image_classifier().explain(picture, ["attnlrp", "gae"]), folder))


def image_and_text(folder: Path) -> Shot:
    pixels, _ = draw_spotted_images(np.random.default_rng(1003), 1)
    pixel_options = {"mean": 0.4, "std": 0.2, "name": "one patch"}
    picture = Picture.from_pixels(pixels[0], text="what colour is it ?", **pixel_options)
    methods = ["attnlrp", ("occlusion", {"window": 1})]
    return Shot(save_page(train_vision_language_model().explain(picture, methods), folder))


def save_review_report(folder: Path) -> Path:
    explainer = load_embedded("sentiment")
    path = folder / "reviews.html"
    attributions = explainer.explain(pandas.read_json(REVIEWS, lines=True), "attnlrp")
    tokenlight.save(attributions, path)
    return path


def report(folder: Path) -> Shot:
    open_first_row = "document.querySelector('tbody button, tbody summary')?.click()"
    return Shot(save_review_report(folder), width=1100, height=1150, script=open_first_row)


def words(folder: Path) -> Shot:
    return Shot(save_review_report(folder), ".classes", 1000)


def evaluation(folder: Path) -> Shot:
    explainer = load_embedded("sentiment")
    texts = [example.text for example in read_examples(REVIEWS, limit=32)]
    attributions = explainer.explain(texts, ["attnlrp", "gae", "attcat", "random"])
    explainer.evaluate(attributions, ["aopc", "lodds"]).save(folder)
    return Shot(folder / "report.html", width=1100, height=1000)


PICTURES: dict[str, Callable[[Path], Shot]] = {
    build_shot.__name__: build_shot
    for build_shot in (
        home, classes, layers, qa, pair, continuation, translation, image, image_and_text, report, words,
        evaluation,
    )
}  # fmt: skip


def take_screenshot(browser: Any, shot: Shot) -> bytes:
    """What a reader sees, as a small file."""
    from PIL import Image

    page = browser.new_page(viewport={"width": shot.width, "height": shot.height or 800})
    page.goto(shot.page.as_uri())
    if shot.script:
        page.evaluate(shot.script)
    screenshot = (
        page.screenshot() if shot.height else page.locator(shot.selector).first.screenshot()
    )
    page.close()
    buffer = BytesIO()
    # 256 colours, none of them off by more than a few of 255 steps.
    quantize_options = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
    image = Image.open(BytesIO(screenshot)).convert("RGB").quantize(256, **quantize_options)
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main(names: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as player, tempfile.TemporaryDirectory() as folder:
        browser = player.chromium.launch(
            executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"]
        )
        for name in names or PICTURES:
            page_folder = Path(folder) / name
            page_folder.mkdir()
            path = FOLDER / f"{name}.png"
            path.write_bytes(take_screenshot(browser, PICTURES[name](page_folder)))
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")  # noqa: T201 - a script
        browser.close()


def print_pointing_table(count: int = 100) -> None:
    """How often the strongest patch is the coloured one, for the table of pictures.md."""
    explainer = train_vision_language_model()
    (pixels, colours) = draw_spotted_images(np.random.default_rng(77), count)
    cells = np.abs(pixels).max(axis=1).reshape(count, 6, 8, 6, 8).max(axis=(2, 4))
    coloured = cells.reshape(count, -1).argmax(axis=1)
    perturbation_methods = ["integrated_gradients", ("occlusion", {"window": 1})]
    methods = [
        *perturbation_methods,
        "attnlrp",
        "cp_lrp",
        "grad_x_input",
        "attcat",
        "gae",
        "rollout",
        "random",
    ]
    for fill in ("mean", "zero", "blur"):
        pictures = [
            Picture.from_pixels(image, text="what colour is it ?", fill=fill) for image in pixels
        ]
        fill_methods = methods if fill == "mean" else perturbation_methods
        attributions = explainer.explain(pictures, fill_methods)
        for index, method in enumerate(fill_methods):
            method_attributions = attributions[index :: len(fill_methods)]
            names = [a.prediction.label.strip() for a in method_attributions]
            accuracy = np.mean([name == COLOURS[i] for name, i in zip(names, colours, strict=True)])
            hit_rate = np.mean(
                [
                    a.patches().argmax() == i
                    for a, i in zip(method_attributions, coloured, strict=True)
                ]
            )
            share = np.mean([a.segment_shares()[0].share for a in method_attributions])
            print(fill, method, f"{hit_rate:.2f} {share:.2f}, right {accuracy:.2f}")  # noqa: T201 - a script


if __name__ == "__main__":
    print_pointing_table() if sys.argv[1:] == ["truths"] else main(sys.argv[1:])
