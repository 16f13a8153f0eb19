"""Fine-tune a base encoder on each data set: ``python -m training.finetune --base DIR --out DIR``.

Every data set has a process of its own, and several run at once, since one leaves most of an
accelerator idle. Each ends as a plain transformers folder (fp16 safetensors, tokenizer, label names) in
``OUT`` and is measured from these files, computed in float32; ``OUT/figures.json`` holds the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from training import batches, data, squad
from training.measure import count_correct, predict_answers, predict_labels
from training.planted import write_rows
from training.precision import tf32_products
from training.reporting import (
    LossLog,
    describe_measurement,
    format_table,
    set_up_logging,
    write_json,
)
from training.settings import Settings
from training.tasks import (
    TASKS,
    EncodedRows,
    Task,
    encode_rows,
    mask_random_tokens,
    read_held_out_rows,
    read_labels,
    read_training_rows,
    shrink_task,
    split_pair_columns,
)
from training.train import Phase

log = logging.getLogger(__name__)
MAX_PROCESSES = {"cpu": 1, "cuda": 9}
LOG_INTERVAL_SECONDS = 5.0
SCORE_NAMES = ("accuracy", "f1", "exact_match")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings that the runs of all data sets share.

    Attributes:
        base: Folder of the base encoder.
        out: Folder for the models.
        device: Name of a torch device.
        seed: Seed of every random choice.
        max_seconds: Time at which the schedule of a data set ends in any case; 0 sets no limit.
        held_out: Folder for the texts that tasks keep out of their training; None trains on them too.
    """

    base: Path
    out: Path
    device: str = "cpu"
    seed: int = 20
    max_seconds: float = 0.0
    held_out: Path | None = None


@tf32_products()
def finetune(name: str, task: Task, settings: RunSettings) -> dict[str, Any]:
    """Train one model, save it, and measure the saved files.

    Args:
        name: Name of the data set, and of the model's folder.
        task: The data set.
        settings: Settings that all runs share.

    Returns:
        Rows, steps, scores, seconds, and the task.
    """
    start_time = time.monotonic()
    torch.manual_seed(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(settings.base)
    task = _set_aside_held_out_rows(name, task, settings)
    encoded = encode_rows(task, tokenizer, read_training_rows(task, settings.seed))
    model = _load_model_with_head(task, settings)
    reading_end = time.monotonic()

    training_batches = _iter_training_batches(encoded, task, tokenizer, settings.seed)
    num_steps = _train(name, model, training_batches, len(encoded), task, settings)
    folder = settings.out / name
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    training_end = time.monotonic()

    scores = measure_saved_model(folder, task, settings.device)
    measuring_end = time.monotonic()
    log.info("%s: done, %s", name, scores)
    return {
        "rows": len(encoded),
        "steps": num_steps,
        **scores,
        "seconds": {
            "reading": round(reading_end - start_time, 1),
            "training": round(training_end - reading_end, 1),
            "measuring": round(measuring_end - training_end, 1),
        },
        "task": asdict(task),
    }


def _set_aside_held_out_rows(name: str, task: Task, settings: RunSettings) -> Task:
    """Write the rows kept out of training, or hold out none where there is no folder for them."""
    if settings.held_out is None:
        return dataclasses.replace(task, num_held_out=0)
    if task.num_held_out:
        rows = read_held_out_rows(task, settings.seed)
        write_rows(settings.held_out / f"{name}.jsonl.gz", rows)
    return task


def _load_model_with_head(task: Task, settings: RunSettings) -> Any:
    """Load the base encoder in float32 with a new head."""
    if task.kind == "question":
        model = AutoModelForQuestionAnswering.from_pretrained(
            settings.base, dtype=torch.float32, num_labels=2
        )
    else:
        labels = read_labels(task)
        model = AutoModelForSequenceClassification.from_pretrained(
            settings.base,
            dtype=torch.float32,
            num_labels=len(labels),
            id2label=labels,
            label2id={label: number for number, label in labels.items()},
        )
    return model.to(settings.device)


def _iter_training_batches(
    encoded: EncodedRows, task: Task, tokenizer: Any, seed: int
) -> Iterator[batches.Batch]:
    """Yield training batches, epoch after epoch, masked where the task wants it."""
    batch_size = min(task.batch, len(encoded))
    generator = np.random.default_rng(seed)
    mask_generator = np.random.default_rng([seed, 1])
    while True:
        for rows in batches.iter_row_batches(encoded.lengths, batch_size, generator):
            batch = encoded.build_batch(rows)
            if task.max_mask_share:
                batch = mask_random_tokens(batch, task.max_mask_share, tokenizer, mask_generator)
            yield batch


def _train(
    name: str,
    model: Any,
    training_batches: Iterator[batches.Batch],
    num_rows: int,
    task: Task,
    settings: RunSettings,
) -> int:
    """Train the model, keep the moving average of its weights, and return the number of steps."""
    steps_per_epoch = num_rows // min(task.batch, num_rows)
    num_steps = max(1, task.epochs * steps_per_epoch)
    phase = Phase(model, Settings(), num_steps, task.rate, settings.max_seconds)
    device_type = torch.device(settings.device).type
    loss_log = LossLog(name, LOG_INTERVAL_SECONDS)
    step = 0
    model.train()
    while phase.progress(step) < 1.0:
        batch = next(training_batches)
        inputs = {key: tensor.to(settings.device) for key, tensor in batch.items()}
        with torch.autocast(device_type, torch.bfloat16, enabled=device_type != "cpu"):
            loss = model(**inputs).loss
        loss.backward()
        phase.step(step)
        step += 1
        mean_loss = loss_log.add(loss, step, is_last=step == num_steps)
        if mean_loss is not None and not math.isfinite(mean_loss):
            raise SystemExit(f"{name}: the loss is {mean_loss} at step {step}; lower the rate.")
    phase.average.swap()
    model.eval()
    return step


def measure_saved_model(folder: Path, task: Task, device: str) -> dict[str, float]:
    """Measure a saved model on the dev rows of its task.

    Args:
        folder: Folder of the model.
        task: The data set.
        device: Name of a torch device.

    Returns:
        ``dev_rows``, and ``accuracy`` or ``f1`` and ``exact_match``.
    """
    rows = data.read_rows(task.dev, task.dev_rows)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if task.kind == "question":
        model = AutoModelForQuestionAnswering.from_pretrained(folder, dtype=torch.float32)
        predictions = predict_answers(model.to(device).eval(), tokenizer, rows)
        scores = squad.score_predictions(predictions, rows)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        num_correct = _count_correct(model.to(device).eval(), tokenizer, task, rows)
        scores = {"accuracy": num_correct / len(rows)}
    rounded_scores = {name: round(score, 4) for name, score in scores.items()}
    return {"dev_rows": len(rows), **rounded_scores}


def _count_correct(model: Any, tokenizer: Any, task: Task, rows: list[dict[str, Any]]) -> int:
    columns = split_pair_columns(task, rows)
    return count_correct(predict_labels(model, tokenizer, columns, task.max_tokens), rows)


def format_results(results: dict[str, dict[str, Any]]) -> str:
    """Format the results as a markdown table."""
    table_rows = []
    for name, result in results.items():
        scores = []
        for key in SCORE_NAMES:
            if key in result:
                scores.append(f"{key.replace('_', ' ')} {result[key]:.4f}")
        table_rows.append(
            [
                name,
                f"{result['rows']:,}",
                f"{result['steps']:,}",
                f"{result['dev_rows']:,}",
                ", ".join(scores),
                f"{sum(result['seconds'].values()):.0f}",
            ]
        )
    header = ["data set", "training rows", "steps", "dev rows", "scores", "seconds"]
    return format_table(header, table_rows)


def _initialize_worker(num_processes: int) -> None:
    """Silence the libraries in a worker process and give it its share of the CPU cores."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    set_up_logging()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if num_processes > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_processes))


def finetune_all(
    tasks: dict[str, Task], settings: RunSettings, num_processes: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Fine-tune on several data sets at once.

    Args:
        tasks: Data sets by name.
        settings: Settings that all runs share.
        num_processes: Number of data sets at once.

    Returns:
        Results by data set in the order of ``tasks``, and the errors of those that failed.
    """
    results: dict[str, dict[str, Any]] = {}
    ordered_results: dict[str, dict[str, Any]] = {}
    errors: dict[str, str] = {}
    settings.out.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, spawn, _initialize_worker, (num_processes,)) as pool:
        names_by_future = {}
        for name, task in tasks.items():
            names_by_future[pool.submit(finetune, name, task, settings)] = name
        for future in as_completed(names_by_future):
            name = names_by_future[future]
            error = future.exception()
            if error is None:
                results[name] = future.result()
            else:
                errors[name] = repr(error)
            ordered_results = {name: results[name] for name in tasks if name in results}
            write_json(settings.out / "figures.json", _build_summary(ordered_results, settings))
    return ordered_results, errors


