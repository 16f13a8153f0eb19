"""Train a fifth head beside the shipped ones: whether a second text follows from the first.

``python -m training.nli`` leaves the shared encoder as it is. The model has the six shared layers, frozen,
and one layer of its own above them with pooler and classifier, so that its folder adds 4 MB. It is trained on
SNLI and MNLI in bfloat16, and measured from the written files. The learning rate was chosen on SNLI dev.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, BertForMaskedLM, BertForSequenceClassification

from training import batches, data
from training.export import export_task, write_checksums
from training.measure import MODELS, count_correct, measure_pairs, predict_labels
from training.model import NUM_SHARED_LAYERS, build_config
from training.reporting import LossLog, set_up_logging
from training.settings import Settings
from training.tasks import Task, encode_rows, read_training_rows, shrink_task, split_pair_columns
from training.train import Phase

log = logging.getLogger(__name__)
TASK = Task(
    kind="pair",
    train="snli/train_subset.jsonl.gz",
    dev="snli/dev.jsonl.gz",
    extra_training_file=("mnli/train_subset.jsonl.gz", 10_000),
    dev_rows=None,
    epochs=8,
    batch=128,
    rate=3e-4,
    max_tokens=96,
)
LOG_INTERVAL_SECONDS = 15.0


def build_model(models: Path) -> Any:
    """Build the model over the shared encoder; its own layer starts as a copy of the last shared one.

    Args:
        models: Folder of the shipped models.

    Returns:
        The model in float32, with the shared weights frozen.
    """
    shared = BertForMaskedLM.from_pretrained(models / "masked_lm", dtype=torch.float32).bert
    model = BertForSequenceClassification(build_config(shared.config.vocab_size, "nli"))
    model.bert.embeddings.load_state_dict(shared.embeddings.state_dict())
    for index, layer in enumerate(model.bert.encoder.layer):
        source = shared.encoder.layer[min(index, NUM_SHARED_LAYERS - 1)]
        layer.load_state_dict(source.state_dict())
    model.requires_grad_(False)
    list_own_modules(model).requires_grad_(True)
    return model


def list_own_modules(model: Any) -> nn.ModuleList:
    """Return the modules that are trained: the last layer, the pooler and the classifier."""
    own_layers = model.bert.encoder.layer[NUM_SHARED_LAYERS:]
    return nn.ModuleList([*own_layers, model.bert.pooler, model.classifier])


def train(model: Any, tokenizer: Any, task: Task, settings: Settings, device: str) -> None:
    """Train the model's own modules and keep the moving average of their weights.

    Args:
        model: The model of ``build_model``.
        tokenizer: Its tokenizer.
        task: The data and the schedule.
        settings: Settings of the recipe.
        device: Name of a torch device.
    """
    encoded = encode_rows(task, tokenizer, read_training_rows(task, settings.seed))
    batch_size = min(task.batch, len(encoded))
    num_steps = max(1, task.epochs * (len(encoded) // batch_size))
    phase = Phase(list_own_modules(model), settings, num_steps, task.rate, max_seconds=0.0)
    generator = np.random.default_rng(settings.seed)
    loss_log = LossLog("nli", LOG_INTERVAL_SECONDS)
    device_type = torch.device(device).type
    step = 0
    model.to(device).train()
    while step < num_steps:
        for rows in batches.iter_row_batches(encoded.lengths, batch_size, generator):
            if step == num_steps:
                break
            inputs = {name: tensor.to(device) for name, tensor in encoded.build_batch(rows).items()}
            with torch.autocast(device_type, torch.bfloat16):
                loss = model(**inputs).loss
            loss.backward()
            phase.step(step)
            step += 1
            mean_loss = loss_log.add(loss, step, is_last=step == num_steps)
            if mean_loss is not None and not math.isfinite(mean_loss):
                raise SystemExit(f"nli: the loss is {mean_loss} at step {step}; lower the rate.")
    phase.average.swap()
    model.eval()


def measure_held_out(model: Any, tokenizer: Any, task: Task) -> float:
    """Return the accuracy on the development rows, by which the recipe was chosen."""
    rows = data.read_rows(task.dev, task.dev_rows)
    columns = split_pair_columns(task, rows)
    return count_correct(predict_labels(model, tokenizer, columns, task.max_tokens), rows) / len(
        rows
    )


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.nli", description=__doc__)
    data.add_data_option(parser)
    parser.add_argument("--models", type=Path, default=MODELS, help="the folder of shipped files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rate", type=float, default=TASK.rate, help="peak learning rate")
    parser.add_argument("--quick", action="store_true", help="a few rows and steps only")
    return parser


def main() -> None:
    """Train, write the folder ``nli`` and the checksums, and measure the written files."""
    arguments = build_parser().parse_args()
    data.set_data_folder(arguments.data)
    set_up_logging()
    settings = Settings()
    torch.manual_seed(settings.seed)
    task = replace(TASK, rate=arguments.rate)
    if arguments.quick:
        task = shrink_task(task)
    tokenizer = AutoTokenizer.from_pretrained(arguments.models / "masked_lm")
    model = build_model(arguments.models)
    train(model, tokenizer, task, settings, arguments.device)
    log.info("SNLI dev: accuracy %.4f", measure_held_out(model, tokenizer, task))

    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    folder = arguments.models / "nli"
    export_task(model.cpu(), pieces, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    write_checksums(arguments.models)
    figures = measure_pairs(arguments.models, arguments.device, task.dev_rows)
    log.info("written files: %s", json.dumps(figures))


if __name__ == "__main__":
    main()
