"""Train small models of three kinds for measurements only: ``python -m training.small_kinds DATA OUT``.

- ``planted_patches``: a vision Transformer over CIFAR-10 pictures in which one patch shows a texture. The
  texture is the class; a second patch in one plain colour says nothing. So the patch that decides is known.
- ``word_table``: a BART that translates word by word, by a table of 40 words. Word j of the translation
  depends on word j of the source alone, so the token that decides is known.
- ``topic_words``: a T5 that reads a news item and writes its topic as one word. No truth is known.

Every model is trained from random weights on one CPU core for minutes. A third of the training inputs lack a
random share of their patches (in the mean colour) or words ([MASK]), so that what removes them later is
nothing new. ``OUT/NAME`` gets a plain transformers folder, ``OUT/NAME.json`` the accuracy on inputs that the
model was not trained on. Nothing is shipped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn.functional import cross_entropy

from tokenlight.models import resolve_path
from training.reporting import set_up_logging
from training.vit_cifar10 import IMAGE_SIZE, PATCH_SIZE, Images, normalize_pixels

log = logging.getLogger(__name__)
SEED = 33
LOG_INTERVAL_STEPS = 50
WARM_UP_STEPS = 50
DAMAGED_SHARE = 1 / 3  # of the training inputs
IGNORED = -100  # a label that the loss skips

TEXTURES = ("rows", "columns", "checks", "corners")
PATCHES_PER_SIDE = IMAGE_SIZE // PATCH_SIZE

NUM_WORDS = 40
MIN_SOURCE_WORDS = 5
MAX_SOURCE_WORDS = 10
SPECIAL_WORDS = ("[PAD]", "</s>", "[UNK]", "[MASK]")

TOPIC_WORDS = ("world", "sports", "business", "science")
MAX_NEWS_TOKENS = 48


@dataclass(frozen=True)
class Recipe:
    """The numbers of one training.

    Attributes:
        steps: Number of batches.
        batch: Inputs of a batch.
        rate: Peak learning rate; it falls linearly to zero.
        width: Hidden size.
        layers: Layers of the encoder, and of the decoder.
        heads: Attention heads.
    """

    steps: int
    batch: int
    rate: float
    width: int = 64
    layers: int = 2
    heads: int = 4


RECIPES = {
    "planted_patches": Recipe(steps=400, batch=48, rate=2e-3),
    "word_table": Recipe(steps=600, batch=48, rate=2e-3),
    "topic_words": Recipe(steps=2000, batch=32, rate=3e-3),
}


def run_training(
    model: Any, recipe: Recipe, compute_loss: Callable[[np.random.Generator], Tensor]
) -> Any:
    """Train a model in place and return it in evaluation mode.

    Args:
        model: The model.
        recipe: The numbers of the training.
        compute_loss: Draws a batch and returns its loss.
    """
    generator = np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.01)
    model.train()
    for step in range(recipe.steps):
        warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * warm_up * (1 - step / recipe.steps)
        loss = compute_loss(generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % LOG_INTERVAL_STEPS == 0:
            log.info("step %d  loss %.3f", step, loss.item())
    return model.eval()


def draw_damage(shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Draw ``input part``: true where a part is removed, a random share of it in a third of the inputs."""
    is_damaged = generator.random((shape[0], 1)) < DAMAGED_SHARE
    share = generator.random((shape[0], 1)) * is_damaged
    damage: np.ndarray = generator.random(shape) < share
    return damage


# planted_patches


