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
from tokenlight.trust import assess_all

PLACE = Path(__file__).parent / "images" / "gallery"
REVIEWS = Path(tokenlight.__file__).parent / "bench" / "suites" / "quick.jsonl"


class Shot(NamedTuple):
    """A page to show, which part of it, and what is done to it first."""

    page: Path
    part: str = "main"
    width: int = 920
    first: str = ""
    height: int | None = None


# --- models that are taught here ------------------------------------------------------------------


def words_only(sentences: list[str]) -> Any:
    """A tokenizer of the words in ``sentences``, with ``</s>`` behind each text."""
    known = ["<pad>", "</s>", "<unk>", *sorted({word for one in sentences for word in one.split()})]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=48, **special
    )


def taught(
    model: Any, batches: Iterator[dict[str, torch.Tensor]], steps: int, rate: float = 3e-3
) -> Any:
    """The model after so many steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _, batch in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


SIZE = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
ENGLISH = {
    "red": "rote",
    "small": "kleine",
    "old": "alte",
    "cat": "katze",
    "mouse": "maus",
    "lamp": "lampe",
}
VERBS = {"sees": "sieht", "finds": "findet", "likes": "mag"}


def translated(chance: random.Random) -> tuple[str, str]:
    """An English sentence and a German one whose verb stands at the end."""
    one, other = (chance.choice(list(ENGLISH)[:3]) for _ in "ab")
    who, what = (chance.choice(list(ENGLISH)[3:]) for _ in "ab")
    verb = chance.choice(list(VERBS))
    german = (ENGLISH[one], ENGLISH[who], "die", ENGLISH[other], ENGLISH[what], VERBS[verb])
    return f"the {one} {who} {verb} the {other} {what}", f"dass die {' '.join(german)}"


def translator() -> Explainer:
    """A tiny BART that writes what ``translated`` says."""
    chance = random.Random(0)
    tokenizer = words_only([side for _ in range(500) for side in translated(chance)])
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=48, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
        max_position_embeddings=48, decoder_start_token_id=1, forced_eos_token_id=None, dropout=0.0,
        **SIZE,
    )  # fmt: skip

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            pairs = [translated(chance) for _ in range(64)]
            read = tokenizer(
                [a for a, _ in pairs], return_tensors="pt", return_token_type_ids=False
            )
            yield {
                **read,
                "labels": tokenizer([b for _, b in pairs], return_tensors="pt").input_ids,
            }

    model = transformers.BartForConditionalGeneration(config)
    return Explainer(taught(model, batches(), 400), tokenizer)


PLACES = {"France": "French", "Spain": "Spanish", "Poland": "Polish", "Greece": "Greek"}


def remembered(chance: random.Random) -> str:
    """Where somebody lives, what they do, and the language that follows from the first."""
    who, job = chance.choice(["Anna", "Ben", "Cleo"]), chance.choice(["cook", "pilot", "nurse"])
    place = chance.choice(list(PLACES))
    return f"{who} lives in {place} and works as a {job} . {who} speaks {PLACES[place]} at work ."


def storyteller() -> Explainer:
    """A tiny GPT-2 that writes what ``remembered`` says."""
    chance = random.Random(0)
    tokenizer = words_only([remembered(chance) for _ in range(500)])
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=48, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, **SIZE,
    )  # fmt: skip

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            ids = tokenizer([remembered(chance) for _ in range(64)], return_tensors="pt").input_ids
            yield {"input_ids": ids, "labels": ids}

    return Explainer(taught(transformers.GPT2LMHeadModel(config), batches(), 200), tokenizer)


COLOURS = ("red", "green", "blue")


def spotted(chance: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey noise with one coloured patch each, and its colour."""
    pixels = np.repeat(chance.normal(0, 0.3, (count, 1, 48, 48)), 3, axis=1).astype(np.float32)
    colours = chance.integers(0, 3, count)
    for picture, (row, column), colour in zip(
        pixels, 8 * chance.integers(0, 6, (count, 2)), colours, strict=True
    ):
        picture[colour, row : row + 8, column : column + 8] += 2
    return pixels, colours


