"""Pack a model folder into a small file: matrices as int8 with one fp16 scale per row, compressed with xz.

    python -m training.packed pack MODEL_FOLDER FILE.xz [--bits 7]
    python -m training.packed unpack FILE.xz MODEL_FOLDER

The largest weight of a row becomes the largest integer; vectors stay fp16. The other files of the folder
(configuration, tokenizer) are packed with the weights.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

WEIGHTS_FILE = "model.safetensors"
OTHER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
ROWS_SUFFIX = ".rows"
SCALE_SUFFIX = ".scale"
HEADER_SIZE_BYTES = 8


def quantize(weights: dict[str, Tensor], bits: int = 8) -> dict[str, Tensor]:
    """Round each matrix to integers.

    Args:
        weights: Weights by name.
        bits: Bits of an integer, at most 8.

    Returns:
        For each matrix ``name.rows`` (int8) and ``name.scale`` (fp16, one per row); vectors as fp16.
    """
    max_integer = 2 ** (bits - 1) - 1
    quantized = {}
    for name, weight in weights.items():
        if weight.ndim != 2:
            quantized[name] = weight.half()
            continue
        row_maxima = weight.float().abs().amax(dim=1, keepdim=True)
        # The scale is rounded to half precision first: unpacking multiplies by the rounded one.
        scale = (row_maxima / max_integer).half().clamp(min=torch.finfo(torch.half).tiny)
        integers = (weight.float() / scale.float()).round().clamp(-max_integer, max_integer)
        quantized[name + ROWS_SUFFIX] = integers.char()
        quantized[name + SCALE_SUFFIX] = scale
    return quantized


def dequantize(quantized: dict[str, Tensor]) -> dict[str, Tensor]:
    """Restore the weights in float32, each within half a scale of the original."""
    weights = {}
    for name, tensor in quantized.items():
        if name.endswith(ROWS_SUFFIX):
            weight_name = name.removesuffix(ROWS_SUFFIX)
            scale = quantized[weight_name + SCALE_SUFFIX]
            weights[weight_name] = tensor.float() * scale.float()
        elif not name.endswith(SCALE_SUFFIX):
            weights[name] = tensor.float()
    return weights


def pack(folder: Path, path: Path, bits: int = 8) -> None:
    """Pack a model folder into one file.

    Args:
        folder: The model folder.
        path: The file to write.
        bits: Bits of a weight, at most 8.
    """
    weights = load_file(folder / WEIGHTS_FILE)
    other_files = {}
    for name in OTHER_FILES:
        if (folder / name).is_file():
            other_files[name] = (folder / name).read_text("utf-8")
    content = save(quantize(weights, bits), {"files": json.dumps(other_files)})
    path.write_bytes(lzma.compress(content, preset=6))


def unpack(path: Path, folder: Path) -> None:
    """Restore the folder that :func:`pack` read, with rounded weights."""
    content = lzma.decompress(path.read_bytes())
    # A safetensors file begins with the size of its JSON header, then the header.
    header_end = HEADER_SIZE_BYTES + int.from_bytes(content[:HEADER_SIZE_BYTES], "little")
    header = json.loads(content[HEADER_SIZE_BYTES:header_end])
    other_files = json.loads(header["__metadata__"]["files"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in other_files.items():
        (folder / name).write_text(text, encoding="utf-8")
    save_file(dequantize(load(content)), folder / WEIGHTS_FILE, {"format": "pt"})


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(prog="python -m training.packed", description=__doc__)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--bits", type=int, default=8, help="bits of a weight, at most 8")
    arguments = parser.parse_args()
    if arguments.action == "pack":
        pack(arguments.source, arguments.target, arguments.bits)
    else:
        unpack(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
