"""Draw the figures of docs/results/vision from what training.vit_cifar10 wrote.

    python -m training.vit_figures RUN DATA/cifar10 docs/results/vision

Heat maps are of the first test image of each class that the model classifies correctly, then of the first
that it does not: nothing is picked by eye.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from training.vit_cifar10 import METRICS, Images

NUM_CORRECT_IMAGES = 5
NUM_SEARCHED_IMAGES = 200
METHODS = ["attcat", "gae", "transatt", "attnlrp", "integrated_gradients", "rollout"]
MARKERS = "osv^D*PX<>hp"
FIXED_COLOURS = {"attcat": "black", "random": "grey", "occlusion": "C0", "grad_x_input": "gold"}
X_LABELS = {"deletion": "share of patches hidden", "insertion": "share of patches shown"}
ARROWS = {"deletion": "↓", "insertion": "↑"}


def draw_curves(summaries: dict[str, Any]) -> Any:
    """Draw both curves of every method, with 95 % intervals as bands."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.6, 4.4), layout="constrained")
    for index, metric in enumerate(METRICS):
        axes = figure.add_subplot(1, 2, index + 1)
        _draw_metric(axes, metric, summaries)
    return figure


def _draw_metric(axes: Any, metric: str, summaries: dict[str, Any]) -> None:
    """Draw the curves of one metric, best method first in the legend."""
    best_first = sorted(
        summaries,
        key=lambda method: summaries[method][metric]["mean"],
        reverse=metric == "insertion",
    )
    method_indices = {method: index for index, method in enumerate(summaries)}
    for method in best_first:
        summary = summaries[method][metric]
        index = method_indices[method]
        means, lows, highs = zip(*summary["curve"], strict=True)
        colour = FIXED_COLOURS.get(method, f"C{index % 10}")
        axes.plot(
            summary["points"],
            means,
            color=colour,
            linewidth=2.4 if method == "attcat" else 1.2,
            marker=MARKERS[index],
            markersize=3.5,
            label=f"{method}  {summary['mean']:.3f}",
        )
        axes.fill_between(summary["points"], lows, highs, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(f"{metric} {ARROWS[metric]}", fontsize=11)
    axes.set_xlabel(X_LABELS[metric])
    axes.set_ylabel("P(predicted class)")
    axes.grid(alpha=0.25)
    axes.legend(
        fontsize=7,
        title="area under the curve",
        title_fontsize=7,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )


def choose_images(explainer: Any, images: Images) -> list[Any]:
    """Return the first correctly classified image of each of the first classes, then the first wrong one."""
    from tokenlight import Picture

    correct_by_label: dict[int, Picture] = {}
    wrong: Picture | None = None
    labels = images.labels[:NUM_SEARCHED_IMAGES].tolist()
    for index, label in enumerate(labels):
        array = images.pixels[index].permute(1, 2, 0).numpy()
        prediction = explainer.explain(array, "random", progress=False).prediction.index
        picture = Picture(array, name=f"test {index}: {explainer.labels[label]}")
        if prediction == label:
            correct_by_label.setdefault(label, picture)
        elif wrong is None:
            wrong = picture
    correct = [correct_by_label[label] for label in sorted(correct_by_label)]
    chosen = correct[:NUM_CORRECT_IMAGES]
    if wrong is not None:
        chosen.append(wrong)
    return chosen


def print_table(summaries: dict[str, Any]) -> None:
    """Print the means of every method as rows of a markdown table, best deletion first."""
    for method in sorted(summaries, key=lambda method: summaries[method]["deletion"]["mean"]):
        cells = []
        for metric in METRICS:
            value = summaries[method][metric]
            cells.append(f"{value['mean']:.3f} ({value['low']:.3f}–{value['high']:.3f})")
        print(f"| {method} | {' | '.join(cells)} |")


def main() -> None:
    """Draw, and copy the numbers beside the figures."""
    from tokenlight import Explainer
    from tokenlight.plots.figures import draw_image_heat_maps

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured_path = arguments.run / "measured.json"
    summaries = json.loads(measured_path.read_text(encoding="utf-8"))["methods"]
    draw_curves(summaries).savefig(arguments.out / "curves.png", dpi=100)
    explainer = Explainer.from_pretrained(arguments.run / "model")
    images = Images.read(arguments.data / "test_subset.jsonl.gz")
    attributions = explainer.explain(choose_images(explainer, images), METHODS, progress=False)
    draw_image_heat_maps(attributions).savefig(arguments.out / "heat_maps.png", dpi=80)
    shutil.copy(measured_path, arguments.out / "measured.json")
    print_table(summaries)


if __name__ == "__main__":
    main()
