"""What the training and measuring commands report: files of figures, tables and losses."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import transformers
from torch import Tensor

log = logging.getLogger(__name__)


def write_json(path: Path, content: object) -> None:
    """Write indented JSON that ends in a line feed."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def describe_device(device: str) -> str:
    """Name the processor: the model of the GPU, or "CPU"."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"


def describe_measurement(device: str) -> str:
    """Say how shipped files are measured: precision, device and versions."""
    return (
        f"fp16 files computed in float32 on {describe_device(device)}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a markdown table."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def set_up_logging() -> None:
    """Log messages with the time of day."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")


class LossLog:
    """Log the mean loss of a training every few seconds.

    Args:
        name: Name of the training, which begins each message.
        interval_seconds: Shortest time between two messages.
    """

    def __init__(self, name: str, interval_seconds: float) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.last_log_time = time.monotonic()
        self.losses: list[Tensor] = []

    def add(self, loss: Tensor, step: int, *, is_last: bool = False) -> float | None:
        """Note the loss of a step.

        Args:
            loss: The loss; it is read from the device only when a message is due.
            step: Number of steps taken.
            is_last: Whether a message is due in any case.

        Returns:
            The mean loss since the last message if one was logged, else None.
        """
        self.losses.append(loss.detach())
        is_due = time.monotonic() - self.last_log_time > self.interval_seconds
        if not is_due and not is_last:
            return None
        mean_loss = float(torch.stack(self.losses).mean())
        log.info("%s: step %d, loss %.4f", self.name, step, mean_loss)
        self.last_log_time = time.monotonic()
        self.losses.clear()
        return mean_loss
