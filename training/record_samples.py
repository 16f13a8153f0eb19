"""Store what the shipped files predict for the project's own sample sentences.

The tests compare with these predictions, so run this once after every export.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import BertForMaskedLM

from training import squad
from training.measure import MODELS, answer_questions, classify, load_model
from training.model import LABELS

SAMPLES = Path(__file__).resolve().parents[1] / "tests" / "unit" / "embedded_samples"


@torch.inference_mode()
def fill_masks(models: Path, texts: list[str]) -> list[str]:
    """Predict the piece at the one [MASK] of each text."""
    model, tokenizer = load_model(BertForMaskedLM, models / "masked_lm", "cpu")
    pieces = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        position = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        predicted_id = int(model(**inputs).logits[0, position].argmax())
        pieces.append(tokenizer.convert_ids_to_tokens(predicted_id))
    return pieces


def predict_samples(task: str, rows: list[dict[str, Any]]) -> list[str]:
    """Predict each sample with the shipped model of a task."""
    if task == "qa":
        return answer_questions(MODELS, rows, "cpu")
    if task == "masked_lm":
        return fill_masks(MODELS, [row["text"] for row in rows])
    return [LABELS[task][label] for label in classify(MODELS, task, rows, "cpu")]


def main() -> None:
    """Rewrite the sample files and print how many samples each model predicts as expected."""
    for path in sorted(SAMPLES.glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))
        num_expected = 0.0
        for row, prediction in zip(rows, predict_samples(path.stem, rows), strict=True):
            row["predicted"] = prediction
            num_expected += squad.match_exactly(prediction, [row["expected"]])
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.stem}: {num_expected:.0f} of {len(rows)} as expected\n")


if __name__ == "__main__":
    main()
