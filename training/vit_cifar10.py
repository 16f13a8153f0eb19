"""A tiny vision Transformer on CIFAR-10, trained from nothing, and how faithful its heat maps are.

    python -m training.vit_cifar10 DATA/cifar10 OUT --seconds 90

Writes into OUT: ``model/`` (a plain transformers folder), ``measured.json`` (means with 95 %
intervals, curves) and ``rows.csv`` (one row an image and method). The model is not shipped.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import io
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy, grid_sample
from transformers import ViTConfig, ViTForImageClassification

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
SIZE = 32
PATCH = 4
METHODS: tuple[Any, ...] = (
    "attcat", "cat", "raw_att", "rollout", "gae", "transatt", "attnlrp", "grad_x_input",
    "gradcam", "integrated_gradients", ("occlusion", {"window": 1}), "random",
)  # fmt: skip
METRICS = ("deletion", "insertion")
CHUNK = 250  # images explained and measured together


@dataclass(frozen=True)
class Settings:
    """What a run does; the defaults are those of the reported one."""

    seconds: float = 90.0
    batch: int = 512
    layers: int = 6
    width: int = 192
    rate: float = 1.5e-3
    images: int = 1000
    measure_seconds: float = 75.0
    seed: int = 0


@dataclass(frozen=True)
class Images:
    """``pixels``: ``image channel height width``, uint8; ``labels``: ``image``."""

    pixels: Tensor
    labels: Tensor

    @classmethod
    def read(cls, file: Path) -> Images:
        """Decode a file of JPEG rows."""
        pixels = []
        labels = []
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                with Image.open(io.BytesIO(base64.b64decode(row["jpeg_b64"]))) as image:
                    pixels.append(np.asarray(image.convert("RGB")))
                labels.append(row["label"])
        stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        return cls(stacked, torch.tensor(labels))

    def to(self, device: torch.device) -> Images:
        """The same on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def normalized(pixels: Tensor) -> Tensor:
    """What the model reads, from uint8 or from brightness 0 to 1."""
    bright = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
    mean, std = (torch.tensor(v, device=bright.device)[:, None, None] for v in (MEAN, STD))
    return (bright - mean) / std


