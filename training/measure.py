"""Measure the shipped files on the full public splits and print the table the model cards quote.

Everything goes through plain ``from_pretrained`` of the shipped directories. Also writes
``figures.json`` beside them, which ``tokenlight models`` shows.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

from training import batches, data, squad
from training.model import PAIR_TASK
from training.reporting import describe_measurement, format_table, write_json
from training.windows import cut_windows

MODELS = Path(__file__).resolve().parents[1] / "src" / "tokenlight" / "models"
SPLITS = {
    "sentiment": "SST-2 dev",
    "topics": "AG News test",
    "qa": "SQuAD v1.1 dev",
    "masked_lm": "wiki_en valid",
    PAIR_TASK: "SNLI test",
}
# What follows "rows" and "accuracy" in the figures, and the rows below the data folder.
PAIR_SPLITS = {"": "snli/test.jsonl.gz", "_mnli": "mnli/dev_matched_1000.jsonl.gz"}
BATCH_SIZE = 32
MASKING_SEED = 7
MASKED_SHARE = 0.15
BLOCK_LENGTH = 128


def load_model(model_class: Any, folder: Path, device: str) -> tuple[Any, Any]:
    """Load a shipped model in float32, and its tokenizer."""
    model = model_class.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def batch_by_length(ids: list[list[int]]) -> list[list[int]]:
    """Group row numbers into batches of similar length, so that little is padded."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    row_batches = []
    for start in range(0, len(order), BATCH_SIZE):
        row_batches.append(order[start : start + BATCH_SIZE])
    return row_batches


@torch.inference_mode()
def predict_labels(
    model: Any, tokenizer: Any, columns: Sequence[list[str]], max_tokens: int | None = None
) -> list[int]:
    """Predict the label of each row.

    Args:
        model: A sequence classifier.
        tokenizer: Its tokenizer.
        columns: One list of texts, or two of the halves of pairs.
        max_tokens: Length at which rows are truncated; None takes the tokenizer's own.

    Returns:
        Predicted label of each row.
    """
    encoded = tokenizer(*columns, truncation=True, max_length=max_tokens)
    predictions = [0] * len(columns[0])
    for rows in batch_by_length(encoded["input_ids"]):
        row_inputs = {}
        for name, values in encoded.items():
            row_inputs[name] = [values[row] for row in rows]
        inputs = tokenizer.pad(row_inputs, return_tensors="pt").to(model.device)
        batch_predictions = model(**inputs).logits.argmax(-1).tolist()
        for row, prediction in zip(rows, batch_predictions, strict=True):
            predictions[row] = prediction
    return predictions


def classify(models: Path, task: str, rows: list[dict[str, Any]], device: str) -> list[int]:
    """Predict the label of each row with a shipped classifier."""
    model, tokenizer = load_model(BertForSequenceClassification, models / task, device)
    return predict_labels(model, tokenizer, [[row["text"] for row in rows]])


def count_correct(predictions: list[int], rows: list[dict[str, Any]]) -> int:
    """Count the rows whose predicted label is the given one."""
    num_correct = 0
    for prediction, row in zip(predictions, rows, strict=True):
        num_correct += prediction == row["label"]
    return num_correct


def measure_classifier(
    models: Path, task: str, split: str, device: str, max_rows: int | None = None
) -> dict[str, float]:
    """Measure the accuracy of a shipped classifier.

    Args:
        models: Folder of the shipped models.
        task: Name of the classifier.
        split: Path of the rows below the data folder.
        device: Name of a torch device.
        max_rows: Largest number of rows; None takes all.

    Returns:
        ``rows`` and ``accuracy``.
    """
    rows = data.read_rows(split, max_rows)
    num_correct = count_correct(classify(models, task, rows, device), rows)
    return {"rows": len(rows), "accuracy": num_correct / len(rows)}


def measure_pairs(models: Path, device: str, max_rows: int | None = None) -> dict[str, float]:
    """Measure the accuracy of the shipped pair model on SNLI test, and on the MNLI rows at hand."""
    model, tokenizer = load_model(BertForSequenceClassification, models / PAIR_TASK, device)
    figures: dict[str, float] = {}
    for name, path in PAIR_SPLITS.items():
        rows = data.read_rows(path, max_rows)
        columns = [[row["text_a"] for row in rows], [row["text_b"] for row in rows]]
        num_correct = count_correct(predict_labels(model, tokenizer, columns), rows)
        figures[f"rows{name}"] = len(rows)
        figures[f"accuracy{name}"] = num_correct / len(rows)
    return figures


def answer_questions(models: Path, rows: list[dict[str, Any]], device: str) -> list[str]:
    """Answer each question with the shipped model."""
    model, tokenizer = load_model(BertForQuestionAnswering, models / "qa", device)
    return predict_answers(model, tokenizer, rows)


