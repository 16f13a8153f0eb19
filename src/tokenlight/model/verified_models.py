"""Remember on disk which models passed their probes, so that a later process need not repeat them.

A model is recognized by a digest of everything its logits depend on: weights, config, classes of its modules,
and versions. A model that was changed after loading therefore has another digest, and is probed. Only
models that passed are remembered, as small JSON files; a damaged one counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenlight.files.parsing import read_json
from tokenlight.files.user_cache import find_cache_folder
from tokenlight.files.write import write_text
from tokenlight.model.probe_rows import is_checkable
from tokenlight.version import VERSION, get_version

if TYPE_CHECKING:
    from tokenlight.model.probe_results import ProbeResults
    from tokenlight.model.runner import ModelRunner

# Above this, a digest of the weights costs about as much as the probes.
MAX_DIGESTED_BYTES = 1 << 28
_TRUSTED_PACKAGES = ("torch", "transformers")
_ROUTES = ("hook", "eager", None)


def fingerprint_model(runner: ModelRunner) -> str | None:
    """Return a digest of all that decides the logits of a model.

    Args:
        runner: The model to run.

    Returns:
        The digest; None for a model that is large, on a GPU or quantized, or runs code other than that of
        torch and transformers, which a digest cannot vouch for.
    """
    model = runner.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    total_bytes = sum(tensor.nbytes for _, tensor in tensors)
    if total_bytes > MAX_DIGESTED_BYTES or not all(_is_readable(tensor) for _, tensor in tensors):
        return None
    if not all(_runs_library_code(module) for module in model.modules()):
        return None
    facts = {
        "versions": _describe_versions(),
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "modules": [
            f"{name} {type(module).__qualname__}" for name, module in model.named_modules()
        ],
        "tensors": [f"{name} {tensor.dtype} {[*tensor.shape]}" for name, tensor in tensors],
        "task": runner.head.task,
    }
    digest = hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode())
    for _, tensor in tensors:
        values = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(values.numpy()))
    return digest.hexdigest()


def _is_readable(tensor: Tensor) -> bool:
    """Return whether the bytes of a tensor can be read at no cost."""
    return tensor.device.type == "cpu" and (tensor.numel() == 0 or _is_plain(tensor))


def _is_plain(tensor: Tensor) -> bool:
    is_integer = type(tensor) is Tensor and not tensor.is_floating_point()
    return is_integer or is_checkable(tensor)


def _runs_library_code(module: nn.Module) -> bool:
    """Return whether a module computes what its class in torch or transformers says, and nothing else."""
    package = type(module).__module__.partition(".")[0]
    is_patched = "forward" in vars(module)
    has_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    return package in _TRUSTED_PACKAGES and not is_patched and not has_hooks


@cache
def _describe_versions() -> list[str]:
    """Name the code and the processor on which logits depend; a changed checkout counts as a new version."""
    package = Path(__file__).parents[1]
    newest_change = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    return [
        VERSION,
        str(newest_change),
        torch.__version__,
        get_version("transformers"),
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
    ]


def restore_results(fingerprint: str, results: ProbeResults, *, needs_route: bool) -> bool:
    """Fill in the results of the short-row probes that an earlier process remembered.

    Args:
        fingerprint: The digest of the model.
        results: Filled in if the model is known.
        needs_route: Whether the route of recorded attention must be among the results.

    Returns:
        Whether the results were filled in.
    """
    path = _build_record_path(fingerprint)
    if path is None:
        return False
    try:
        record: Any = read_json(path)
    except (OSError, ValueError):
        return False
    if not _is_valid(record) or (needs_route and record["verified_route"] is None):
        return False
    results.is_padding_invariant = record["is_padding_invariant"]
    results.is_batch_invariant = record["is_batch_invariant"]
    results.verified_route = record["verified_route"]
    return True


def remember_results(fingerprint: str, results: ProbeResults) -> None:
    """Write down that a model passed; a folder that cannot be written costs later processes a probe."""
    path = _build_record_path(fingerprint)
    if path is None:
        return
    record = {
        "is_padding_invariant": results.is_padding_invariant,
        "is_batch_invariant": results.is_batch_invariant,
        "verified_route": results.verified_route,
    }
    with suppress(OSError):
        write_text(path, json.dumps(record))


def _build_record_path(fingerprint: str) -> Path | None:
    folder = find_cache_folder()
    return None if folder is None else folder / "verified" / f"{fingerprint}.json"


def _is_valid(record: Any) -> bool:
    if not isinstance(record, dict) or record.get("verified_route", "") not in _ROUTES:
        return False
    names = ("is_padding_invariant", "is_batch_invariant")
    return all(isinstance(record.get(name), bool) for name in names)
