"""Tiny image classifiers of many families, and one that is taught which patch decides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from tests.helpers.tiny import randomised
from tokenlight import Explainer, Picture

SIDE = 16
PATCH = 4
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": SIDE,
    "patch_size": PATCH,
    "num_labels": 3,
}
TEXT_SIZE = {
    name: SMALL[name]
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}
TOWERS = {
    "vision_config": {k: v for k, v in SMALL.items() if k != "num_labels"},
    "text_config": TEXT_SIZE,
    "num_labels": 3,
}
PLAIN = "ForImageClassification"
TAUGHT = "ForImageClassificationWithTeacher"
# name: (class prefix, class ending, config arguments, tokens of the model's own)
FAMILIES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "vit": ("ViT", PLAIN, SMALL, ("[CLS]",)),
    "vit_msn": ("ViTMSN", PLAIN, SMALL, ("[CLS]",)),
    "ijepa": ("IJepa", PLAIN, SMALL, ()),
    "deit": ("DeiT", PLAIN, SMALL, ("[CLS]", "[DIST]")),
    "deit with teacher": ("DeiT", TAUGHT, SMALL, ("[CLS]", "[DIST]")),
    "dinov2": ("Dinov2", PLAIN, SMALL, ("[CLS]",)),
    "dinov2_with_registers": (
        "Dinov2WithRegisters", PLAIN, SMALL, ("[CLS]", *(f"[REG{i}]" for i in range(4))),
    ),
    "clip": ("CLIP", PLAIN, TOWERS, ("[CLS]",)),
    "metaclip_2": ("MetaClip2", PLAIN, TOWERS, ("[CLS]",)),
    "siglip": ("Siglip", PLAIN, TOWERS, ()),
    "beit": ("Beit", PLAIN, SMALL, ("[CLS]",)),
    "beit with relative positions": (
        "Beit", PLAIN, {**SMALL, "use_relative_position_bias": True}, ("[CLS]",),
    ),
}  # fmt: skip
STAGES = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "num_labels": 3}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "swin": ("Swin", {**STAGES, "image_size": SIDE, "patch_size": 2}),
    "swinv2": ("Swinv2", {**STAGES, "image_size": SIDE, "patch_size": 2}),
    "cvt": ("Cvt", {"num_labels": 3}),
    "segformer": ("Segformer", {"num_labels": 3}),
    "resnet": (
        "ResNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 3},
    ),
    "convnext": ("ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
}


def build(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """A random model of a family that is taken."""
    prefix, ending, settings, _ = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    return randomised(getattr(transformers, prefix + ending)(config), dtype)


def build_refused(family: str) -> Any:
    """A random model of a family that is refused."""
    prefix, settings = REFUSED[family]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    return getattr(transformers, f"{prefix}{PLAIN}")(config).eval()


def pixels(count: int, seed: int = 0) -> np.ndarray:
    """Pixel values of random pictures, as a model reads them."""
    return np.random.default_rng(seed).normal(size=(count, 3, SIDE, SIDE)).astype(np.float32)


def pictures(count: int, seed: int = 0) -> list[Picture]:
    return [Picture.from_pixels(values) for values in pixels(count, seed)]


class Processor:
    """A processor of the simplest kind: no resizing, brightness minus a half."""

    image_mean = (0.5, 0.5, 0.5)
    image_std = (0.25, 0.25, 0.25)
    do_normalize = True
    do_rescale = True
    rescale_factor = 1 / 255

    def __call__(self, images, return_tensors):  # noqa: ARG002 - as transformers' own are called
        bright = np.asarray(images, dtype=np.float32).transpose(2, 0, 1)[None] / 255
        return {"pixel_values": torch.from_numpy((bright - 0.5) / 0.25)}


COLOURS = np.array([[220, 40, 40], [40, 200, 60], [50, 70, 220]], dtype=np.uint8)


def noise(count: int, generator: np.random.Generator) -> np.ndarray:
    """Pictures of grey noise."""
    grey = generator.integers(90, 160, size=(count, SIDE, SIDE, 1), dtype=np.uint8)
    return np.repeat(grey, 3, axis=3)


def spotted(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grey noise with one coloured patch: pictures, its place, and its colour, the label."""
    generator = np.random.default_rng(seed)
    images = noise(count, generator)
    positions = generator.integers(0, (SIDE // PATCH) ** 2, size=count)
    labels = generator.integers(0, 3, size=count)
    for image, position, label in zip(images, positions, labels, strict=True):
        top_edge, left_edge = (PATCH * int(cell) for cell in divmod(int(position), SIDE // PATCH))
        image[top_edge : top_edge + PATCH, left_edge : left_edge + PATCH] = COLOURS[label]
    return images, positions, labels


@cache
def taught(seed: int = 0) -> Explainer:
    """A ViT that tells the colour of the one coloured patch: what decides is known.

    Half of its lessons have no such patch and are grey. Without them it may tell the third colour by
    the absence of the others, and the patch would not be what decides.
    """
    names = {0: "red", 1: "green", 2: "blue", 3: "grey"}
    config = transformers.ViTConfig(
        **{
            **SMALL,
            "num_labels": 4,
            "id2label": names,
            "label2id": {v: k for k, v in names.items()},
        },
        hidden_dropout_prob=0.0,
    )
    torch.manual_seed(seed)
    model = transformers.ViTForImageClassification(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        images, _, labels = spotted(64, seed=step)
        images[::2] = noise(32, np.random.default_rng(10_000 + step))
        labels[::2] = 3
        values = torch.from_numpy((images.astype(np.float32) / 255 - 0.5) / 0.25)
        logits = model(pixel_values=values.permute(0, 3, 1, 2)).logits
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Explainer(model.eval(), Processor(), name="taught")
