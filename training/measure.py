"""Measure the shipped files on the full public splits and print the table the model cards quote.

Everything goes through plain ``from_pretrained`` of the shipped directories. Also writes
``figures.json`` beside them, which ``tokenlight models`` shows.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

from training import batches, data, squad
from training.export import write_json
from training.windows import windows

MODELS = Path(__file__).resolve().parents[1] / "src" / "tokenlight" / "models"
BATCH = 32
MASK_SEED = 7
MASKED_SHARE = 0.15
BLOCK = 128


def load(kind: Any, directory: Path, device: str) -> tuple[Any, Any]:
    """A shipped model in float32, and its tokenizer."""
    model = kind.from_pretrained(directory, dtype=torch.float32).to(device).eval()
    return model, AutoTokenizer.from_pretrained(directory)


def by_length(ids: list[list[int]]) -> list[list[int]]:
    """Row numbers in batches of like length, so that little is padded."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


@torch.inference_mode()
def classify(models: Path, task: str, rows: list[dict[str, Any]], device: str) -> list[int]:
    """Predicted label of each row."""
    model, tokenizer = load(BertForSequenceClassification, models / task, device)
    texts = [row["text"] for row in rows]
    lengths = tokenizer(texts, truncation=True)["input_ids"]
    guesses = [0] * len(rows)
    for batch in by_length(lengths):
        inputs = tokenizer(
            [texts[row] for row in batch], truncation=True, padding=True, return_tensors="pt"
        ).to(device)
        for row, guess in zip(batch, model(**inputs).logits.argmax(-1).tolist(), strict=True):
            guesses[row] = guess
    return guesses


def accuracy(
    models: Path, task: str, split: str, device: str, most: int | None = None
) -> dict[str, float]:
    """Share of rows whose predicted label is the given one."""
    rows = data.read_rows(split, most)
    guesses = classify(models, task, rows, device)
    right = sum(guess == row["label"] for guess, row in zip(guesses, rows, strict=True))
    return {"rows": len(rows), "accuracy": right / len(rows)}


def answer(models: Path, rows: list[dict[str, Any]], device: str) -> list[str]:
    """The text the shipped model points at, for each question."""
    model, tokenizer = load(BertForQuestionAnswering, models / "qa", device)
    return answers_of(model, tokenizer, rows, device)


@torch.inference_mode()
def answers_of(model: Any, tokenizer: Any, rows: list[dict[str, Any]], device: str) -> list[str]:
    """The text a model points at, for each question; best window wins."""
    cut = windows(tokenizer, rows)
    best: dict[int, tuple[float, int, int]] = {}
    for batch in by_length([window.ids for window in cut]):
        inputs = tokenizer.pad(
            {
                "input_ids": [cut[index].ids for index in batch],
                "token_type_ids": [
                    [int(place >= cut[index].context_start) for place in range(len(cut[index].ids))]
                    for index in batch
                ],
            },
            return_tensors="pt",
        ).to(device)
        output = model(**inputs)
        starts = output.start_logits.cpu()
        ends = output.end_logits.cpu()
        for place, index in enumerate(batch):
            found = squad.best_span(starts[place], ends[place], cut[index])
            row = cut[index].row
            best[row] = max(best.get(row, found), found)
    return [row["context"][best[index][1] : best[index][2]] for index, row in enumerate(rows)]


def questions(models: Path, device: str, most: int | None = None) -> dict[str, float]:
    """SQuAD v1.1 exact match and F1, as officially scored."""
    rows = data.read_rows("squad_v1/dev.jsonl.gz", most)
    guesses = answer(models, rows, device)
    golds = [[gold["text"] for gold in row["answers"]] for row in rows]
    pairs = list(zip(guesses, golds, strict=True))
    return {
        "rows": len(rows),
        "f1": sum(squad.overlap(guess, gold) for guess, gold in pairs) / len(rows),
        "exact_match": sum(squad.exact(guess, gold) for guess, gold in pairs) / len(rows),
    }


@torch.inference_mode()
def masked(models: Path, device: str, most: int | None = None) -> dict[str, float]:
    """Top-1 accuracy at the masked places of the Wikipedia validation paragraphs.

    Paragraphs are cut into ``[CLS] … [SEP]`` blocks of at most 128 tokens; 15 % of the plain pieces
    are chosen (seed 7), of these 80 % become [MASK], 10 % a random piece, 10 % stay.
    """
    model, tokenizer = load(BertForMaskedLM, models / "masked_lm", device)
    paragraphs = list(data.read_paragraphs("valid", most))
    cut = []
    for ids in tokenizer(paragraphs, add_special_tokens=False, verbose=False)["input_ids"]:
        for start in range(0, len(ids), BLOCK - 2):
            part = ids[start : start + BLOCK - 2]
            cut.append([tokenizer.cls_token_id, *part, tokenizer.sep_token_id])
    generator = torch.Generator().manual_seed(MASK_SEED)
    right = total = 0
    for batch in by_length(cut):
        inputs = tokenizer.pad({"input_ids": [cut[index] for index in batch]}, return_tensors="pt")
        ids, places, pieces = batches.mask(
            inputs["input_ids"], MASKED_SHARE, len(tokenizer), generator
        )
        hidden = model.bert(ids.to(device), inputs["attention_mask"].to(device)).last_hidden_state
        logits = model.cls(hidden.flatten(0, 1)[places.to(device)])
        right += int((logits.argmax(-1).cpu() == pieces).sum())
        total += len(pieces)
    return {"rows": len(cut), "masked_places": total, "top_1": right / total}


def measure(models: Path, device: str, most: int | None = None) -> dict[str, dict[str, Any]]:
    """Figures of all four heads by task, on the whole splits or on their first ``most`` rows."""
    ways: dict[str, tuple[str, Callable[[], dict[str, float]]]] = {
        "sentiment": (
            "SST-2 dev",
            lambda: accuracy(models, "sentiment", "sst2/dev.jsonl.gz", device, most),
        ),
        "topics": (
            "AG News test",
            lambda: accuracy(models, "topics", "ag_news/test.jsonl.gz", device, most),
        ),
        "qa": ("SQuAD v1.1 dev", lambda: questions(models, device, most)),
        "masked_lm": ("wiki_en valid", lambda: masked(models, device, most)),
    }
    figures = {}
    for task, (split, way) in ways.items():
        started = time.monotonic()
        figures[task] = {"split": split, **{name: round(v, 4) for name, v in way().items()}}
        sys.stderr.write(f"{task}: {figures[task]} in {time.monotonic() - started:.0f} s\n")
    return figures


def table(figures: dict[str, dict[str, Any]]) -> str:
    """The figures as a markdown table."""
    lines = ["| head | split | rows | figure |", "|---|---|---|---|"]
    for task, entry in figures.items():
        values = [
            f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in entry.items()
            if name not in ("split", "rows", "masked_places")
        ]
        lines.append(f"| {task} | {entry['split']} | {entry['rows']:,} | {', '.join(values)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write figures.json, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="the folder of shipped files")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--most-rows", type=int, help="only the first rows, to test the recipe")
    arguments = parser.parse_args()
    figures = measure(arguments.models, arguments.device, arguments.most_rows)
    where = "CPU" if arguments.device == "cpu" else torch.cuda.get_device_name()
    how = (
        f"fp16 files computed in float32 on {where}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}"
    )
    write_json(arguments.models / "figures.json", {"measured": how, "figures": figures})
    sys.stdout.write(f"{table(figures)}\n\nMeasured: {how}.\n")


if __name__ == "__main__":
    main()
