"""How well the model does on the held-out parts of the training data, to stop in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from training import batches

if TYPE_CHECKING:
    from training.train import Trainer

SIZE = 128


@torch.no_grad()
def look(trainer: Trainer, tasks: tuple[str, ...]) -> dict[str, float]:
    """Accuracy (sentiment, topics), token F1 (qa) and masked top-1 accuracy, each from 0 to 1."""
    trainer.model.eval()
    measures = {"qa": _questions, "masked_lm": _masked}
    return {task: round(measures.get(task, _classification)(trainer, task), 4) for task in tasks}


def _row_batches(trainer: Trainer, task: str, ends_name: str) -> list[np.ndarray]:
    count = len(trainer.arrays[f"{task}_held_out_{ends_name}"])
    return np.array_split(np.arange(count), -(-count // SIZE))


def _classification(trainer: Trainer, task: str) -> float:
    right = total = 0
    for rows in _row_batches(trainer, task, "raw_ends"):
        batch = batches.classification(trainer.arrays, f"{task}_held_out", rows, "raw")
        labels = batch.pop("labels")
        moved = {name: tensor.to(trainer.device) for name, tensor in batch.items()}
        with trainer.autocast():
            guess = getattr(trainer.model, task)(**moved).logits.argmax(-1).cpu()
        right += int((guess == labels).sum())
        total += len(labels)
    return right / total


def _questions(trainer: Trainer, task: str) -> float:
    overlaps = []
    for rows in _row_batches(trainer, task, "ends"):
        batch = batches.questions(trainer.arrays, f"{task}_held_out", rows)
        first = batch.pop("start_positions")
        last = batch.pop("end_positions")
        moved = {name: tensor.to(trainer.device) for name, tensor in batch.items()}
        with trainer.autocast():
            output = trainer.model.qa(**moved)
        begin = output.start_logits.argmax(-1).cpu()
        end = output.end_logits.argmax(-1).cpu()
        shared = (torch.minimum(end, last) - torch.maximum(begin, first) + 1).clamp(min=0)
        size = (end - begin + 1).clamp(min=1) + (last - first + 1)
        overlaps.append(2 * shared / size)
    return float(torch.cat(overlaps).mean())


def _masked(trainer: Trainer, task: str) -> float:
    del task
    generator = torch.Generator(trainer.device).manual_seed(0)
    right = total = 0
    held = batches.blocks(trainer.held_stream, trainer.settings.block, 0).long()
    for block in torch.split(held, SIZE):
        ids, places, pieces = batches.mask(
            block, trainer.settings.masked_share, len(trainer.pieces), generator
        )
        with trainer.autocast():
            guess = trainer.model.masked_logits(ids, places).argmax(-1)
        right += int((guess == pieces).sum())
        total += len(pieces)
    return right / total
