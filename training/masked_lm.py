"""Continue masked-language modelling: ``python -m training.masked_lm --base DIR --out DIR``.

Gives a base encoder that has no language-model head a good one, and saves both together as the
"pretrained" model: classifiers are tuned from copies of it (``training.finetune --base OUT``), and
decoded methods read hidden states with its head. The decoder is tied to the word embedding.

Texts: Wikipedia, reviews and news, training parts alone. First only the head is trained, then all
weights. ``OUT/figures.json`` holds, for held-out Wikipedia, the top-1 accuracy at masked tokens and, for
every layer, the probability that the head gives a visible token at its own state.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, AutoTokenizer

from training import data
from training.batches import cut_blocks, iter_shuffled_blocks
from training.masking import FixedCountMasker
from training.precision import tf32_products
from training.reporting import LossLog, describe_measurement, set_up_logging, write_json
from training.settings import Settings
from training.train import Phase

log = logging.getLogger(__name__)
LABELED_FILES = (  # training texts besides Wikipedia
    "imdb/train_subset.jsonl.gz", "yelp/train_subset.jsonl.gz", "amazon/train_subset.jsonl.gz",
    "ag_news/train_subset.jsonl.gz", "sst2/train.jsonl.gz",
)  # fmt: skip
TEXT_COLUMNS = ("text", "text_a", "text_b")
TEXTS_PER_CALL = 20_000
HEAD_NAMES = ("cls", "lm_head")
LOG_INTERVAL_SECONDS = 10.0
MEASURING_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a training.

    Attributes:
        head_steps: Steps that train only the head.
        head_rate: Peak learning rate of these steps.
        steps: Steps that train all weights.
        rate: Peak learning rate of these steps.
        batch: Blocks per step.
        block: Tokens of a block.
        share: Share of the tokens that is masked.
        seconds: Time at which both parts together end in any case; 0 sets no limit.
        num_held_out: Blocks of Wikipedia that the model is measured on.
        max_rows: Largest number of rows, or paragraphs, read from each file; None reads all.
        uses_compile: Whether the encoder is compiled on an accelerator.
        seed: Seed of every random choice.
    """

    head_steps: int = 500
    head_rate: float = 5e-4
    steps: int = 8_000
    rate: float = 1e-4
    batch: int = 256
    block: int = 128
    share: float = 0.15
    seconds: float = 0.0
    num_held_out: int = 400
    max_rows: int | None = None
    uses_compile: bool = True
    seed: int = 20


QUICK = Recipe(head_steps=2, steps=8, batch=4, num_held_out=4, max_rows=40, uses_compile=False)


def read_texts(max_rows: int | None) -> Iterator[str]:
    """Yield paragraphs, then reviews, news and sentences."""
    yield from data.read_paragraphs("train_subset", max_rows)
    for relative_path in LABELED_FILES:
        for row in data.read_rows(relative_path, max_rows):
            for column in TEXT_COLUMNS:
                if column in row:
                    yield data.remove_line_breaks(row[column])


def encode_stream(tokenizer: Any, texts: Iterator[str]) -> Tensor:
    """Encode all texts as one stream of token ids, with a separator after each text."""
    stream: list[int] = []
    while chunk := list(itertools.islice(texts, TEXTS_PER_CALL)):
        rows = tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
        for text_ids in rows:
            stream += text_ids
            stream.append(tokenizer.sep_token_id)
    return torch.tensor(stream, dtype=torch.int32)


