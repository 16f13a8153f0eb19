"""Write the files the package ships: the encoder once, four model directories around it.

Each directory is a plain transformers checkpoint whose index points to ``../encoder.safetensors`` for
the encoder weights.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from training.model import NUM_SHARED_LAYERS, PAIR_TASK, TASKS, FourHeads
from training.reporting import write_json
from training.vocabulary import build_tokenizer

ENCODER_FILE = "encoder.safetensors"
HEAD_FILE = "head.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CHECKSUMS_FILE = "checksums.json"
ENCODER_PREFIXES = (
    "bert.embeddings.",
    *(f"bert.encoder.layer.{index}." for index in range(NUM_SHARED_LAYERS)),
)
READ_SIZE = 1 << 20


def get_half_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of a standard model as fp16, tied ones once."""
    tied_names = getattr(model, "_tied_weights_keys", None) or {}
    weights = {}
    for name, parameter in model.named_parameters():
        if name not in tied_names:
            weights[name] = parameter.detach().to(torch.float16).contiguous()
    return weights


def write_tokenizer(pieces: list[str], folder: Path) -> None:
    """Write the fast tokenizer, its JSON without blanks: four copies must fit the size budget."""
    build_tokenizer(pieces).save_pretrained(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    path.write_text(compact + "\n", encoding="utf-8")


def export_task(model: PreTrainedModel, pieces: list[str], folder: Path) -> dict[str, Tensor]:
    """Write one model directory.

    Args:
        model: The model of the task.
        pieces: The vocabulary.
        folder: The directory to write.

    Returns:
        The encoder weights, which belong into the parent of ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder_weights = {}
    head_weights = {}
    total_size = 0
    for name, tensor in get_half_weights(model).items():
        total_size += tensor.nbytes
        is_encoder = name.startswith(ENCODER_PREFIXES)
        (encoder_weights if is_encoder else head_weights)[name] = tensor
    save_file(head_weights, folder / HEAD_FILE, metadata={"format": "pt"})
    weight_map = dict.fromkeys(sorted(encoder_weights), f"../{ENCODER_FILE}")
    weight_map |= dict.fromkeys(sorted(head_weights), HEAD_FILE)
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    write_json(folder / INDEX_FILE, index)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.float16
    model.config.save_pretrained(folder)
    write_tokenizer(pieces, folder)
    return encoder_weights


def hash_file(path: Path) -> str:
    """Return the hash of a file as ``sha256sum`` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(READ_SIZE):
            digest.update(chunk)
    return digest.hexdigest()


def write_checksums(models: Path) -> None:
    """Write the size and hash of every shipped file, by its path below the models folder."""
    task_paths = []
    for task in (*TASKS, PAIR_TASK):
        folder = models / task
        if folder.is_dir():  # the pair model is trained last
            task_paths += folder.iterdir()
    entries = {}
    for path in [models / ENCODER_FILE, *sorted(task_paths)]:
        relative_path = path.relative_to(models).as_posix()
        entries[relative_path] = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    write_json(models / CHECKSUMS_FILE, entries)


def export(work_folder: Path, models: Path) -> None:
    """Turn ``trained.safetensors`` of the work folder into the shipped files.

    Args:
        work_folder: The folder that ``train`` wrote.
        models: The folder to write the files into.
    """
    pieces = (work_folder / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    four_heads = FourHeads(len(pieces))
    four_heads.load_weights(load_file(work_folder / "trained.safetensors"))
    encoder_weights: dict[str, Tensor] = {}
    for task in TASKS:
        # The same weights each time: the tasks share their encoder.
        encoder_weights = export_task(getattr(four_heads, task), pieces, models / task)
    for path in models.glob("*/*"):
        path.chmod(0o644)
    save_file(encoder_weights, models / ENCODER_FILE, metadata={"format": "pt"})
    (models / ENCODER_FILE).chmod(0o644)
    write_checksums(models)
