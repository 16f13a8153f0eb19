"""What was measured, and where: the facts that stand above every table of figures."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import torch
import transformers


def facts(device: str, **more: Any) -> dict[str, Any]:
    """Commit (the environment's COMMIT where there is no repository), versions, device, TF32."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "commit": os.environ.get("COMMIT") or commit.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "tf32": torch.backends.cuda.matmul.fp32_precision == "tf32" if device == "cuda" else None,
        **more,
    }