class MaskedLMTrainer:
    """Train a masked language model: its head alone, then all its weights.

    Args:
        model: The model, in train mode.
        stream: Token ids of the training texts.
        tokenizer: Its tokenizer.
        recipe: Settings of the training.
    """

    def __init__(self, model: Any, stream: Tensor, tokenizer: Any, recipe: Recipe) -> None:
        self.model = model
        self.recipe = recipe
        self.device = next(model.parameters()).device
        self.is_accelerator = self.device.type != "cpu"
        generator = torch.Generator(self.device).manual_seed(recipe.seed)
        self.masker = FixedCountMasker(tokenizer, recipe.share, generator)
        self.block_batches = iter_shuffled_blocks(
            stream.to(self.device),
            recipe.block,
            recipe.batch,
            generator,
            cls_id=tokenizer.cls_token_id,
            sep_id=tokenizer.sep_token_id,
        )
        self.encoder = model.base_model
        if recipe.uses_compile and self.is_accelerator:
            self.encoder = torch.compile(model.base_model)
        self.start_time = time.monotonic()

    def train(self) -> dict[str, Any]:
        """Train both parts; the moving average of the weights is kept.

        Returns:
            Steps and seconds of each part, and the tokens of a step.
        """
        recipe = self.recipe
        head = _collect_head_weights(self.model)
        parts = [
            self._train_part("head", head, recipe.head_steps, recipe.head_rate),
            self._train_part("all", self.model, recipe.steps, recipe.rate),
        ]
        return {"parts": parts, "tokens_a_step": recipe.batch * recipe.block}

    def _train_part(
        self, part: str, module: torch.nn.Module, num_steps: int, learning_rate: float
    ) -> dict[str, Any]:
        """Train the weights of ``module``, which is the head or the whole model."""
        trains_encoder = part == "all"
        for parameter in self.model.base_model.parameters():
            parameter.requires_grad_(trains_encoder)
        phase = Phase(module, Settings(), num_steps, learning_rate, self._find_remaining_seconds())
        loss_log = LossLog(part, LOG_INTERVAL_SECONDS)
        step = 0
        while phase.progress(step) < 1.0:
            loss = self._compute_loss(next(self.block_batches), trains_encoder=trains_encoder)
            loss.backward()
            phase.step(step)
            step += 1
            loss_log.add(loss, step)
        phase.average.swap()
        seconds = time.monotonic() - self.start_time
        return {"part": part, "steps": step, "seconds": round(seconds, 1)}

    def _find_remaining_seconds(self) -> float:
        """Return the time left for a part, at least a second; 0 without a limit."""
        if not self.recipe.seconds:
            return 0.0
        elapsed_seconds = time.monotonic() - self.start_time
        return max(1.0, self.recipe.seconds - elapsed_seconds)

    def _compute_loss(self, ids: Tensor, *, trains_encoder: bool) -> Tensor:
        masked = self.masker(ids)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_accelerator)
        with autocast:
            with torch.set_grad_enabled(trains_encoder):
                hidden_states = self.encoder(input_ids=masked.input_ids).last_hidden_state
            hidden_size = hidden_states.shape[-1]
            indices = masked.positions[..., None].expand(-1, -1, hidden_size)
            logits = _apply_head(self.model, hidden_states.gather(1, indices))
            return cross_entropy(logits.flatten(0, 1).float(), masked.labels.flatten())


def _collect_head_weights(model: Any) -> torch.nn.Module:
    """Return a module of the weights behind the encoder that are not tied to it."""
    encoder_ids = {id(parameter) for parameter in model.base_model.parameters()}
    head_weights = []
    for parameter in model.parameters():
        if id(parameter) not in encoder_ids:
            head_weights.append(parameter)
    head = torch.nn.Module()
    head.weights = torch.nn.ParameterList(head_weights)
    return head


def _apply_head(model: Any, hidden_states: Tensor) -> Tensor:
    """Decode hidden states, ``… hidden`` to ``… vocab``."""
    head_name = next(name for name in HEAD_NAMES if hasattr(model, name))
    return getattr(model, head_name)(hidden_states)


