"""Go on with masked-language modelling: ``python -m training.masked_lm --base DIR --out DIR``.

Gives a base encoder that has no language-model head a good one, and keeps both together as the
"pretrained" model: classifiers are tuned from copies of it (``training.finetune --base OUT``), and
decoded methods read hidden states with its head. The decoder is tied to the word embedding.

Texts: Wikipedia, reviews and news, training parts alone. First the head learns by itself, then all.
``OUT/figures.json`` says for held-out Wikipedia how often the masked token is found (top-1) and, for
every layer, how surely the head reads a visible token off its own state.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, AutoTokenizer

from training import data
from training.export import write_json
from training.precision import tf32_products
from training.settings import Settings
from training.train import Phase

log = logging.getLogger(__name__)
ROWS = (  # training texts beside Wikipedia
    "imdb/train_subset.jsonl.gz", "yelp/train_subset.jsonl.gz", "amazon/train_subset.jsonl.gz",
    "ag_news/train_subset.jsonl.gz", "sst2/train.jsonl.gz",
)  # fmt: skip
COLUMNS = ("text", "text_a", "text_b")
TELL_EVERY = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Recipe:
    """``head_steps`` for the head alone, then ``steps`` for all, ended by the clock where ``seconds``
    of both together are over (0: no limit). ``most``: rows and paragraphs read of a file."""

    head_steps: int = 500
    head_rate: float = 5e-4
    steps: int = 8_000
    rate: float = 1e-4
    batch: int = 256
    block: int = 128
    share: float = 0.15
    seconds: float = 0.0
    held_blocks: int = 400
    most: int | None = None
    compiled: bool = True
    seed: int = 20


QUICK = Recipe(head_steps=2, steps=8, batch=4, held_blocks=4, most=40, compiled=False)


def texts(most: int | None) -> Iterator[str]:
    """Paragraphs, reviews and news, one after the other."""
    yield from data.read_paragraphs("train_subset", most)
    for relative in ROWS:
        for row in data.read_rows(relative, most):
            yield from (row[name].replace("<br />", " ") for name in COLUMNS if name in row)


def stream(tokenizer: Any, given: Iterator[str]) -> torch.Tensor:
    """Token ids of all texts, a separator behind each."""
    ids: list[int] = []
    while chunk := list(itertools.islice(given, 20_000)):
        for own in tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]:
            ids += [*own, tokenizer.sep_token_id]
    return torch.tensor(ids, dtype=torch.int32)


def blocks(ids: torch.Tensor, width: int, tokenizer: Any, offset: int = 0) -> torch.Tensor:
    """The stream from ``offset`` on as ``[CLS] … [SEP]`` blocks, ``batch token``."""
    inner = width - 2
    count = (len(ids) - offset) // inner
    body = ids[offset : offset + count * inner].view(count, inner)
    first = body.new_full((count, 1), tokenizer.cls_token_id)
    return torch.cat([first, body, first.new_full((count, 1), tokenizer.sep_token_id)], dim=1)


class Masker:
    """BERT's masking with as many places in every block, so that shapes stay: of these 80 % become
    [MASK], 10 % a random piece, 10 % stay. Special pieces are never chosen."""

    def __init__(self, tokenizer: Any, share: float, generator: torch.Generator) -> None:
        """``tokenizer``: tells the pieces never chosen, and the mask."""
        self.share = share
        self.generator = generator
        self.mask = tokenizer.mask_token_id
        self.size = len(tokenizer)
        special = torch.zeros(self.size, dtype=torch.bool)
        special[tokenizer.all_special_ids] = True
        self.special = special.to(generator.device)

    def __call__(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Masked ids (``batch token``), chosen places and the pieces there (``batch place``)."""
        how = {"generator": self.generator, "device": ids.device}
        draw = torch.rand(ids.shape, **how).masked_fill(self.special[ids], 2.0)
        places = draw.argsort(dim=1)[:, : round(self.share * ids.shape[1])]
        pieces = ids.gather(1, places)
        draw = torch.rand(places.shape, **how)
        anything = torch.randint(self.size, places.shape, **how)
        put = torch.where(draw < 0.8, self.mask, torch.where(draw < 0.9, anything, pieces))
        return ids.scatter(1, places, put), places, pieces


def train(model: Any, ids: torch.Tensor, tokenizer: Any, recipe: Recipe) -> dict[str, Any]:
    """The head alone, then all; the moving average of the weights is kept."""
    device = next(model.parameters()).device
    on_gpu = device.type != "cpu"
    generator = torch.Generator(device).manual_seed(recipe.seed)
    masker = Masker(tokenizer, recipe.share, generator)
    source = _shuffled(ids.to(device), recipe, tokenizer, generator)
    encoder = torch.compile(model.base_model) if recipe.compiled and on_gpu else model.base_model
    begun = time.monotonic()
    done = []
    for part, steps, rate in (
        ("head", recipe.head_steps, recipe.head_rate),
        ("all", recipe.steps, recipe.rate),
    ):
        for parameter in model.base_model.parameters():
            parameter.requires_grad_(part == "all")
        trained = torch.nn.ModuleList([model] if part == "all" else [_head(model)])
        left = recipe.seconds - (time.monotonic() - begun) if recipe.seconds else 0.0
        phase = Phase(trained, Settings(), steps, rate, max(1.0, left) if recipe.seconds else 0.0)
        number = 0
        told = time.monotonic()
        losses = []
        while phase.done(number) < 1.0:
            masked, places, pieces = masker(next(source))
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                with torch.set_grad_enabled(part == "all"):
                    states = encoder(input_ids=masked).last_hidden_state
                picked = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
                loss = cross_entropy(_logits(model, picked).flatten(0, 1).float(), pieces.flatten())
            loss.backward()
            phase.step(number)
            losses.append(loss.detach())
            number += 1
            if time.monotonic() - told > TELL_EVERY:
                log.info("%s: step %d, loss %.3f", part, number, float(torch.stack(losses).mean()))
                told = time.monotonic()
                losses = []
        phase.average.swap()
        done.append({"part": part, "steps": number, "seconds": round(time.monotonic() - begun, 1)})
    return {"parts": done, "tokens_a_step": recipe.batch * recipe.block}


