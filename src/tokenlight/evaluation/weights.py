"""Which model and which files a number was made with: under an old name there may be others now.

Hashes are taken when a run is planned, and compared by every worker that reads the same file later. A
file that changed on the way is refused, so that no two are mixed."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from tokenlight.errors import BadInput
from tokenlight.explainer import Explainer
from tokenlight.models.embedded import digest_of

FEW = 64  # numbers of each weight that are looked at one by one
PIECE = 1 << 22  # numbers summed at once: a sum of whole numbers needs a copy of them
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes a number


def weight_digest(explainer: Explainer) -> str:
    """A digest of every weight: its name, its shape, some of its numbers, and the sum of all of them.

    The bits are added as whole numbers, whose sum is the same in any order: on every device and with
    any number of threads. Of a weight that waits on disk (an offloaded model) only name and shape are
    known.
    """
    found: list[object] = []
    for name, weight in explainer.live.model.named_parameters():
        found += [name, tuple(weight.shape)]
        if not weight.is_meta and weight.numel():
            flat = weight.detach().flatten()
            found.append(flat[:: max(1, len(flat) // FEW)].float().tolist())
            if type(flat) is torch.Tensor:  # one packed by another library has no bits of its own
                pieces = torch.split(flat.view(WHOLE[flat.element_size()]), PIECE)
                found.append([int(piece.sum(dtype=torch.int64)) for piece in pieces])
    return digest(found)


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of what a tokenizer does with a text; of a picture's processor, of its settings."""
    does = ""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        settings = json.loads(backend.to_str())
        # These are left over from the last call, and set anew by the next.
        does = json.dumps({k: v for k, v in settings.items() if k not in ("truncation", "padding")})
    elif hasattr(tokenizer, "get_vocab"):
        does = repr(sorted(tokenizer.get_vocab().items()))
    elif hasattr(tokenizer, "to_json_string"):
        does = tokenizer.to_json_string()
    return f"{type(tokenizer).__name__} {digest([does])}"


def files_digest(options: Iterable[Mapping[str, Any]]) -> str:
    """A digest of the files, and of the models' folders, that options name; empty where they name none."""
    found = []
    for name, value in ((name, one[name]) for one in options for name in one):
        places = [str(value)] if isinstance(value, str | Path) and str(value) else []
        # os.path takes words that are too long for a name, which name nothing.
        if places and os.path.isfile(os.path.join(value, "config.json")):
            places = sorted(str(inner) for inner in Path(value).iterdir())
        for place in filter(os.path.isfile, places):
            found.append((name, place, digest_of(place)))
    return digest(found) if found else ""


def digest(values: Iterable[object]) -> str:
    """Of values by what they show of themselves."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        found.update(repr(value).encode())
    return found.hexdigest()


def refuse_changed(settings: Mapping[str, Any], kind: str, name: str, now: str) -> None:
    """Refuse what is no longer as it was planned. Called *behind* the reading: what changes while it
    is read is noticed too."""
    known = settings.get(kind, "")
    before = known.get(name) if isinstance(known, Mapping) else known
    if before != now:
        changed = f"{kind}: {name} is not what it was when this run was begun"
        mixed = "numbers of two versions must not be mixed"
        raise BadInput(f"{changed}; {mixed}. Put it back as it was, or begin another run with -o.")
