"""Train a tiny vision Transformer on CIFAR-10 and measure how faithful its heat maps are.

    python -m training.vit_cifar10 DATA/cifar10 OUT --seconds 90

Writes into OUT: ``model/`` (a plain transformers folder), ``measured.json`` (means with 95 %
intervals, curves) and ``rows.csv`` (one row per image and method). The model is not shipped.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import io
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample
from transformers import ViTConfig, ViTForImageClassification

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
IMAGE_SIZE = 32
PATCH_SIZE = 4
HEAD_SIZE = 64
METHODS: tuple[Any, ...] = (
    "attcat", "cat", "raw_att", "rollout", "gae", "transatt", "attnlrp", "grad_x_input",
    "gradcam", "integrated_gradients", ("occlusion", {"window": 1}), "random",
)  # fmt: skip
METRICS = ("deletion", "insertion")
IMAGES_PER_CHUNK = 250  # explained and measured together
TEST_BATCH_SIZE = 500
WARM_UP_SHARE = 0.05
MIN_RATE_FACTOR = 0.02
AVERAGED_STEPS = 400
LABEL_SMOOTHING = 0.1
LOG_INTERVAL_SECONDS = 10


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run; the defaults are those of the reported one.

    Attributes:
        seconds: Length of the training.
        batch: Images per step.
        layers: Number of layers.
        width: Hidden size.
        rate: Peak learning rate.
        images: Largest number of test images that are explained and measured.
        measure_seconds: Time in which the measuring must end; it then stops after fewer images.
        seed: Seed of the weights, of the batches and of the augmentation.
    """

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
    """Labeled images.

    Attributes:
        pixels: ``image channel height width``, uint8.
        labels: ``image``.
    """

    pixels: Tensor
    labels: Tensor

    @classmethod
    def read(cls, path: Path) -> Images:
        """Decode a gzipped JSON-lines file of JPEG images."""
        pixels = []
        labels = []
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                with Image.open(io.BytesIO(base64.b64decode(row["jpeg_b64"]))) as image:
                    pixels.append(np.asarray(image.convert("RGB")))
                labels.append(row["label"])
        stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        return cls(stacked, torch.tensor(labels))

    def to(self, device: torch.device) -> Images:
        """Return the images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def normalize_pixels(pixels: Tensor) -> Tensor:
    """Turn uint8 pixels, or brightness from 0 to 1, into what the model reads."""
    brightness = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
    mean = torch.tensor(MEAN, device=brightness.device)[:, None, None]
    std = torch.tensor(STD, device=brightness.device)[:, None, None]
    return (brightness - mean) / std


class Augmentation:
    """Random shifts, scales, turns, flips, contrasts, colours and occluded patches.

    On half of the images a random share of patches shows the mean colour of the image, so that an
    occluded patch is nothing new to the model when explanations are measured by occlusion.

    Args:
        pixels: ``image channel height width``, uint8.
        generator: Source of the random choices, on the device of ``pixels``.
    """

    def __init__(self, pixels: Tensor, generator: torch.Generator) -> None:
        self.pixels = pixels
        self.generator = generator

    def __call__(self) -> Tensor:
        """Return augmented images as the model reads them."""
        moved = self._move(self.pixels.float() / 255)
        values = normalize_pixels(self._change_colours(moved))
        return self._occlude_patches(values)

    def _draw(self, *shape: int) -> Tensor:
        """Draw uniform numbers from 0 to 1 for each image."""
        return torch.rand(
            len(self.pixels), *shape, generator=self.generator, device=self.pixels.device
        )

    def _move(self, brightness: Tensor) -> Tensor:
        angle = (self._draw() - 0.5) * 0.5
        scale = 0.75 + 0.4 * self._draw()
        flip = torch.where(self._draw() < 0.5, -1.0, 1.0)
        shift = (self._draw(2) - 0.5) * 0.4
        first_row = torch.stack(
            (flip * scale * angle.cos(), -scale * angle.sin(), shift[:, 0]), dim=1
        )
        second_row = torch.stack(
            (flip * scale * angle.sin(), scale * angle.cos(), shift[:, 1]), dim=1
        )
        matrices = torch.stack((first_row, second_row), dim=1)
        grid = affine_grid(matrices, list(brightness.shape), align_corners=False)
        return grid_sample(brightness, grid, padding_mode="reflection", align_corners=False)

    def _change_colours(self, brightness: Tensor) -> Tensor:
        contrast = 0.6 + 0.8 * self._draw(1, 1, 1)
        light = (self._draw(1, 1, 1) - 0.5) * 0.4
        tint = 0.8 + 0.4 * self._draw(3, 1, 1)
        mean = brightness.mean(dim=(1, 2, 3), keepdim=True)
        return (((brightness - mean) * contrast + mean + light) * tint).clamp(0, 1)

    def _occlude_patches(self, values: Tensor) -> Tensor:
        patches_per_side = values.shape[-1] // PATCH_SIZE
        drawn_share = self._draw(1, 1, 1)
        is_occluded_image = self._draw(1, 1, 1) < 0.5
        share = drawn_share * is_occluded_image
        is_occluded = self._draw(1, patches_per_side, patches_per_side) < share * 0.8
        is_occluded = is_occluded.repeat_interleave(PATCH_SIZE, 2).repeat_interleave(PATCH_SIZE, 3)
        mean_colour = values.mean(dim=(2, 3), keepdim=True)
        return torch.where(is_occluded, mean_colour, values)


def build_model(settings: RunSettings, labels: Sequence[str]) -> Any:
    """Build the model with random weights."""
    config = ViTConfig(
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=max(1, settings.width // HEAD_SIZE),
        intermediate_size=4 * settings.width,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        hidden_dropout_prob=0.0,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    torch.manual_seed(settings.seed)
    return ViTForImageClassification(config)


def build_optimizer(model: Any, learning_rate: float) -> torch.optim.AdamW:
    """Build AdamW without decay of biases and norms."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    undecayed = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.08},
            {"params": undecayed, "weight_decay": 0.0},
        ],
        lr=learning_rate,
        betas=(0.9, 0.98),
        fused=decayed[0].is_cuda,
    )