@torch.inference_mode()
def measure_layers(
    model: Any, held_out_blocks: Tensor, tokenizer: Any, recipe: Recipe
) -> dict[str, Any]:
    """Measure the model on blocks kept out of training.

    Args:
        model: A masked language model.
        held_out_blocks: Token ids, ``block token``.
        tokenizer: Its tokenizer.
        recipe: Settings of the training.

    Returns:
        ``top1``: accuracy at masked tokens. ``own_probability`` and ``own_top1``: for every layer, the
        mean probability and the top-1 accuracy of visible tokens, decoded from their own hidden states.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(recipe.seed)
    masker = FixedCountMasker(tokenizer, recipe.share, generator)
    num_masked = 0
    num_correct = 0
    totals_by_batch = []
    for ids in held_out_blocks.to(device).long().split(MEASURING_BATCH_SIZE):
        masked_ids = masker(ids).input_ids
        is_masked = masked_ids == masker.mask_id
        masked_states = _compute_hidden_states(model, masked_ids)
        predictions = _apply_head(model, masked_states[-1]).argmax(-1)
        num_correct += int((predictions == ids)[is_masked].sum())
        num_masked += int(is_masked.sum())
        is_visible = ~masker.is_special[ids]
        layer_totals = []
        for hidden_states in _compute_hidden_states(model, ids):
            layer_totals.append(_count_decoded_tokens(model, hidden_states, ids, is_visible))
        totals_by_batch.append(torch.stack(layer_totals))
    totals = torch.stack(totals_by_batch).sum(0)
    own_probability = []
    own_top1 = []
    for probability_sum, num_top1, num_visible in totals:
        own_probability.append(round(float(probability_sum / num_visible), 4))
        own_top1.append(round(float(num_top1 / num_visible), 4))
    return {
        "top1": round(num_correct / num_masked, 4),
        "own_probability": own_probability,
        "own_top1": own_top1,
    }


def _compute_hidden_states(model: Any, ids: Tensor) -> tuple[Tensor, ...]:
    """Return the hidden states of every layer, embeddings first, each ``batch token hidden``."""
    return model.base_model(input_ids=ids, output_hidden_states=True).hidden_states


def _count_decoded_tokens(
    model: Any, hidden_states: Tensor, ids: Tensor, is_visible: Tensor
) -> Tensor:
    """Decode the visible tokens of a layer: summed probability, top-1 count, number of tokens."""
    probabilities = _apply_head(model, hidden_states).float().softmax(-1)
    token_probability = probabilities.gather(-1, ids[..., None]).squeeze(-1)
    is_top1 = probabilities.argmax(-1) == ids
    totals = [token_probability[is_visible].sum(), is_top1[is_visible].sum(), is_visible.sum()]
    return torch.stack(totals).double()


@tf32_products()
def train_and_measure(base: Path, out: Path, device: str, recipe: Recipe) -> dict[str, Any]:
    """Read the texts, train, save, and measure the saved files.

    Args:
        base: Folder of the base encoder.
        out: Folder for the model and its ``figures.json``.
        device: Name of a torch device.
        recipe: Settings of the training.

    Returns:
        The content of ``figures.json``.
    """
    start_time = time.monotonic()
    torch.manual_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float32, **no_dropout)
    model.to(device).train()
    stream = encode_stream(tokenizer, read_texts(recipe.max_rows))
    log.info("%d tokens read, %.1f s", len(stream), time.monotonic() - start_time)
    figures: dict[str, Any] = {"base": base.name, "tokens": len(stream)}
    figures |= MaskedLMTrainer(model, stream, tokenizer, recipe).train()
    model.config.hidden_dropout_prob = 0.1
    model.config.attention_probs_dropout_prob = 0.1
    model.eval().half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    saved_model = AutoModelForMaskedLM.from_pretrained(out, dtype=torch.float32).to(device).eval()
    held_out_blocks = read_held_out_blocks(tokenizer, recipe)
    figures |= measure_layers(saved_model, held_out_blocks, tokenizer, recipe)
    figures["measured"] = (
        f"{describe_measurement(device)}, seed {recipe.seed}, "
        f"{recipe.num_held_out} blocks of Wikipedia"
    )
    figures["seconds"] = round(time.monotonic() - start_time, 1)
    write_json(out / "figures.json", figures)
    return figures


def read_held_out_blocks(tokenizer: Any, recipe: Recipe) -> Tensor:
    """Read the blocks of validation paragraphs that the model is measured on."""
    stream = encode_stream(tokenizer, data.read_paragraphs("valid", recipe.max_rows))
    cls_id = tokenizer.cls_token_id
    sep_id = tokenizer.sep_token_id
    blocks = cut_blocks(stream, recipe.block, 0, cls_id=cls_id, sep_id=sep_id)
    return blocks[: recipe.num_held_out]


def main() -> None:
    """Train the model and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m training.masked_lm", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base encoder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    data.add_data_option(parser)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.0, help="end the training by then")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--quick", action="store_true", help="a few texts and steps, to test")
    arguments = parser.parse_args()
    set_up_logging()
    data.set_data_folder(arguments.data)
    recipe = QUICK
    if not arguments.quick:
        recipe = Recipe(steps=arguments.steps, seconds=arguments.seconds)
    print(train_and_measure(arguments.base, arguments.out, arguments.device, recipe))


if __name__ == "__main__":
    main()
