"""What an engine hands to a worker, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenlight.bench.plan import Part


@dataclass(frozen=True)
class Task:
    """A part to make, or the heads file of a part's model."""

    kind: Literal["part", "heads"]
    part: Part


@dataclass(frozen=True)
class Outcome:
    """What became of a task: ``trouble`` is empty where it is done; a ``full`` disk stops the run."""

    task: Task
    seconds: float = 0.0
    failed: int = 0  # examples with an error
    trouble: str = ""
    full: bool = False