def _head(model: Any) -> torch.nn.Module:
    """What stands behind the encoder and is not tied to it, as a module of those weights alone."""
    own = {id(p) for p in model.base_model.parameters()}
    head = torch.nn.Module()
    rest = [p for p in model.parameters() if id(p) not in own]
    head.weights = torch.nn.ParameterList(rest)
    return head


def _logits(model: Any, states: torch.Tensor) -> torch.Tensor:
    """What the head says of states, ``… hidden`` to ``… piece``."""
    name = next(name for name in ("cls", "lm_head") if hasattr(model, name))
    return getattr(model, name)(states)


def _shuffled(
    ids: torch.Tensor, recipe: Recipe, tokenizer: Any, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Batches without end; every epoch cuts the stream elsewhere."""
    while True:
        offset = int(torch.randint(recipe.block, (1,), generator=generator, device=ids.device))
        cut = blocks(ids, recipe.block, tokenizer, offset)
        order = torch.randperm(len(cut), generator=generator, device=ids.device)
        for start in range(0, max(1, len(cut) - recipe.batch + 1), recipe.batch):
            yield cut[order[start : start + recipe.batch]].long()


@torch.inference_mode()
def measure(model: Any, held: torch.Tensor, tokenizer: Any, recipe: Recipe) -> dict[str, Any]:
    """Top-1 of masked tokens, and for every layer the mean probability and the share of visible
    tokens that the head reads off their own state, over blocks kept out of training."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(recipe.seed)
    masker = Masker(tokenizer, recipe.share, generator)
    found = right = 0
    own: list[torch.Tensor] = []
    for ids in held.to(device).long().split(32):
        masked, places, pieces = masker(ids)
        hidden = masked == masker.mask
        states = model.base_model(input_ids=masked, output_hidden_states=True).hidden_states
        guess = _logits(model, states[-1]).argmax(-1)
        right += int((guess == ids)[hidden].sum())
        found += int(hidden.sum())
        del places, pieces
        seen = ~masker.special[ids]
        plain = model.base_model(input_ids=ids, output_hidden_states=True).hidden_states
        rows = []
        for layer in plain:
            chances = _logits(model, layer).float().softmax(-1)
            said = chances.gather(-1, ids[..., None]).squeeze(-1)
            first = chances.argmax(-1) == ids
            rows.append(torch.stack([said[seen].sum(), first[seen].sum(), seen.sum()]).double())
        own.append(torch.stack(rows))
    total = torch.stack(own).sum(0)
    return {
        "top1": round(right / found, 4),
        "own_probability": [round(float(p / n), 4) for p, _, n in total],
        "own_top1": [round(float(k / n), 4) for _, k, n in total],
    }


@tf32_products()
def make(base: Path, out: Path, device: str, recipe: Recipe) -> dict[str, Any]:
    """Read, train, save, measure."""
    begun = time.monotonic()
    torch.manual_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float32, **still).to(device)
    model.train()
    ids = stream(tokenizer, texts(recipe.most))
    valid = stream(tokenizer, data.read_paragraphs("valid", recipe.most))
    held = blocks(valid, recipe.block, tokenizer)[: recipe.held_blocks]
    log.info("%d tokens read, %.1f s", len(ids), time.monotonic() - begun)
    found = {"base": base.name, "tokens": len(ids)} | train(model, ids, tokenizer, recipe)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.1
    model.eval().half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    saved = AutoModelForMaskedLM.from_pretrained(out, dtype=torch.float32).to(device).eval()
    found |= measure(saved, held, tokenizer, recipe)
    where = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    found["measured"] = (
        f"fp16 files computed in float32 on {where}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, seed {recipe.seed}, {recipe.held_blocks} blocks of Wikipedia"
    )
    found["seconds"] = round(time.monotonic() - begun, 1)
    write_json(out / "figures.json", found)
    return found


def main() -> None:
    """Make the model and print what it reaches."""
    parser = argparse.ArgumentParser(prog="python -m training.masked_lm", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base encoder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--data", type=Path, help="the data sets; TOKENLIGHT_DATA if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.0, help="end the training by then")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--quick", action="store_true", help="a few texts and steps, to test")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if given.data is not None:
        os.environ["TOKENLIGHT_DATA"] = str(given.data.resolve())
    recipe = QUICK if given.quick else Recipe(steps=given.steps, seconds=given.seconds)
    print(make(given.base, given.out, given.device, recipe))


if __name__ == "__main__":
    main()