@torch.inference_mode()
def predict_answers(model: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> list[str]:
    """Answer each question with a part of its context; the best window decides."""
    windows = cut_windows(tokenizer, rows)
    best_spans: dict[int, squad.AnswerSpan] = {}
    for batch in batch_by_length([window.ids for window in windows]):
        window_inputs = {
            "input_ids": [windows[index].ids for index in batch],
            "token_type_ids": [windows[index].token_type_ids for index in batch],
        }
        inputs = tokenizer.pad(window_inputs, return_tensors="pt").to(model.device)
        output = model(**inputs)
        start_logits = output.start_logits.cpu()
        end_logits = output.end_logits.cpu()
        for i, index in enumerate(batch):
            window = windows[index]
            span = squad.find_best_span(start_logits[i], end_logits[i], window)
            best_spans[window.row] = max(best_spans.get(window.row, span), span)
    answers = []
    for index, row in enumerate(rows):
        span = best_spans[index]
        answers.append(row["context"][span.start : span.end])
    return answers


def measure_questions(models: Path, device: str, max_rows: int | None = None) -> dict[str, float]:
    """Measure F1 and exact match on SQuAD v1.1, as officially scored."""
    rows = data.read_rows("squad_v1/dev.jsonl.gz", max_rows)
    predictions = answer_questions(models, rows, device)
    return {"rows": len(rows), **squad.score_predictions(predictions, rows)}


def cut_paragraphs(tokenizer: Any, paragraphs: list[str]) -> list[list[int]]:
    """Cut paragraphs into ``[CLS] … [SEP]`` blocks of at most 128 tokens."""
    inner_length = BLOCK_LENGTH - 2
    blocks = []
    for ids in tokenizer(paragraphs, add_special_tokens=False, verbose=False)["input_ids"]:
        for start in range(0, len(ids), inner_length):
            inner = ids[start : start + inner_length]
            blocks.append([tokenizer.cls_token_id, *inner, tokenizer.sep_token_id])
    return blocks


@torch.inference_mode()
def measure_masked_lm(
    models: Path, device: str, max_paragraphs: int | None = None
) -> dict[str, float]:
    """Measure top-1 accuracy at masked tokens of the Wikipedia validation paragraphs.

    15 % of the ordinary pieces are chosen (seed 7); of these 80 % become [MASK], 10 % a random piece
    and 10 % stay.
    """
    model, tokenizer = load_model(BertForMaskedLM, models / "masked_lm", device)
    blocks = cut_paragraphs(tokenizer, list(data.read_paragraphs("valid", max_paragraphs)))
    generator = torch.Generator().manual_seed(MASKING_SEED)
    num_correct = 0
    num_masked = 0
    for batch in batch_by_length(blocks):
        block_ids = [blocks[index] for index in batch]
        inputs = tokenizer.pad({"input_ids": block_ids}, return_tensors="pt")
        masked = batches.mask_tokens(inputs["input_ids"], MASKED_SHARE, len(tokenizer), generator)
        attention_mask = inputs["attention_mask"].to(device)
        hidden_states = model.bert(masked.input_ids.to(device), attention_mask).last_hidden_state
        logits = model.cls(hidden_states.flatten(0, 1)[masked.positions.to(device)])
        num_correct += int((logits.argmax(-1).cpu() == masked.labels).sum())
        num_masked += len(masked.labels)
    return {
        "rows": len(blocks),
        "masked_places": num_masked,
        "top_1": num_correct / num_masked,
    }


def measure_task(
    models: Path, task: str, device: str, max_rows: int | None = None
) -> dict[str, float]:
    """Measure the shipped model of a task on its public split."""
    if task == "sentiment":
        return measure_classifier(models, task, "sst2/dev.jsonl.gz", device, max_rows)
    if task == "topics":
        return measure_classifier(models, task, "ag_news/test.jsonl.gz", device, max_rows)
    if task == "qa":
        return measure_questions(models, device, max_rows)
    if task == PAIR_TASK:
        return measure_pairs(models, device, max_rows)
    return measure_masked_lm(models, device, max_rows)


def measure_all(
    models: Path, device: str, max_rows: int | None = None
) -> dict[str, dict[str, Any]]:
    """Measure all heads on the whole splits, or on their first ``max_rows`` rows."""
    figures: dict[str, dict[str, Any]] = {}
    for task, split in SPLITS.items():
        start_time = time.monotonic()
        figures[task] = {"split": split}
        for name, value in measure_task(models, task, device, max_rows).items():
            figures[task][name] = round(value, 4)
        seconds = time.monotonic() - start_time
        sys.stderr.write(f"{task}: {figures[task]} in {seconds:.0f} s\n")
    return figures


def format_figures(figures: dict[str, dict[str, Any]]) -> str:
    """Format the figures as a markdown table."""
    table_rows = []
    for task, entry in figures.items():
        scores = []
        for name, value in entry.items():
            if name not in ("split", "rows", "masked_places"):
                scores.append(f"{name.replace('_', ' ')} {value:.4f}")
        table_rows.append([task, entry["split"], f"{entry['rows']:,}", ", ".join(scores)])
    return format_table(["head", "split", "rows", "figure"], table_rows)


def main() -> None:
    """Measure, write figures.json, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="the folder of shipped files")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--most-rows", type=int, help="only the first rows, to test the recipe")
    arguments = parser.parse_args()
    figures = measure_all(arguments.models, arguments.device, arguments.most_rows)
    measurement = f"{describe_measurement(arguments.device)}, Python {platform.python_version()}"
    write_json(arguments.models / "figures.json", {"measured": measurement, "figures": figures})
    sys.stdout.write(f"{format_figures(figures)}\n\nMeasured: {measurement}.\n")


if __name__ == "__main__":
    main()
