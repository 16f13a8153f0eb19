"""Store what the shipped files predict for the project's own sample sentences.

The tests compare with these predictions, so run it once after every export.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import BertForMaskedLM

from training import squad
from training.measure import MODELS, answer, classify, load
from training.model import LABELS

SAMPLES = Path(__file__).resolve().parents[1] / "tests" / "unit" / "embedded_samples"


@torch.inference_mode()
def hidden_words(models: Path, texts: list[str]) -> list[str]:
    """The piece the masked LM puts first for the one [MASK] of each text."""
    model, tokenizer = load(BertForMaskedLM, models / "masked_lm", "cpu")
    words = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        words.append(
            tokenizer.convert_ids_to_tokens(int(model(**inputs).logits[0, place].argmax()))
        )
    return words


def predictions(task: str, rows: list[dict[str, Any]]) -> list[str]:
    """What the shipped model of a task says to each sample."""
    if task == "qa":
        return answer(MODELS, rows, "cpu")
    if task == "masked_lm":
        return hidden_words(MODELS, [row["text"] for row in rows])
    return [LABELS[task][label] for label in classify(MODELS, task, rows, "cpu")]


def main() -> None:
    """Rewrite the sample files and say how many samples each model gets right."""
    for path in sorted(SAMPLES.glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))
        for row, predicted in zip(rows, predictions(path.stem, rows), strict=True):
            row["predicted"] = predicted
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        right = sum(squad.exact(row["predicted"], [row["expected"]]) for row in rows)
        sys.stdout.write(f"{path.stem}: {right:.0f} of {len(rows)} as expected\n")


if __name__ == "__main__":
    main()
