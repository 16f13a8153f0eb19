"""Write the files the package ships: the encoder once, four model directories around it.

Each directory is a plain transformers checkpoint whose index sends the encoder weights to
``../encoder.safetensors``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from training.model import TASKS, FourHeads
from training.vocabulary import build_tokenizer

ENCODER_FILE = "encoder.safetensors"
HEAD_FILE = "head.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CHECKSUMS_FILE = "checksums.json"
ENCODER_PARTS = ("bert.embeddings.", "bert.encoder.")
CHUNK = 1 << 20


def write_json(path: Path, content: object) -> None:
    """Readable JSON with a closing line feed."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def half(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights of one standard model as fp16, tied ones once."""
    tied = getattr(model, "_tied_weights_keys", None) or {}
    return {
        name: parameter.detach().to(torch.float16).contiguous()
        for name, parameter in model.named_parameters()
        if name not in tied
    }


def write_tokenizer(pieces: list[str], directory: Path) -> None:
    """The fast tokenizer, its JSON without blanks: four copies must fit the size budget."""
    tokenizer = build_tokenizer(pieces)
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def export_task(
    model: PreTrainedModel, pieces: list[str], directory: Path
) -> dict[str, torch.Tensor]:
    """Write one model directory; gives back the encoder weights, which lie beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = half(model)
    encoder = {name: weights[name] for name in weights if name.startswith(ENCODER_PARTS)}
    head = {name: weights[name] for name in weights if name not in encoder}
    save_file(head, directory / HEAD_FILE, metadata={"format": "pt"})
    places = dict.fromkeys(sorted(encoder), f"../{ENCODER_FILE}")
    places |= dict.fromkeys(sorted(head), HEAD_FILE)
    size = sum(tensor.nbytes for tensor in weights.values())
    write_json(directory / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": places})
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.float16
    model.config.save_pretrained(directory)
    write_tokenizer(pieces, directory)
    return encoder


def sha256(path: Path) -> str:
    """Hash of a file as ``sha256sum`` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_checksums(target: Path) -> None:
    """Size and hash of every shipped file, by its path below the models folder."""
    files = [target / ENCODER_FILE]
    files += sorted(path for task in TASKS for path in (target / task).iterdir())
    entries = {
        path.relative_to(target).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in files
    }
    write_json(target / CHECKSUMS_FILE, entries)


def export(work: Path, target: Path) -> None:
    """Turn ``trained.safetensors`` of the work folder into the files below ``target``."""
    pieces = (work / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    heads = FourHeads(len(pieces))
    stored = load_file(work / "trained.safetensors")
    with torch.no_grad():
        for name, parameter in heads.weights().items():
            parameter.copy_(stored[name])
    encoders = [export_task(getattr(heads, task), pieces, target / task) for task in TASKS]
    for path in target.glob("*/*"):
        path.chmod(0o644)
    save_file(encoders[0], target / ENCODER_FILE, metadata={"format": "pt"})
    (target / ENCODER_FILE).chmod(0o644)
    write_checksums(target)
