"""Fine-tune a base encoder on each data set: ``python -m training.finetune --base DIR --out DIR``.

Every data set is a process of its own, several at once, since one leaves most of an accelerator
idle. Each ends as a plain transformers folder (fp16 safetensors, tokenizer, label names) in ``OUT``
and is measured as it lies there, computed in float32; ``OUT/figures.json`` holds what was reached.
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
from training.export import write_json
from training.measure import answers_of, by_length
from training.planted import write
from training.precision import tf32_products
from training.settings import Settings
from training.tasks import (
    TASKS,
    Encoded,
    Task,
    encode,
    held_rows,
    labels_of,
    parts,
    quick,
    training_rows,
    with_gaps,
)
from training.train import Phase

log = logging.getLogger(__name__)
TOGETHER = {"cpu": 1, "cuda": 9}
TELL_EVERY = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class How:
    """What all runs share. ``seconds``: a schedule that would take longer ends then (0: no limit).
    ``held_out``: folder for the texts that tasks keep out of their training."""

    base: Path
    out: Path
    device: str = "cpu"
    seed: int = 20
    seconds: float = 0.0
    held_out: Path | None = None


@tf32_products()
def finetune(name: str, task: Task, how: How) -> dict[str, Any]:
    """Train one model, save it, and measure the files."""
    started = time.monotonic()
    torch.manual_seed(how.seed)
    tokenizer = AutoTokenizer.from_pretrained(how.base)
    if how.held_out is None:
        task = dataclasses.replace(task, held=0)
    elif task.held:
        write(how.held_out / f"{name}.jsonl.gz", iter(held_rows(task, how.seed)))
    encoded = encode(task, tokenizer, training_rows(task, how.seed))
    model = _headed(task, how)
    read = time.monotonic() - started
    source = _endless(encoded, min(task.batch, len(encoded)), how.seed)
    if task.hidden:
        random = np.random.default_rng([how.seed, 1])
        source = (with_gaps(batch, task.hidden, tokenizer, random) for batch in source)
    steps = _train(name, model, source, len(encoded), task, how)
    folder = how.out / name
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    trained = time.monotonic() - started
    figures = measure(folder, task, how.device)
    found = {
        "rows": len(encoded),
        "steps": steps,
        **figures,
        "seconds": {
            "reading": round(read, 1),
            "training": round(trained - read, 1),
            "measuring": round(time.monotonic() - started - trained, 1),
        },
        "task": asdict(task),
    }
    log.info("%s: done, %s", name, figures)
    return found


def _headed(task: Task, how: How) -> Any:
    """The base with a new head, in float32."""
    if task.kind == "question":
        model = AutoModelForQuestionAnswering.from_pretrained(
            how.base, dtype=torch.float32, num_labels=2
        )
    else:
        labels = labels_of(task)
        model = AutoModelForSequenceClassification.from_pretrained(
            how.base,
            dtype=torch.float32,
            num_labels=len(labels),
            id2label=labels,
            label2id={label: number for number, label in labels.items()},
        )
    return model.to(how.device)


def _train(
    name: str, model: Any, source: Iterator[batches.Batch], rows: int, task: Task, how: How
) -> int:
    """AdamW with warm-up and a straight line to zero; the moving average of the weights is kept."""
    steps = max(1, task.epochs * (rows // min(task.batch, rows)))
    phase = Phase(model, Settings(), steps, task.rate, how.seconds)
    on_gpu = torch.device(how.device).type != "cpu"
    losses: list[torch.Tensor] = []
    told = time.monotonic()
    number = 0
    model.train()
    while phase.done(number) < 1.0:
        batch = {key: value.to(how.device) for key, value in next(source).items()}
        with torch.autocast(torch.device(how.device).type, torch.bfloat16, enabled=on_gpu):
            loss = model(**batch).loss
        loss.backward()
        phase.step(number)
        losses.append(loss.detach())
        number += 1
        if time.monotonic() - told > TELL_EVERY or number == steps:
            mean = float(torch.stack(losses).mean())
            if not math.isfinite(mean):
                raise SystemExit(f"{name}: the loss is {mean} at step {number}; lower the rate.")
            log.info("%s: step %d of %d, loss %.4f", name, number, steps, mean)
            told = time.monotonic()
            losses.clear()
    phase.average.swap()
    model.eval()
    return number


def _endless(encoded: Encoded, size: int, seed: int) -> Iterator[batches.Batch]:
    random = np.random.default_rng(seed)
    while True:
        for rows in batches.row_order(encoded.lengths, size, random):
            yield encoded.batch(rows)


def measure(folder: Path, task: Task, device: str) -> dict[str, float]:
    """Accuracy, or F1 and exact match, of the files in ``folder`` on the rows kept for measuring."""
    rows = data.read_rows(task.dev, task.dev_rows)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if task.kind == "question":
        model = AutoModelForQuestionAnswering.from_pretrained(folder, dtype=torch.float32)
        guesses = answers_of(model.to(device).eval(), tokenizer, rows, device)
        golds = [[gold["text"] for gold in row["answers"]] for row in rows]
        pairs = list(zip(guesses, golds, strict=True))
        return {
            "dev_rows": len(rows),
            "f1": round(sum(squad.overlap(*pair) for pair in pairs) / len(rows), 4),
            "exact_match": round(sum(squad.exact(*pair) for pair in pairs) / len(rows), 4),
        }
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    right = _right(model.to(device).eval(), tokenizer, task, rows)
    return {"dev_rows": len(rows), "accuracy": round(right / len(rows), 4)}


@torch.inference_mode()
def _right(model: Any, tokenizer: Any, task: Task, rows: list[dict[str, Any]]) -> int:
    given = tokenizer(*parts(task, rows), truncation=True, max_length=task.longest)
    labels = np.array([row["label"] for row in rows])
    right = 0
    for chosen in by_length(given["input_ids"]):
        inputs = tokenizer.pad(
            {key: [values[i] for i in chosen] for key, values in given.items()},
            return_tensors="pt",
        )
        guesses = model(**inputs.to(model.device)).logits.argmax(-1).cpu().numpy()
        right += int((guesses == labels[chosen]).sum())
    return right


def table(figures: dict[str, dict[str, Any]]) -> str:
    """What was reached, as a markdown table."""
    lines = ["| data set | rows learned | steps | dev rows | reached | seconds |", "|---" * 6 + "|"]
    for name, found in figures.items():
        names = [key for key in ("accuracy", "f1", "exact_match") if key in found]
        reached = ", ".join(f"{key.replace('_', ' ')} {found[key]:.4f}" for key in names)
        seconds = sum(found["seconds"].values())
        lines.append(
            f"| {name} | {found['rows']:,} | {found['steps']:,} | {found['dev_rows']:,} | {reached} | "
            f"{seconds:.0f} |"
        )
    return "\n".join(lines)


def _quiet(together: int) -> None:
    """How a process of the pool begins."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if together > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // together))