def viewer() -> Explainer:
    """A tiny ViT that names the colour of the patch."""
    torch.manual_seed(0)
    chance = np.random.default_rng(0)
    config = transformers.ViTConfig(
        image_size=48, patch_size=8, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, id2label={0: "red", 1: "green", 2: "blue"},
    )  # fmt: skip

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            pixels, colours = spotted(chance, 64)
            yield {"pixel_values": torch.from_numpy(pixels), "labels": torch.from_numpy(colours)}

    return Explainer(taught(transformers.ViTForImageClassification(config), batches(), 250))


def asked() -> Explainer:
    """A tiny LLaVA that tells the colour of the patch, or that there is one, as the question wants."""
    torch.manual_seed(0)
    chance = np.random.default_rng(0)
    questions = ("what colour is it ?", "is there a patch ?")
    tokenizer = words_only([*COLOURS, "yes", *questions])
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
            pixels, found = spotted(chance, 64)
            number = int(chance.integers(2))
            said = ["yes" if number else COLOURS[colour] for colour in found]
            texts = ["<image>" * 36 + f"{questions[number]} {one}" for one in said]
            ids = tokenizer(texts, return_tensors="pt")["input_ids"][:, :-1]
            labels = torch.full_like(ids, -100)
            labels[:, -1] = ids[:, -1]
            yield {"input_ids": ids, "pixel_values": torch.from_numpy(pixels), "labels": labels}

    model = transformers.LlavaForConditionalGeneration(config)
    return Explainer(taught(model, batches(), 400, 1e-3), tokenizer)


# --- pictures -------------------------------------------------------------------------------------


def embedded(task: str) -> Explainer:
    return Explainer.from_pretrained(f"tokenlight/{task}")


def saved(found: Any, folder: Path) -> Path:
    """The page of an explanation or of a list of them."""
    place = folder / "page.html"
    place.write_text(render_page(found), encoding="utf-8")
    return place


def home(folder: Path) -> Shot:
    """One sentence, two methods, and how far each can be trusted."""
    explainer = embedded("sentiment")
    text = "The plot is thin, but the actors never let it become dull."
    found = assess_all(explainer, explainer.explain(text, ["attnlrp", "integrated_gradients"]))
    return Shot(saved(list(found), folder))


def classes(folder: Path) -> Shot:
    text = "The club sold its striker for a record fee."
    return Shot(saved(embedded("topics").explain(text, "attnlrp", "all"), folder))


def layers(folder: Path) -> Shot:
    text = "The plot is thin, but the actors never let it become dull."
    opened = "document.querySelector('details').open = true"
    return Shot(saved(embedded("sentiment").explain(text, "attcat"), folder), first=opened)


def qa(folder: Path) -> Shot:
    asked = Question(
        question="Who designed the engine?",
        context="Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine.",
    )
    return Shot(saved(embedded("qa").explain(asked), folder))


def pair(folder: Path) -> Shot:
    texts = ("The club sold its striker.", "Shares rose by ten percent.")
    return Shot(saved(embedded("topics").explain(texts), folder))


def continuation(folder: Path) -> Shot:
    prompt = "Anna lives in Greece and works as a pilot . Anna"
    return Shot(
        saved(storyteller().explain(prompt, "attnlrp", Continuation(max_new_tokens=4)), folder),
        width=1100,
    )


def translation(folder: Path) -> Shot:
    source = "the old cat sees the small mouse"
    found = translator().explain(source, "integrated_gradients", Continuation(max_new_tokens=8))
    return Shot(saved(found, folder), width=1200)


def image(folder: Path) -> Shot:
    pixels, _ = spotted(np.random.default_rng(1000), 1)
    shown = Picture.from_pixels(pixels[0], mean=0.4, std=0.2)
    return Shot(saved(viewer().explain(shown, ["attnlrp", "gae"]), folder))


