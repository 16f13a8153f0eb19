"""Tiny image classifiers of many families, and one trained so that a known patch decides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from tests.helpers.tiny import randomize_weights
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
DISTILLED = "ForImageClassificationWithTeacher"
# name: (class prefix, class ending, config arguments, tokens of the model's own)
FAMILIES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "vit": ("ViT", PLAIN, SMALL, ("[CLS]",)),
    "vit_msn": ("ViTMSN", PLAIN, SMALL, ("[CLS]",)),
    "ijepa": ("IJepa", PLAIN, SMALL, ()),
    "deit": ("DeiT", PLAIN, SMALL, ("[CLS]", "[DIST]")),
    "deit with teacher": ("DeiT", DISTILLED, SMALL, ("[CLS]", "[DIST]")),
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


def build_model(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """A random model of a family that is taken."""
    prefix, ending, settings, _ = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    return randomize_weights(getattr(transformers, prefix + ending)(config), dtype)


def build_refused_model(family: str) -> Any:
    """A random model of a family that is refused."""
    prefix, settings = REFUSED[family]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    return getattr(transformers, f"{prefix}{PLAIN}")(config).eval()


def draw_pixels(count: int, seed: int = 0) -> np.ndarray:
    """Return normalized pixel values of random images."""
    return np.random.default_rng(seed).normal(size=(count, 3, SIDE, SIDE)).astype(np.float32)


def make_pictures(count: int, seed: int = 0) -> list[Picture]:
    """Return random pictures."""
    return [Picture.from_pixels(values) for values in draw_pixels(count, seed)]


class Processor:
    """An image processor without resizing: it only rescales and normalizes."""

    image_mean = (0.5, 0.5, 0.5)
    image_std = (0.25, 0.25, 0.25)
    do_normalize = True
    do_rescale = True
    rescale_factor = 1 / 255

    def __call__(self, images, return_tensors):  # noqa: ARG002 - as transformers' own are called
        bright = np.asarray(images, dtype=np.float32).transpose(2, 0, 1)[None] / 255
        return {"pixel_values": torch.from_numpy((bright - 0.5) / 0.25)}


COLOURS = np.array([[220, 40, 40], [40, 200, 60], [50, 70, 220]], dtype=np.uint8)


def draw_noise(count: int, generator: np.random.Generator) -> np.ndarray:
    """Return images of grey noise."""
    grey = generator.integers(90, 160, size=(count, SIDE, SIDE, 1), dtype=np.uint8)
    return np.repeat(grey, 3, axis=3)


def draw_images_with_patch(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images of grey noise with one coloured patch, the patch positions, and the colours as labels."""
    generator = np.random.default_rng(seed)
    images = draw_noise(count, generator)
    positions = generator.integers(0, (SIDE // PATCH) ** 2, size=count)
    labels = generator.integers(0, 3, size=count)
    for image, position, label in zip(images, positions, labels, strict=True):
        top_edge, left_edge = (PATCH * int(cell) for cell in divmod(int(position), SIDE // PATCH))
        image[top_edge : top_edge + PATCH, left_edge : left_edge + PATCH] = COLOURS[label]
    return images, positions, labels


@cache
def train_patch_classifier(seed: int = 0) -> Explainer:
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        images, _, labels = draw_images_with_patch(64, seed=step)
        images[::2] = draw_noise(32, np.random.default_rng(10_000 + step))
        labels[::2] = 3
        values = torch.from_numpy((images.astype(np.float32) / 255 - 0.5) / 0.25)
        logits = model(pixel_values=values.permute(0, 3, 1, 2)).logits
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Explainer(model.eval(), Processor(), name="taught")