def augmented(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift, scale, turn and flip; change contrast and colour; hide patches; all on the device.

    On half of the pictures a random share of patches shows the picture's mean colour, so that a
    hidden patch is nothing new to the model when explanations are measured by hiding.
    """
    count = len(pixels)
    device = pixels.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator, device=device)

    angle = (draw() - 0.5) * 0.5
    scale = 0.75 + 0.4 * draw()
    flip = torch.where(draw() < 0.5, -1.0, 1.0)
    move = (draw(2) - 0.5) * 0.4
    turn = torch.stack(
        (
            torch.stack((flip * scale * angle.cos(), -scale * angle.sin(), move[:, 0]), dim=1),
            torch.stack((flip * scale * angle.sin(), scale * angle.cos(), move[:, 1]), dim=1),
        ),
        dim=1,
    )
    places = torch.nn.functional.affine_grid(turn, list(pixels.shape), align_corners=False)
    bright = grid_sample(
        pixels.float() / 255, places, padding_mode="reflection", align_corners=False
    )
    contrast = 0.6 + 0.8 * draw(1, 1, 1)
    light = (draw(1, 1, 1) - 0.5) * 0.4
    tint = 0.8 + 0.4 * draw(3, 1, 1)
    middle = bright.mean(dim=(1, 2, 3), keepdim=True)
    bright = (((bright - middle) * contrast + middle + light) * tint).clamp(0, 1)
    values = normalized(bright)
    side = pixels.shape[-1] // PATCH
    share = draw(1, 1, 1) * (draw(1, 1, 1) < 0.5)
    hidden = draw(1, side, side) < share * 0.8
    hidden = hidden.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
    return torch.where(hidden, values.mean(dim=(2, 3), keepdim=True), values)


def built(settings: Settings, labels: Sequence[str]) -> Any:
    """The model before its training."""
    config = ViTConfig(
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=max(1, settings.width // 64),
        intermediate_size=4 * settings.width,
        image_size=SIZE,
        patch_size=PATCH,
        hidden_dropout_prob=0.0,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    torch.manual_seed(settings.seed)
    return ViTForImageClassification(config)


def trained(train: Images, labels: Sequence[str], settings: Settings) -> Any:
    """Train for the given seconds: cosine schedule in time, mixed pictures, mean of weights."""
    device = train.pixels.device
    model = built(settings, labels).to(device).train()
    mean = [p.detach().clone() for p in model.parameters()]
    generator = torch.Generator(device).manual_seed(settings.seed)
    chance = np.random.default_rng(
        settings.seed
    )  # on the processor: the device need not be waited for
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.08}, {"params": others, "weight_decay": 0.0}],
        lr=settings.rate, betas=(0.9, 0.98), fused=device.type == "cuda",
    )  # fmt: skip
    begun = time.monotonic()
    step = 0
    said = 0.0
    while (spent := time.monotonic() - begun) < settings.seconds:
        share = spent / settings.seconds
        rate = min(1.0, share / 0.05) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * rate
        loss = _loss(model, train, settings.batch, generator, chance)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        torch._foreach_lerp_(mean, [p.detach() for p in model.parameters()], 1 / min(step, 400))
        if spent - said > 10 and step % 20 == 0:
            said = spent
            print(f"{spent:5.0f} s  step {step}  loss {float(loss):.3f}")
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), mean, strict=True):
            parameter.copy_(value)
    print(f"{step} steps of {settings.batch}")
    return model.eval()


def _loss(
    model: Any, train: Images, batch: int, generator: torch.Generator, chance: np.random.Generator
) -> Tensor:
    device = train.pixels.device
    chosen = torch.randint(len(train.labels), (batch,), generator=generator, device=device)
    pixels = augmented(train.pixels[chosen], generator)
    labels = train.labels[chosen]
    # Half of the steps blend two pictures: ten thousand are few for a Transformer.
    blend = 1.0 if chance.random() < 0.5 else float(chance.beta(0.8, 0.8))
    if blend < 1:
        pixels = blend * pixels + (1 - blend) * pixels.flip(0)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(pixel_values=pixels).logits.float()
    loss: Tensor = blend * cross_entropy(logits, labels, label_smoothing=0.1)
    if blend < 1:
        loss = loss + (1 - blend) * cross_entropy(logits, labels.flip(0), label_smoothing=0.1)
    return loss


@torch.no_grad()
def accuracy(model: Any, images: Images) -> float:
    """Share of right predictions."""
    right = 0
    for pixels, labels in zip(images.pixels.split(500), images.labels.split(500), strict=True):
        said = model(pixel_values=normalized(pixels)).logits.argmax(dim=1)
        right += int((said == labels).sum())
    return right / len(images.labels)


def measured(model: Any, images: Images, settings: Settings) -> dict[str, Any]:
    """Deletion and insertion of every method on the first test images, with intervals."""
    from tokenlight import Explainer
    from tokenlight.evaluation.results import Evaluation

    explainer = Explainer(model, processor())
    begun = time.monotonic()
    records = []
    done = 0
    metrics = {}
    arrays = images.pixels[: settings.images].permute(0, 2, 3, 1).cpu().numpy()
    while done < len(arrays):
        chunk = arrays[done : done + CHUNK]
        found = explainer.explain(chunk, list(METHODS), progress=False)
        labels = images.labels[done : done + len(chunk)].tolist()
        part = explainer.evaluate(found, list(METRICS), labels=labels, progress=False)
        metrics = part.metrics
        records += [(done, record) for record in part.records]
        done += len(chunk)
        spent = time.monotonic() - begun
        print(f"{spent:5.0f} s  measured {done} images")
        if spent / done * (done + CHUNK) > settings.measure_seconds:
            break
    whole = Evaluation(tuple(record for _, record in records), metrics)
    rows = [
        {
            "image": first + record.text_index,
            "label": record.label,
            "predicted": record.predicted,
            "method": record.method,
            **{name: round(record.measurements[name].value, 6) for name in METRICS},
        }
        for first, record in records
    ]
    return {"images": done, "rows": rows, "methods": _summary(whole)}


def _summary(whole: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in whole.by_method.items():
        found[name] = {}
        for metric in METRICS:
            points, curve = part.curves[metric]
            found[name][metric] = {
                **{key: part.summary[metric][key] for key in ("mean", "low", "high", "count")},
                "points": list(points),
                "curve": [[one.mean, one.low, one.high] for one in curve],
            }
    return found


def processor() -> Any:
    """How images become pixel values for this model."""
    from transformers import AutoImageProcessor

    values = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True,
        "do_normalize": True, "size": {"height": SIZE, "width": SIZE}, "resample": 2,
        "rescale_factor": 1 / 255, "image_mean": list(MEAN), "image_std": list(STD),
    }  # fmt: skip
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "preprocessor_config.json").write_text(json.dumps(values), encoding="utf-8")
        return AutoImageProcessor.from_pretrained(folder, backend="pil")


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    data = given.pop("data")
    out = given.pop("out")
    settings = Settings(**given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    named = json.loads((data / "labels.json").read_text(encoding="utf-8"))
    labels = [named[str(i)] for i in range(len(named))]
    train, test = (
        Images.read(data / f"{part}_subset.jsonl.gz").to(device) for part in ("train", "test")
    )
    print(f"{len(train.labels)} pictures to learn from, {len(test.labels)} to test, on {device}")
    model = trained(train, labels, settings)
    share = accuracy(model, test)
    print(f"accuracy {share:.4f} on test, {accuracy(model, train):.4f} on training pictures")
    out.mkdir(parents=True, exist_ok=True)
    model.cpu().save_pretrained(out / "model")
    processor().save_pretrained(out / "model")
    found = measured(model.to(device), test, settings)
    rows = found.pop("rows")
    with (out / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    about = {"accuracy": share, "test": len(test.labels), "settings": vars(settings)}
    text = json.dumps({**about, **found}, indent=1)
    (out / "measured.json").write_text(text + "\n", encoding="utf-8")
    for name, one in found["methods"].items():
        line = "  ".join(
            f"{m} {one[m]['mean']:.3f} [{one[m]['low']:.3f}, {one[m]['high']:.3f}]" for m in METRICS
        )
        print(f"{name:22} {line}")


if __name__ == "__main__":
    main()