def image_and_text(folder: Path) -> Shot:
    pixels, _ = spotted(np.random.default_rng(1003), 1)
    how = {"mean": 0.4, "std": 0.2, "name": "one patch"}
    shown = Picture.from_pixels(pixels[0], text="what colour is it ?", **how)
    methods = ["attnlrp", ("occlusion", {"window": 1})]
    return Shot(saved(asked().explain(shown, methods), folder))


def reviews(folder: Path) -> Path:
    explainer, place = embedded("sentiment"), folder / "reviews.html"
    found = explainer.explain(pandas.read_json(REVIEWS, lines=True), "attnlrp")
    tokenlight.save(found, place)
    return place


def report(folder: Path) -> Shot:
    opened = "document.querySelector('tbody button, tbody summary')?.click()"
    return Shot(reviews(folder), width=1100, height=1150, first=opened)


def words(folder: Path) -> Shot:
    return Shot(reviews(folder), ".classes", 1000)


def evaluation(folder: Path) -> Shot:
    explainer = embedded("sentiment")
    texts = [one.text for one in read_examples(REVIEWS, limit=32)]
    found = explainer.explain(texts, ["attnlrp", "gae", "attcat", "random"])
    explainer.evaluate(found, ["aopc", "lodds"]).save(folder)
    return Shot(folder / "report.html", width=1100, height=1000)


PICTURES: dict[str, Callable[[Path], Shot]] = {
    make.__name__: make
    for make in (
        home, classes, layers, qa, pair, continuation, translation, image, image_and_text, report, words,
        evaluation,
    )
}  # fmt: skip


def taken(browser: Any, shot: Shot) -> bytes:
    """What a reader sees, as a small file."""
    from PIL import Image

    tab = browser.new_page(viewport={"width": shot.width, "height": shot.height or 800})
    tab.goto(shot.page.as_uri())
    if shot.first:
        tab.evaluate(shot.first)
    seen = tab.screenshot() if shot.height else tab.locator(shot.part).first.screenshot()
    tab.close()
    small = BytesIO()
    # 256 colours, none of them off by more than a few of 255 steps.
    how = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
    few = Image.open(BytesIO(seen)).convert("RGB").quantize(256, **how)
    few.save(small, "PNG", optimize=True)
    return small.getvalue()


def main(names: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    PLACE.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as player, tempfile.TemporaryDirectory() as folder:
        browser = player.chromium.launch(
            executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"]
        )
        for name in names or PICTURES:
            own = Path(folder) / name
            own.mkdir()
            place = PLACE / f"{name}.png"
            place.write_bytes(taken(browser, PICTURES[name](own)))
            print(f"{place.name}: {place.stat().st_size / 1e3:.0f} kB")  # noqa: T201 - a script
        browser.close()


def truths(count: int = 100) -> None:
    """How often the strongest patch is the coloured one, for the table of pictures.md."""
    explainer, (pixels, colours) = asked(), spotted(np.random.default_rng(77), count)
    cells = np.abs(pixels).max(axis=1).reshape(count, 6, 8, 6, 8).max(axis=(2, 4))
    coloured = cells.reshape(count, -1).argmax(axis=1)
    changed = ["integrated_gradients", ("occlusion", {"window": 1})]
    methods = [*changed, "attnlrp", "cp_lrp", "grad_x_input", "attcat", "gae", "rollout", "random"]
    for fill in ("mean", "zero", "blur"):
        shown = [Picture.from_pixels(one, text="what colour is it ?", fill=fill) for one in pixels]
        chosen = methods if fill == "mean" else changed
        found = explainer.explain(shown, chosen)
        for number, method in enumerate(chosen):
            own = found[number :: len(chosen)]
            names = [a.prediction.label.strip() for a in own]
            right = np.mean([name == COLOURS[i] for name, i in zip(names, colours, strict=True)])
            first = np.mean([a.patches().argmax() == i for a, i in zip(own, coloured, strict=True)])
            share = np.mean([a.segment_shares()[0].share for a in own])
            print(fill, method, f"{first:.2f} {share:.2f}, right {right:.2f}")  # noqa: T201 - a script


if __name__ == "__main__":
    truths() if sys.argv[1:] == ["truths"] else main(sys.argv[1:])
