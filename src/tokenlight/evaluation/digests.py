"""Digests that identify the model and the files behind a number: a name may stand for others later.

A run stores digests when it is planned, and every worker that reads the same model or file later compares
them. A file that changed in between is refused, so that numbers of two versions are never mixed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tokenlight.errors import BadInput
from tokenlight.explainer import Explainer
from tokenlight.models.embedded import digest_file

SAMPLED_VALUES = 64  # values of each weight that enter the digest one by one
SUM_CHUNK_SIZE = 1 << 22  # values summed at once: a sum in int64 needs a copy of them
# Integer types by the size of a value in bytes.
INTEGER_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_weights(explainer: Explainer) -> str:
    """Digest every weight: its name, its shape, a sample of its values, and the sum of its bits.

    The bits are summed as integers, which gives the same result in any order, so on every device and with
    any number of threads. For a weight on disk (an offloaded model) only name and shape are known.
    """
    facts: list[object] = []
    for name, weight in explainer.runner.model.named_parameters():
        facts += [name, tuple(weight.shape)]
        if weight.is_meta or not weight.numel():
            continue
        flat = weight.detach().flatten()
        step = max(1, len(flat) // SAMPLED_VALUES)
        facts.append(flat[::step].float().tolist())
        # A subclass, such as a quantized tensor of another library, cannot be viewed as integers.
        if type(flat) is torch.Tensor:
            bits = flat.view(INTEGER_DTYPES[flat.element_size()])
            chunks = torch.split(bits, SUM_CHUNK_SIZE)
            facts.append([int(chunk.sum(dtype=torch.int64)) for chunk in chunks])
    return digest_values(facts)


def digest_tokenizer(tokenizer: Any) -> str:
    """Digest what a tokenizer does with a text; for an image processor, its settings."""
    content = ""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        settings = json.loads(backend.to_str())
        # These two only reflect the last call.
        settings.pop("truncation", None)
        settings.pop("padding", None)
        content = json.dumps(settings)
    elif hasattr(tokenizer, "get_vocab"):
        content = repr(sorted(tokenizer.get_vocab().items()))
    elif hasattr(tokenizer, "to_json_string"):
        content = tokenizer.to_json_string()
    return f"{type(tokenizer).__name__} {digest_values([content])}"


def digest_files(options: Iterable[Mapping[str, Any]]) -> str:
    """Digest the files and model folders that options name; empty if they name none."""
    digests = []
    for option_values in options:
        for name, value in option_values.items():
            for path in _list_option_files(value):
                digests.append((name, path, digest_file(path)))
    return digest_values(digests) if digests else ""


def _list_option_files(value: Any) -> Iterator[str]:
    """Yield the file that an option names, or the files of the model folder that it names."""
    if not isinstance(value, str | Path) or not str(value):
        return
    paths = [str(value)]
    # os.path returns False for a text that is too long for a file name; pathlib would raise.
    if os.path.isfile(os.path.join(value, "config.json")):
        paths = sorted(str(path) for path in Path(value).iterdir())
    for path in paths:
        if os.path.isfile(path):
            yield path


def digest_values(values: Iterable[object]) -> str:
    """Digest values by their ``repr``."""
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        digest.update(repr(value).encode())
    return digest.hexdigest()


def check_unchanged(settings: Mapping[str, Any], kind: str, name: str, current: str) -> None:
    """Raise if a model or file is no longer what it was when the run was planned.

    Call this *after* reading it, so that a change during the reading is noticed too.

    Args:
        settings: The settings of the run.
        kind: The entry of the settings: a digest, or digests by name.
        name: Name of the model or file.
        current: Its digest now.

    Raises:
        BadInput: The digests differ.
    """
    known = settings.get(kind, "")
    planned = known.get(name) if isinstance(known, Mapping) else known
    if planned != current:
        raise BadInput(
            f"{kind}: {name} has changed since this run was started. Results of two versions must not be "
            "mixed. Restore it, or start another run with -o.",
            code="changed-since-planning",
        )
