"""Evaluate the model on the held-out parts of the training data, to stop in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from training import batches

if TYPE_CHECKING:
    from training.train import Trainer

BATCH_SIZE = 128
MASKING_SEED = 0


@torch.no_grad()
def evaluate_held_out(trainer: Trainer, tasks: tuple[str, ...]) -> dict[str, float]:
    """Score the model on held-out rows.

    Returns:
        By task: accuracy (sentiment, topics), token F1 (qa) or masked top-1 accuracy, from 0 to 1.
    """
    trainer.model.eval()
    scores = {}
    for task in tasks:
        if task == "qa":
            score = _score_questions(trainer)
        elif task == "masked_lm":
            score = _score_masked_lm(trainer)
        else:
            score = _score_classification(trainer, task)
        scores[task] = round(score, 4)
    return scores


def _split_rows(num_rows: int) -> list[np.ndarray]:
    """Split row numbers into batches of about equal size."""
    num_batches = -(-num_rows // BATCH_SIZE)
    return np.array_split(np.arange(num_rows), num_batches)


def _move_batch(batch: batches.Batch, device: torch.device) -> batches.Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _score_classification(trainer: Trainer, task: str) -> float:
    prefix = f"{task}_held_out"
    num_correct = 0
    num_rows = len(trainer.arrays[f"{prefix}_raw_ends"])
    for rows in _split_rows(num_rows):
        batch = batches.build_classification_batch(trainer.arrays, prefix, rows, "raw")
        labels = batch.pop("labels")
        with trainer.autocast():
            output = getattr(trainer.model, task)(**_move_batch(batch, trainer.device))
        predictions = output.logits.argmax(-1).cpu()
        num_correct += int((predictions == labels).sum())
    return num_correct / num_rows


def _score_questions(trainer: Trainer) -> float:
    scores = []
    for rows in _split_rows(len(trainer.arrays["qa_held_out_ends"])):
        batch = batches.build_question_batch(trainer.arrays, "qa_held_out", rows)
        answer_starts = batch.pop("start_positions")
        answer_ends = batch.pop("end_positions")
        with trainer.autocast():
            output = trainer.model.qa(**_move_batch(batch, trainer.device))
        starts = output.start_logits.argmax(-1).cpu()
        ends = output.end_logits.argmax(-1).cpu()
        scores.append(_compute_span_f1(starts, ends, answer_starts, answer_ends))
    return float(torch.cat(scores).mean())


def _compute_span_f1(
    starts: Tensor, ends: Tensor, answer_starts: Tensor, answer_ends: Tensor
) -> Tensor:
    """Compute the token F1 of predicted spans, whose ends are inclusive, ``batch``."""
    first_shared = torch.maximum(starts, answer_starts)
    last_shared = torch.minimum(ends, answer_ends)
    num_shared = (last_shared - first_shared + 1).clamp(min=0)
    num_predicted = (ends - starts + 1).clamp(min=1)
    num_gold = answer_ends - answer_starts + 1
    return 2 * num_shared / (num_predicted + num_gold)


def _score_masked_lm(trainer: Trainer) -> float:
    settings = trainer.settings
    generator = torch.Generator(trainer.device).manual_seed(MASKING_SEED)
    blocks = batches.cut_blocks(trainer.held_out_stream, settings.block_length, 0).long()
    num_correct = 0
    num_masked = 0
    for block_batch in torch.split(blocks, BATCH_SIZE):
        masked = batches.mask_tokens(
            block_batch, settings.masked_share, len(trainer.pieces), generator
        )
        with trainer.autocast():
            logits = trainer.model.compute_masked_logits(masked.input_ids, masked.positions)
        num_correct += int((logits.argmax(-1) == masked.labels).sum())
        num_masked += len(masked.labels)
    return num_correct / num_masked