def scale_learning_rate(progress: float) -> float:
    """Return the factor of the peak learning rate: a warm-up, then a cosine, by the share of time."""
    warm_up = min(1.0, progress / WARM_UP_SHARE)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return warm_up * (MIN_RATE_FACTOR + (1 - MIN_RATE_FACTOR) * cosine)


def train(images: Images, labels: Sequence[str], settings: RunSettings) -> Any:
    """Train for the given seconds.

    Args:
        images: Training images.
        labels: Names of the classes.
        settings: Settings of the run.

    Returns:
        The model with a moving average of its weights.
    """
    device = images.pixels.device
    model = build_model(settings, labels).to(device).train()
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    generator = torch.Generator(device).manual_seed(settings.seed)
    # Drawn on the CPU, so that the device need not be waited for.
    blend_generator = np.random.default_rng(settings.seed)
    optimizer = build_optimizer(model, settings.rate)
    start_time = time.monotonic()
    step = 0
    last_log_seconds = 0.0
    while (seconds := time.monotonic() - start_time) < settings.seconds:
        learning_rate = settings.rate * scale_learning_rate(seconds / settings.seconds)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        loss = _compute_loss(model, images, settings.batch, generator, blend_generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        weights = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(averages, weights, 1 / min(step, AVERAGED_STEPS))
        if seconds - last_log_seconds > LOG_INTERVAL_SECONDS and step % 20 == 0:
            last_log_seconds = seconds
            print(f"{seconds:5.0f} s  step {step}  loss {float(loss):.3f}")
    with torch.no_grad():
        for parameter, average in zip(model.parameters(), averages, strict=True):
            parameter.copy_(average)
    print(f"{step} steps of {settings.batch}")
    return model.eval()


def _compute_loss(
    model: Any,
    images: Images,
    batch_size: int,
    generator: torch.Generator,
    blend_generator: np.random.Generator,
) -> Tensor:
    """Draw a batch and compute its loss; half of the batches blend pairs of images.

    Blending helps because ten thousand images are few for a Transformer.
    """
    device = images.pixels.device
    rows = torch.randint(len(images.labels), (batch_size,), generator=generator, device=device)
    pixels = Augmentation(images.pixels[rows], generator)()
    labels = images.labels[rows]
    blend = 1.0
    if blend_generator.random() >= 0.5:
        blend = float(blend_generator.beta(0.8, 0.8))
    if blend < 1:
        pixels = blend * pixels + (1 - blend) * pixels.flip(0)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(pixel_values=pixels).logits.float()
    loss: Tensor = blend * cross_entropy(logits, labels, label_smoothing=LABEL_SMOOTHING)
    if blend < 1:
        other_labels = labels.flip(0)
        other_loss = cross_entropy(logits, other_labels, label_smoothing=LABEL_SMOOTHING)
        loss = loss + (1 - blend) * other_loss
    return loss


@torch.no_grad()
def measure_accuracy(model: Any, images: Images) -> float:
    """Return the share of images that are classified correctly."""
    num_correct = 0
    pixel_batches = images.pixels.split(TEST_BATCH_SIZE)
    label_batches = images.labels.split(TEST_BATCH_SIZE)
    for pixels, labels in zip(pixel_batches, label_batches, strict=True):
        predictions = model(pixel_values=normalize_pixels(pixels)).logits.argmax(dim=1)
        num_correct += int((predictions == labels).sum())
    return num_correct / len(images.labels)


def measure_faithfulness(model: Any, images: Images, settings: RunSettings) -> dict[str, Any]:
    """Measure deletion and insertion of every method on the first test images.

    Args:
        model: The trained model.
        images: Test images.
        settings: Settings of the run.

    Returns:
        ``images``: how many were measured; ``rows``: one per image and method; ``methods``: means
        with intervals, and curves.
    """
    from tokenlight import Explainer
    from tokenlight.evaluation.results import Evaluation

    explainer = Explainer(model, load_processor())
    start_time = time.monotonic()
    all_records: list[Any] = []
    rows: list[dict[str, Any]] = []
    num_done = 0
    metrics = {}
    arrays = images.pixels[: settings.images].permute(0, 2, 3, 1).cpu().numpy()
    while num_done < len(arrays):
        chunk = arrays[num_done : num_done + IMAGES_PER_CHUNK]
        attributions = explainer.explain(chunk, list(METHODS), progress=False)
        labels = images.labels[num_done : num_done + len(chunk)].tolist()
        evaluation = explainer.evaluate(attributions, list(METRICS), labels=labels, progress=False)
        metrics = evaluation.metrics
        for record in evaluation.records:
            all_records.append(record)
            rows.append(_build_row(num_done + record.text_index, record))
        num_done += len(chunk)
        seconds = time.monotonic() - start_time
        print(f"{seconds:5.0f} s  measured {num_done} images")
        seconds_with_another_chunk = seconds / num_done * (num_done + IMAGES_PER_CHUNK)
        if seconds_with_another_chunk > settings.measure_seconds:
            break
    whole = Evaluation(tuple(all_records), metrics)
    return {"images": num_done, "rows": rows, "methods": _summarize_methods(whole)}


def _build_row(image_index: int, record: Any) -> dict[str, Any]:
    row = {
        "image": image_index,
        "label": record.label,
        "predicted": record.predicted,
        "method": record.method,
    }
    for metric in METRICS:
        row[metric] = round(record.measurements[metric].value, 6)
    return row


def _summarize_methods(evaluation: Any) -> dict[str, Any]:
    """Return mean, interval and curve by method and metric."""
    summaries: dict[str, Any] = {}
    for method, part in evaluation.by_method.items():
        summaries[method] = {}
        for metric in METRICS:
            summary = {key: part.summary[metric][key] for key in ("mean", "low", "high", "count")}
            points, curve = part.curves[metric]
            summary["points"] = list(points)
            summary["curve"] = [[point.mean, point.low, point.high] for point in curve]
            summaries[method][metric] = summary
    return summaries


def load_processor() -> Any:
    """Build the processor that turns images into pixel values for this model."""
    from transformers import AutoImageProcessor

    config = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "resample": 2,
        "rescale_factor": 1 / 255,
        "image_mean": list(MEAN),
        "image_std": list(STD),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "preprocessor_config.json")
        path.write_text(json.dumps(config), encoding="utf-8")
        return AutoImageProcessor.from_pretrained(folder, backend="pil")


