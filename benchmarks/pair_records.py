"""What the benchmarks of language models share: records that grow line by line, and intervals of shares."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON Lines file, none if it does not exist.

    A last line that was cut short, because a run was stopped while it wrote, is removed from the file.
    """
    if not path.is_file():
        return []
    text = path.read_text("utf-8")
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines = lines[:-1]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def wilson(share: float, cases: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z = 1.96
    middle = (share + z * z / (2 * cases)) / (1 + z * z / cases)
    half = z * sqrt(share * (1 - share) / cases + z * z / (4 * cases**2)) / (1 + z * z / cases)
    return max(0.0, middle - half), min(1.0, middle + half)