def finetune_all(
    tasks: dict[str, Task], how: How, together: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Figures by data set in the order asked for, and of those that failed, why."""
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    how.out.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(together, spawn, _quiet, (together,)) as pool:
        waiting = {pool.submit(finetune, name, task, how): name for name, task in tasks.items()}
        for done in as_completed(waiting):
            name = waiting[done]
            error = done.exception()
            if error is None:
                found[name] = done.result()
            else:
                failed[name] = repr(error)
            write_json(how.out / "figures.json", _told(found, tasks, how))
    return {name: found[name] for name in tasks if name in found}, failed


def _told(found: dict[str, dict[str, Any]], tasks: dict[str, Task], how: How) -> dict[str, Any]:
    where = torch.cuda.get_device_name() if how.device.startswith("cuda") else "CPU"
    return {
        "measured": f"fp16 files computed in float32 on {where}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, base {how.base.name}, seed {how.seed}",
        "figures": {name: found[name] for name in tasks if name in found},
    }


def main() -> None:
    """Fine-tune what was asked for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m training.finetune", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base encoder")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models")
    parser.add_argument("--data", type=Path, help="the data sets; TOKENLIGHT_DATA if not given")
    parser.add_argument("--only", nargs="+", choices=[*TASKS], default=[*TASKS], metavar="TASK")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--together", type=int, help="data sets at once; on a GPU 9, else 1")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="shorten the training of a data set to this"
    )
    parser.add_argument("--rate", type=float, help="of every task, instead of its own")
    parser.add_argument("--epochs", type=int, help="of every task, instead of its own")
    parser.add_argument("--held-out", type=Path, help="folder for texts kept out of training")
    parser.add_argument("--quick", action="store_true", help="a few rows and steps, to test")
    given = parser.parse_args()
    if given.data is not None:
        os.environ["TOKENLIGHT_DATA"] = str(given.data.resolve())
    data.data_folder()
    tasks = {name: quick(TASKS[name]) if given.quick else TASKS[name] for name in given.only}
    chosen = {key: getattr(given, key) for key in ("rate", "epochs") if getattr(given, key)}
    tasks = {name: dataclasses.replace(task, **chosen) for name, task in tasks.items()}
    how = How(given.base, given.out, given.device, given.seed, given.seconds, given.held_out)
    together = given.together or TOGETHER[torch.device(given.device).type]
    begun = time.monotonic()
    figures, failed = finetune_all(tasks, how, together)
    print(table(figures))
    print(f"\n{_told(figures, tasks, how)['measured']}; {time.monotonic() - begun:.0f} s in all.")
    for name, why in failed.items():
        print(f"{name} failed: {why}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