def read_labels(folder: Path) -> list[str]:
    """Read the names of the classes in their order."""
    names = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    return [names[str(index)] for index in range(len(names))]


def write_results(out: Path, measured: dict[str, Any], summary: dict[str, Any]) -> None:
    """Write ``rows.csv`` and ``measured.json``, and print the means of every method."""
    rows = measured["rows"]
    with (out / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    content = {**summary, "images": measured["images"], "methods": measured["methods"]}
    (out / "measured.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for method, summaries in measured["methods"].items():
        cells = []
        for metric in METRICS:
            value = summaries[metric]
            interval = f"[{value['low']:.3f}, {value['high']:.3f}]"
            cells.append(f"{metric} {value['mean']:.3f} {interval}")
        print(f"{method:22} {'  '.join(cells)}")


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    for name, default in asdict(RunSettings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args())
    data = options.pop("data")
    out = options.pop("out")
    settings = RunSettings(**options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    labels = read_labels(data)
    training_images = Images.read(data / "train_subset.jsonl.gz").to(device)
    test_images = Images.read(data / "test_subset.jsonl.gz").to(device)
    num_training = len(training_images.labels)
    num_test = len(test_images.labels)
    print(f"{num_training} training images, {num_test} test images, on {device}")
    model = train(training_images, labels, settings)
    accuracy = measure_accuracy(model, test_images)
    training_accuracy = measure_accuracy(model, training_images)
    print(f"accuracy {accuracy:.4f} on test, {training_accuracy:.4f} on training images")
    out.mkdir(parents=True, exist_ok=True)
    model.cpu().save_pretrained(out / "model")
    load_processor().save_pretrained(out / "model")
    measured = measure_faithfulness(model.to(device), test_images, settings)
    summary = {"accuracy": accuracy, "test": num_test, "settings": asdict(settings)}
    write_results(out, measured, summary)


if __name__ == "__main__":
    main()
