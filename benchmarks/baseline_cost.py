"""What decoded saliency, integrated gradients and occlusion cost, beside the bare model and Captum.

Every ratio is of times measured in one run on one machine. The model is BERT-base with random
weights: cost does not depend on what it has learned. Cases take turns, so that a machine that slows
down slows all of them.

    python benchmarks/baseline_cost.py                                   # this machine's CPU, small
    python benchmarks/baseline_cost.py --device cuda --json FILE         # 64 texts of 128 tokens

``decoded_gradcam`` is read over the bare forward + backward to the embeddings; the others over
Captum's own time for the same texts (left out where Captum is not installed). ``captum_one_by_one``
gives Captum a text at a time, as a loop over a data set does, and is measured on few texts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts
from one_pass_cost import run_bare

from tokenlight import Explainer, Tokens

PAD = 0
STEPS = 25
WINDOW = 3
SHAPES = {"cpu": "4x32", "cuda": "64x128"}
GRADIENT_TOKENS = {"cpu": 2048, "cuda": 16384}  # what goes through at once, ours and Captum's
FORWARD_TOKENS = {"cpu": 2048, "cuda": 65536}
FEW = 4  # texts that are fed one by one
LIMITS = {
    "decoded_gradcam / bare": ("at most", 1.35),
    "integrated_gradients / captum": ("at most", 1.05),
    "occlusion / captum": ("at most", 1.0),
    "captum_one_by_one / occlusion": ("at least", 5.0),
}


def build_cases(model: Any, head: Any, ids: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Name to a call without arguments that does the whole batch."""
    device = ids.device.type
    mask = torch.ones_like(ids)
    explainer = Explainer(model)
    tokens = Tokens.from_ids(ids, mask)
    budget = GRADIENT_TOKENS[device]

    def ours(method: Any) -> Callable[[], Any]:
        return lambda: explainer.explain(tokens, method, target=1, batch_tokens=budget)

    calls = {
        "bare": lambda: run_bare(model, ids, mask),
        "decoded_gradcam": ours(("decoded_gradcam", {"lm": head})),
        "decoded_gradcam_layer_0": ours(("decoded_gradcam", {"lm": head, "layer": 0})),
        "integrated_gradients": ours(("integrated_gradients", {"n_steps": STEPS})),
        "occlusion": ours(("occlusion", {"window": WINDOW})),
    }
    return calls | (build_captum_cases(model, ids, mask) if find_spec("captum") else {})


def build_captum_cases(
    model: Any, ids: torch.Tensor, mask: torch.Tensor
) -> dict[str, Callable[[], Any]]:
    """The same numbers from Captum, as many tokens at once."""
    from captum.attr import LayerIntegratedGradients, Occlusion

    def forward(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits

    width = ids.shape[1]
    device = ids.device.type
    integrated = LayerIntegratedGradients(forward, model.bert.embeddings)
    occlusion = Occlusion(forward)

    def run_occlusion(
        texts: torch.Tensor, attention_mask: torch.Tensor, perturbations_per_eval: int
    ) -> torch.Tensor:
        scores: torch.Tensor = occlusion.attribute(
            texts,
            sliding_window_shapes=(WINDOW,),
            baselines=PAD,
            target=1,
            additional_forward_args=(attention_mask,),
            perturbations_per_eval=perturbations_per_eval,
        )
        return scores.cpu()

    return {
        "captum_integrated_gradients": lambda: (
            integrated.attribute(
                ids,
                baselines=torch.full_like(ids, PAD),
                target=1,
                additional_forward_args=(mask,),
                n_steps=STEPS,
                internal_batch_size=GRADIENT_TOKENS[device] // width,
            )
            .sum(-1)
            .cpu()
        ),
        "captum_occlusion": torch.no_grad()(
            lambda: run_occlusion(ids, mask, max(1, FORWARD_TOKENS[device] // ids.numel()))
        ),
        "captum_one_by_one": torch.no_grad()(
            lambda: [
                run_occlusion(ids[i : i + 1], mask[i : i + 1], 1) for i in range(min(FEW, len(ids)))
            ]
        ),
    }


def measure_seconds(
    calls: dict[str, Callable[[], Any]], device: str, rounds: int
) -> dict[str, float]:
    """Median seconds of each call; the first round pays for warming up and is dropped."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(durations[1:]) for name, durations in times.items()}


def compute_ratios(seconds: dict[str, float], texts: int) -> dict[str, float]:
    """The figures that have a limit, and decoding from the lowest layer, which has none."""
    ratios_by_name = {"decoded_gradcam / bare": seconds["decoded_gradcam"] / seconds["bare"]}
    ratios_by_name["decoded_gradcam_layer_0 / bare"] = (
        seconds["decoded_gradcam_layer_0"] / seconds["bare"]
    )
    if "captum_occlusion" in seconds:
        one_by_one = seconds["captum_one_by_one"] * texts / min(FEW, texts)
        ratios_by_name |= {
            "integrated_gradients / captum": seconds["integrated_gradients"]
            / seconds["captum_integrated_gradients"],
            "occlusion / captum": seconds["occlusion"] / seconds["captum_occlusion"],
            "captum_one_by_one / occlusion": one_by_one / seconds["occlusion"],
        }
    return ratios_by_name


def main() -> None:
    """Measure, print two tables, and write them down where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shape", help="texts x tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    texts, width = (int(size) for size in (chosen.shape or SHAPES[chosen.device]).split("x"))
    config = transformers.BertConfig(num_labels=2)
    model = transformers.BertForSequenceClassification(config).to(chosen.device).eval()
    head = transformers.BertForMaskedLM(config).to(chosen.device).eval()
    ids = torch.randint(1000, 30000, (texts, width), device=chosen.device)
    seconds = measure_seconds(build_cases(model, head, ids), chosen.device, chosen.rounds)
    measured_ratios = compute_ratios(seconds, texts)
    print("| ratio | measured | wanted |\n|---|---|---|")
    for name, ratio in measured_ratios.items():
        words, limit = LIMITS.get(name, ("", ""))
        print(f"| {name} | {ratio:.2f} | {words} {limit} |")
    print("\n| case | ms |\n|---|---|")
    for name, duration in seconds.items():
        print(f"| {name} | {1000 * duration:.0f} |")
    if chosen.json:
        report = facts(chosen.device) | {"shape": f"{texts}x{width}", "rounds": chosen.rounds}
        chosen.json.write_text(
            json.dumps(report | {"seconds": seconds, "ratios": measured_ratios}, indent=2)
        )


if __name__ == "__main__":
    main()
