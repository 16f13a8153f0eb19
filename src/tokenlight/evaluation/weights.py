"""Which model and which files a number was made with: under an old name there may be others now.

Hashes are taken when a run is planned, and compared by every worker that reads the same file later. A
file that changed on the way is refused, so that no two are mixed."""

import hashlib
import json
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
    digest = hashlib.blake2b(digest_size=8)
    for name, weight in explainer.live.model.named_parameters():
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        if not weight.is_meta and weight.numel():
            flat = weight.detach().flatten()
            some = flat[:: max(1, len(flat) // FEW)]
            digest.update(some.float().cpu().numpy().tobytes())
            if type(flat) is torch.Tensor:  # one packed by another library has no bits of its own
                pieces = torch.split(flat.view(WHOLE[flat.element_size()]), PIECE)
                sums = [int(piece.sum(dtype=torch.int64)) for piece in pieces]
                digest.update(str(sums).encode())
    return digest.hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of what a tokenizer does with a text; of a picture's processor, of its settings."""
    digest = hashlib.blake2b(digest_size=8)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "to_str"):
        settings = json.loads(backend.to_str())
        # These are left over from the last call, and set anew by the next.
        kept = {key: settings[key] for key in settings if key not in ("truncation", "padding")}
        digest.update(json.dumps(kept).encode())
    elif hasattr(tokenizer, "get_vocab"):
        digest.update(repr(sorted(tokenizer.get_vocab().items())).encode())
    elif hasattr(tokenizer, "to_json_string"):
        digest.update(tokenizer.to_json_string().encode())
    return f"{type(tokenizer).__name__} {digest.hexdigest()}"


def files_digest(options: Iterable[Mapping[str, Any]]) -> str:
    """A digest of the files and folders that options name; empty where they name none."""
    named = [(name, place) for one in options for name in one for place in _files(one[name])]
    found = "".join(f"{name} {place} {digest_of(str(place))}" for name, place in named)
    return hashlib.blake2b(found.encode(), digest_size=8).hexdigest() if found else ""


def _files(value: Any) -> list[Path]:
    """The file that a value names, or those of a model's folder."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        return []
    try:
        place = Path(value)
        if (place / "config.json").is_file():
            return sorted(inner for inner in place.iterdir() if inner.is_file())
        return [place] if place.is_file() else []
    except OSError:  # longer than a name may be: it names nothing
        return []


def refuse_changed(settings: Mapping[str, Any], kind: str, name: str, now: str) -> None:
    """Refuse what is no longer as it was planned. Called *behind* the reading: what changes while it
    is read is noticed too."""
    known = settings.get(kind, "")
    before = known.get(name) if isinstance(known, Mapping) else known
    if before != now:
        raise BadInput(
            f"{kind}: {name} is not what it was when this run was begun; numbers of two versions must "
            "not be mixed. Put it back as it was, or begin another run with -o."
        )
