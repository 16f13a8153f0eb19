"""Weights made small for a journey: matrices as int8 with one fp16 scale a row, packed with xz.

    python -m training.packed pack MODEL_FOLDER FILE.xz [--bits 7]
    python -m training.packed unpack FILE.xz MODEL_FOLDER

A row's largest weight becomes the largest number; vectors stay fp16. What a folder has besides its
weights (configuration, tokenizer) travels beside them.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file

WEIGHTS = "model.safetensors"
BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def packed(weights: dict[str, torch.Tensor], bits: int = 8) -> dict[str, torch.Tensor]:
    """Each matrix as ``name.rows`` (int8) and ``name.scale`` (fp16, one a row)."""
    most = 2 ** (bits - 1) - 1
    found = {}
    for name, value in weights.items():
        if value.ndim != 2:
            found[name] = value.half()
            continue
        # Half precision first: rows and scale must be rounded against the same number.
        scale = (value.float().abs().amax(dim=1, keepdim=True) / most).half()
        scale = scale.clamp(min=torch.finfo(torch.half).tiny)
        found[f"{name}.rows"] = (value.float() / scale.float()).round().clamp(-most, most).char()
        found[f"{name}.scale"] = scale
    return found


def unpacked(small: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in float32, each within half a scale of what it was."""
    found = {}
    for name, value in small.items():
        own = name.removesuffix(".rows")
        if own != name:
            found[own] = value.float() * small[f"{own}.scale"].float()
        elif not name.endswith(".scale"):
            found[name] = value.float()
    return found


def pack(folder: Path, file: Path, bits: int = 8) -> None:
    """A folder as one file."""
    weights = load_file(folder / WEIGHTS)
    beside = {
        name: (folder / name).read_text("utf-8") for name in BESIDE if (folder / name).is_file()
    }
    data = save(packed(weights, bits), {"files": json.dumps(beside)})
    file.write_bytes(lzma.compress(data, preset=6))


def unpack(file: Path, folder: Path) -> None:
    """The folder that :func:`pack` made the file of, its weights rounded."""
    data = lzma.decompress(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    beside = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["files"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in beside.items():
        (folder / name).write_text(text, encoding="utf-8")
    save_file(unpacked(load(data)), folder / WEIGHTS, {"format": "pt"})


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(prog="python -m training.packed", description=__doc__)
    parser.add_argument("way", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--bits", type=int, default=8)
    given = parser.parse_args()
    if given.way == "pack":
        pack(given.source, given.place, given.bits)
    else:
        unpack(given.source, given.place)


if __name__ == "__main__":
    main()