def _build_summary(results: dict[str, dict[str, Any]], settings: RunSettings) -> dict[str, Any]:
    """Build the content of figures.json."""
    measurement = describe_measurement(settings.device)
    return {
        "measured": f"{measurement}, base {settings.base.name}, seed {settings.seed}",
        "figures": results,
    }


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.finetune", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base encoder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models")
    data.add_data_option(parser)
    parser.add_argument("--only", nargs="+", choices=[*TASKS], default=[*TASKS], metavar="TASK")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--together", type=int, help="data sets at once; on a GPU 9, else 1")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="shorten the training of a data set to this"
    )
    parser.add_argument("--rate", type=float, help="learning rate of every task")
    parser.add_argument("--epochs", type=int, help="epochs of every task")
    parser.add_argument("--held-out", type=Path, help="folder for texts kept out of training")
    parser.add_argument("--quick", action="store_true", help="a few rows and steps, to test")
    return parser


def select_tasks(arguments: argparse.Namespace) -> dict[str, Task]:
    """Return the tasks that the command line names, with the options it overrides."""
    overrides = {}
    for option in ("rate", "epochs"):
        if getattr(arguments, option):
            overrides[option] = getattr(arguments, option)
    tasks = {}
    for name in arguments.only:
        task = shrink_task(TASKS[name]) if arguments.quick else TASKS[name]
        tasks[name] = dataclasses.replace(task, **overrides)
    return tasks


def main() -> None:
    """Fine-tune on the selected data sets and print the table."""
    arguments = build_parser().parse_args()
    data.set_data_folder(arguments.data)
    data.find_data_folder()  # fails here rather than in every worker
    tasks = select_tasks(arguments)
    settings = RunSettings(
        base=arguments.base,
        out=arguments.out,
        device=arguments.device,
        seed=arguments.seed,
        max_seconds=arguments.seconds,
        held_out=arguments.held_out,
    )
    num_processes = arguments.together or MAX_PROCESSES[torch.device(arguments.device).type]
    start_time = time.monotonic()
    results, errors = finetune_all(tasks, settings, num_processes)
    print(format_results(results))
    measurement = _build_summary(results, settings)["measured"]
    print(f"\n{measurement}; {time.monotonic() - start_time:.0f} s in all.")
    for name, error in errors.items():
        print(f"{name} failed: {error}", file=sys.stderr)
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
