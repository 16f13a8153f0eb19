"""Time decoded saliency, integrated gradients and occlusion against the bare model and Captum.

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
from functools import partial
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
GRADIENT_TOKENS = {"cpu": 2048, "cuda": 16384}  # tokens of a batch, ours and Captum's
FORWARD_TOKENS = {"cpu": 2048, "cuda": 65536}
NUM_SINGLE_TEXTS = 4  # texts that Captum gets one by one
LIMITS = {
    "decoded_gradcam / bare": ("at most", 1.35),
    "integrated_gradients / captum": ("at most", 1.05),
    "occlusion / captum": ("at most", 1.0),
    "captum_one_by_one / occlusion": ("at least", 5.0),
}


def build_cases(model: Any, head: Any, ids: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Build, by name, the calls to time; each explains the whole batch."""
    device = ids.device.type
    mask = torch.ones_like(ids)
    explainer = Explainer(model)
    tokens = Tokens.from_ids(ids, mask)
    budget = GRADIENT_TOKENS[device]

    def explain_with(method: Any) -> Callable[[], Any]:
        return partial(explainer.explain, tokens, method, target=1, batch_tokens=budget)

    calls = {
        "bare": lambda: run_bare(model, ids, mask),
        "decoded_gradcam": explain_with(("decoded_gradcam", {"lm": head})),
        "decoded_gradcam_layer_0": explain_with(("decoded_gradcam", {"lm": head, "layer": 0})),
        "integrated_gradients": explain_with(("integrated_gradients", {"num_steps": STEPS})),
        "occlusion": explain_with(("occlusion", {"window": WINDOW})),
    }
    if find_spec("captum"):
        calls |= build_captum_cases(model, ids, mask)
    return calls


def build_captum_cases(
    model: Any, ids: torch.Tensor, mask: torch.Tensor
) -> dict[str, Callable[[], Any]]:
    """Build the calls of Captum that compute the same numbers, with as many tokens at once."""
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

    def run_integrated_gradients() -> torch.Tensor:
        scores: torch.Tensor = integrated.attribute(
            ids,
            baselines=torch.full_like(ids, PAD),
            target=1,
            additional_forward_args=(mask,),
            num_steps=STEPS,
            internal_batch_size=GRADIENT_TOKENS[device] // width,
        )
        return scores.sum(-1).cpu()

    @torch.no_grad()
    def run_occlusion_of_batch() -> torch.Tensor:
        return run_occlusion(ids, mask, max(1, FORWARD_TOKENS[device] // ids.numel()))

    @torch.no_grad()
    def run_occlusion_one_by_one() -> None:
        for row in range(min(NUM_SINGLE_TEXTS, len(ids))):
            run_occlusion(ids[row : row + 1], mask[row : row + 1], 1)

    return {
        "captum_integrated_gradients": run_integrated_gradients,
        "captum_occlusion": run_occlusion_of_batch,
        "captum_one_by_one": run_occlusion_one_by_one,
    }


def measure_seconds(
    calls: dict[str, Callable[[], Any]], device: str, rounds: int
) -> dict[str, float]:
    """Return the median seconds of each call, without the first round, which warms up."""
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
    """Compute the ratios that have a limit, and that of decoding the lowest layer, which has none."""
    bare_seconds = seconds["bare"]
    ratios_by_name = {}
    for name in ("decoded_gradcam", "decoded_gradcam_layer_0"):
        ratios_by_name[f"{name} / bare"] = seconds[name] / bare_seconds
    if "captum_occlusion" in seconds:
        one_by_one = seconds["captum_one_by_one"] * texts / min(NUM_SINGLE_TEXTS, texts)
        ratios_by_name |= {
            "integrated_gradients / captum": seconds["integrated_gradients"]
            / seconds["captum_integrated_gradients"],
            "occlusion / captum": seconds["occlusion"] / seconds["captum_occlusion"],
            "captum_one_by_one / occlusion": one_by_one / seconds["occlusion"],
        }
    return ratios_by_name


def main() -> None:
    """Measure, print two tables, and write them to a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shape", help="texts x tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    texts, width = (int(size) for size in (arguments.shape or SHAPES[arguments.device]).split("x"))
    config = transformers.BertConfig(num_labels=2)
    model = transformers.BertForSequenceClassification(config).to(arguments.device).eval()
    head = transformers.BertForMaskedLM(config).to(arguments.device).eval()
    ids = torch.randint(1000, 30000, (texts, width), device=arguments.device)
    seconds = measure_seconds(build_cases(model, head, ids), arguments.device, arguments.rounds)
    measured_ratios = compute_ratios(seconds, texts)
    print("| ratio | measured | wanted |\n|---|---|---|")
    for name, ratio in measured_ratios.items():
        words, limit = LIMITS.get(name, ("", ""))
        print(f"| {name} | {ratio:.2f} | {words} {limit} |")
    print("\n| case | ms |\n|---|---|")
    for name, duration in seconds.items():
        print(f"| {name} | {1000 * duration:.0f} |")
    if arguments.json:
        report = facts(arguments.device) | {"shape": f"{texts}x{width}", "rounds": arguments.rounds}
        arguments.json.write_text(
            json.dumps(report | {"seconds": seconds, "ratios": measured_ratios}, indent=2)
        )


if __name__ == "__main__":
    main()
