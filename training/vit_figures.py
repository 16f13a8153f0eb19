"""The figures of docs/results/vision, from what training.vit_cifar10 wrote.

    python -m training.vit_figures RUN DATA/cifar10 docs/results/vision

Heat maps are of the first test picture of each class that the model gets right, then of the first it
gets wrong: nothing is picked by eye.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from training.vit_cifar10 import METRICS, Images

CLASSES = 5  # rows of heat maps for right answers
METHODS = ["attcat", "gae", "transatt", "attnlrp", "integrated_gradients", "rollout"]
MARKS = "osv^D*PX<>hp"
OWN_COLOURS = {"attcat": "black", "random": "grey", "occlusion": "C0", "grad_x_input": "gold"}
AXES = {"deletion": "share of patches hidden", "insertion": "share of patches shown"}
ARROWS = {"deletion": "↓", "insertion": "↑"}


def curves(found: dict[str, Any]) -> Any:
    """Both curves of every method, with 95 % intervals as bands."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(13.6, 4.4), layout="constrained")
    for number, metric in enumerate(METRICS):
        axes = drawn.add_subplot(1, 2, number + 1)
        order = sorted(found["methods"], key=lambda name: found["methods"][name][metric]["mean"])
        for name in order if metric == "deletion" else order[::-1]:
            one = found["methods"][name][metric]
            line = list(found["methods"]).index(name)
            means, lows, highs = zip(*one["curve"], strict=True)
            colour = OWN_COLOURS.get(name, f"C{line % 10}")
            width = 2.4 if name == "attcat" else 1.2
            axes.plot(
                one["points"], means, color=colour, linewidth=width, marker=MARKS[line],
                markersize=3.5, label=f"{name}  {one['mean']:.3f}",
            )  # fmt: skip
            axes.fill_between(one["points"], lows, highs, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(f"{metric} {ARROWS[metric]}", fontsize=11)
        axes.set_xlabel(AXES[metric])
        axes.set_ylabel("P(predicted class)")
        axes.grid(alpha=0.25)
        axes.legend(
            fontsize=7, title="area under the curve", title_fontsize=7,
            loc="upper left", bbox_to_anchor=(1.0, 1.0),
        )  # fmt: skip
    return drawn


def chosen(explainer: Any, images: Images) -> list[Any]:
    """The first right picture of each of the first classes, then the first wrong one."""
    from tokenlight import Picture

    right: dict[int, Picture] = {}
    wrong: list[Picture] = []
    names = explainer.labels
    for number, (pixels, label) in enumerate(
        zip(images.pixels[:200], images.labels[:200].tolist(), strict=True)
    ):
        array = pixels.permute(1, 2, 0).numpy()
        said = explainer.explain(array, "random", progress=False).prediction.index
        picture = Picture(array, name=f"test {number}: {names[label]}")
        if said == label:
            right.setdefault(label, picture)
        elif not wrong:
            wrong.append(picture)
    return [*[right[label] for label in sorted(right)][:CLASSES], *wrong]


def main() -> None:
    """Draw, and copy the numbers beside the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    from tokenlight import Explainer
    from tokenlight.plots.figures import draw_image_heat_maps

    given.out.mkdir(parents=True, exist_ok=True)
    found = json.loads((given.run / "measured.json").read_text(encoding="utf-8"))
    curves(found).savefig(given.out / "curves.png", dpi=100)
    explainer = Explainer.from_pretrained(given.run / "model")
    images = Images.read(given.data / "test_subset.jsonl.gz")
    made = explainer.explain(chosen(explainer, images), METHODS, progress=False)
    draw_image_heat_maps(made).savefig(given.out / "heat_maps.png", dpi=80)
    shutil.copy(given.run / "measured.json", given.out / "measured.json")
    for name, one in sorted(found["methods"].items(), key=lambda pair: pair[1]["deletion"]["mean"]):
        cells = " | ".join(
            f"{one[m]['mean']:.3f} ({one[m]['low']:.3f}–{one[m]['high']:.3f})" for m in METRICS
        )
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