def make_texture(label: int) -> np.ndarray:
    """Return ``row column`` of a texture, true where its first colour stands."""
    rows, columns = np.indices((PATCH_SIZE, PATCH_SIZE))
    patterns = (rows % 2, columns % 2, (rows + columns) % 2, (rows // 2 + columns // 2) % 2)
    return np.array(patterns[label] == 0)


def plant_patches(
    pixels: np.ndarray, labels: Sequence[int], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Plant a texture and a plain patch in each picture.

    Args:
        pixels: ``image channel height width``, uint8.
        labels: The texture of each picture.
        generator: Source of the places and colours.

    Returns:
        The pictures, and the index of the patch with the texture, row by row from the top left.
    """
    planted = pixels.copy()
    positions = []
    for image, label in zip(planted, labels, strict=True):
        decisive, plain = generator.permutation(PATCHES_PER_SIDE**2)[:2]
        dark = generator.integers(0, 90, 3)
        bright = generator.integers(165, 256, 3)
        texture = np.where(make_texture(label)[None], bright[:, None, None], dark[:, None, None])
        _put_patch(image, decisive, texture)
        _put_patch(image, plain, generator.integers(0, 256, 3)[:, None, None])
        positions.append(int(decisive))
    return planted, np.array(positions)


def _put_patch(image: np.ndarray, position: int, values: np.ndarray) -> None:
    row, column = divmod(int(position), PATCHES_PER_SIDE)
    top = row * PATCH_SIZE
    left = column * PATCH_SIZE
    image[:, top : top + PATCH_SIZE, left : left + PATCH_SIZE] = values


def occlude_patches(values: Tensor, is_occluded: np.ndarray) -> Tensor:
    """Show the mean colour of the picture in some patches.

    Args:
        values: ``image channel height width``, normalized.
        is_occluded: ``image patch``.
    """
    grid = torch.from_numpy(is_occluded).reshape(-1, 1, PATCHES_PER_SIDE, PATCHES_PER_SIDE)
    cover = grid.repeat_interleave(PATCH_SIZE, 2).repeat_interleave(PATCH_SIZE, 3)
    return torch.where(cover, values.mean(dim=(2, 3), keepdim=True), values)


def train_planted_patches(data: Path, recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """Train the vision Transformer; return it and what is known about it."""
    config = transformers.ViTConfig(
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.width,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        hidden_dropout_prob=0.0,
        initializer_range=recipe.width**-0.5,
        id2label=dict(enumerate(TEXTURES)),
        label2id={name: index for index, name in enumerate(TEXTURES)},
    )
    model = transformers.ViTForImageClassification(config)
    pictures = Images.read(data / "cifar10/train_subset.jsonl.gz").pixels.numpy()

    def compute_loss(generator: np.random.Generator) -> Tensor:
        chosen = generator.integers(len(pictures), size=recipe.batch)
        labels = generator.integers(len(TEXTURES), size=recipe.batch)
        planted, _ = plant_patches(pictures[chosen], labels.tolist(), generator)
        values = normalize_pixels(torch.from_numpy(planted))
        damage = draw_damage((recipe.batch, PATCHES_PER_SIDE**2), generator)
        logits = model(pixel_values=occlude_patches(values, damage)).logits
        return cross_entropy(logits, torch.from_numpy(labels))

    run_training(model, recipe, compute_loss)
    pixels, labels, _ = make_planted_pictures(data, 500)
    with torch.no_grad():
        predicted = model(pixel_values=normalize_pixels(torch.from_numpy(pixels))).logits.argmax(1)
    return model, {"accuracy": float((predicted.numpy() == labels).mean()), "inputs": len(labels)}


def make_planted_pictures(data: Path, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return test pictures (uint8), their textures, and the index of the patch that decides."""
    generator = np.random.default_rng(SEED + 1)
    pictures = Images.read(data / "cifar10/test_subset.jsonl.gz").pixels.numpy()[:count]
    labels = generator.integers(len(TEXTURES), size=len(pictures))
    planted, positions = plant_patches(pictures, labels.tolist(), generator)
    return planted, labels, positions


# word_table


def list_table_words() -> list[str]:
    """Return the special words, the words of the source, and their translations in the same order."""
    sources = [f"s{index}" for index in range(NUM_WORDS)]
    translations = [f"t{index}" for index in range(NUM_WORDS)]
    return [*SPECIAL_WORDS, *sources, *translations]


def make_table_tokenizer() -> Any:
    """Return a tokenizer of whole words that ends a text with ``</s>``."""
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(list_table_words())}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        eos_token="</s>",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=32,
    )


def draw_sentence(generator: np.random.Generator) -> np.ndarray:
    """Draw the words of a source, as indices into the table."""
    length = generator.integers(MIN_SOURCE_WORDS, MAX_SOURCE_WORDS + 1)
    return generator.integers(NUM_WORDS, size=length)


def make_sentences(count: int) -> list[tuple[str, str]]:
    """Return sources and their translations that no training batch draws from the same stream."""
    generator = np.random.default_rng(SEED + 1)
    pairs = []
    for _ in range(count):
        words = draw_sentence(generator)
        source = " ".join(f"s{word}" for word in words)
        pairs.append((source, " ".join(f"t{word}" for word in words)))
    return pairs


def train_word_table(data: Path, recipe: Recipe) -> tuple[Any, dict[str, Any]]:  # noqa: ARG001 - draws its own
    """Train the BART; return it and what is known about it."""
    num_special = len(SPECIAL_WORDS)
    config = transformers.BartConfig(
        vocab_size=num_special + 2 * NUM_WORDS,
        d_model=recipe.width,
        encoder_layers=recipe.layers,
        decoder_layers=recipe.layers,
        encoder_attention_heads=recipe.heads,
        decoder_attention_heads=recipe.heads,
        encoder_ffn_dim=4 * recipe.width,
        decoder_ffn_dim=4 * recipe.width,
        max_position_embeddings=32,
        init_std=recipe.width**-0.5,
        dropout=0.0,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = transformers.BartForConditionalGeneration(config)

    def compute_loss(generator: np.random.Generator) -> Tensor:
        sentences = [draw_sentence(generator) for _ in range(recipe.batch)]
        sources, attention_mask = _pad_rows([[*(num_special + words), 1] for words in sentences])
        targets, target_mask = _pad_rows(
            [[*(num_special + NUM_WORDS + words), 1] for words in sentences]
        )
        is_word = sources.numpy() >= num_special
        damage = torch.from_numpy(draw_damage(tuple(sources.shape), generator) & is_word)
        sources[damage] = SPECIAL_WORDS.index("[MASK]")
        # What a masked word becomes cannot be known.
        labels = targets.masked_fill(~target_mask.bool() | damage, IGNORED)
        return _compute_decoder_loss(model, sources, attention_mask, targets, labels)

    run_training(model, recipe, compute_loss)
    tokenizer = make_table_tokenizer()
    pairs = make_sentences(200)
    num_right = 0
    num_words = 0
    for source, translation in pairs:
        inputs = tokenizer(source, return_tensors="pt")
        written = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=MAX_SOURCE_WORDS + 1,
            num_beams=1,
            do_sample=False,
        )[0].tolist()
        expected = tokenizer(translation)["input_ids"][:-1]
        for index, token_id in enumerate(expected, start=1):  # behind the start token
            num_words += 1
            num_right += index < len(written) and written[index] == token_id
    return model, {"accuracy": num_right / num_words, "inputs": len(pairs)}


def _pad_rows(rows: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids and attention mask of rows, padded on the right."""
    width = max(map(len, rows))
    ids = [[*row, *[pad_id] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)


def _compute_decoder_loss(
    model: Any, sources: Tensor, attention_mask: Tensor, targets: Tensor, labels: Tensor
) -> Tensor:
    """Return the cross-entropy of every written token that ``labels`` names, by teacher forcing."""
    start = torch.full_like(targets[:, :1], model.config.decoder_start_token_id)
    decoder_input_ids = torch.cat((start, targets[:, :-1]), dim=1)
    logits = model(
        input_ids=sources,
        attention_mask=attention_mask,
        decoder_input_ids=decoder_input_ids,
        use_cache=False,
    ).logits
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


# topic_words


def read_news(file: Path) -> tuple[list[str], list[int]]:
    """Read texts and topics of a file of AG News."""
    texts = []
    labels = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            texts.append(row["text"])
            labels.append(row["label"])
    return texts, labels


def load_news_tokenizer() -> Any:
    """Return the tokenizer of the embedded models: word pieces, with [CLS], [SEP] and [MASK]."""
    return transformers.AutoTokenizer.from_pretrained(resolve_path("tokenlight/topics"))


def train_topic_words(data: Path, recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """Train the T5; return it and what is known about it."""
    tokenizer = load_news_tokenizer()
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=recipe.width,
        d_kv=recipe.width // recipe.heads,
        d_ff=4 * recipe.width,
        num_layers=recipe.layers,
        num_decoder_layers=recipe.layers,
        num_heads=recipe.heads,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model = transformers.T5ForConditionalGeneration(config)
    topic_ids = torch.tensor([tokenizer.convert_tokens_to_ids(word) for word in TOPIC_WORDS])
    texts, labels = read_news(data / "ag_news/train_subset.jsonl.gz")
    rows = tokenizer(texts, truncation=True, max_length=MAX_NEWS_TOKENS)["input_ids"]
    topics = np.array(labels)

    def compute_loss(generator: np.random.Generator) -> Tensor:
        chosen = generator.integers(len(rows), size=recipe.batch)
        sources, attention_mask = _pad_rows([rows[i] for i in chosen], tokenizer.pad_token_id)
        is_word = ~np.isin(sources.numpy(), tokenizer.all_special_ids)
        damage = torch.from_numpy(draw_damage(tuple(sources.shape), generator) & is_word)
        sources[damage] = tokenizer.mask_token_id
        ends = torch.full((recipe.batch, 1), tokenizer.sep_token_id)
        targets = torch.cat((topic_ids[topics[chosen], None], ends), dim=1)
        return _compute_decoder_loss(model, sources, attention_mask, targets, targets)

    run_training(model, recipe, compute_loss)
    test_texts, test_labels = read_news(data / "ag_news/test.jsonl.gz")
    test_rows = tokenizer(test_texts[:1000], truncation=True, max_length=MAX_NEWS_TOKENS)
    num_right = 0
    for start in range(0, 1000, 50):
        sources, attention_mask = _pad_rows(
            test_rows["input_ids"][start : start + 50], tokenizer.pad_token_id
        )
        first = torch.full((len(sources), 1), config.decoder_start_token_id)
        with torch.no_grad():
            logits = model(
                input_ids=sources, attention_mask=attention_mask, decoder_input_ids=first
            ).logits[:, 0]
        expected = topic_ids[torch.tensor(test_labels[start : start + 50])]
        num_right += int((logits.argmax(dim=1) == expected).sum())
    return model, {"accuracy": num_right / 1000, "inputs": 1000}


TRAININGS = {
    "planted_patches": train_planted_patches,
    "word_table": train_word_table,
    "topic_words": train_topic_words,
}


def main() -> None:
    """Train the chosen models, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=sorted(TRAININGS), default=list(TRAININGS))
    arguments = parser.parse_args()
    set_up_logging()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        recipe = RECIPES[name]
        torch.manual_seed(SEED)
        start = time.process_time()
        model, known = TRAININGS[name](arguments.data, recipe)
        folder = arguments.out / name
        model.save_pretrained(folder)
        if name == "word_table":
            make_table_tokenizer().save_pretrained(folder)
        if name == "topic_words":
            load_news_tokenizer().save_pretrained(folder)
        content = {**known, "seconds": round(time.process_time() - start), **asdict(recipe)}
        text = json.dumps(content, indent=1)
        (arguments.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        log.info("%s: %s", name, content)


if __name__ == "__main__":
    main()
