"""What an explanation costs, as a multiple of the bare model's forward + backward to the embeddings.

Every figure is a ratio of times (and of peak memory) measured in one run on one machine: ours over
bare, and a peer's over bare. The model is BERT-base with random weights: cost does not depend on
what it has learned. Each case runs in a process of its own, so that peak memory is its own.

    python benchmarks/one_pass_cost.py                          # this machine's CPU
    python benchmarks/one_pass_cost.py --device cuda --json FILE
    python benchmarks/one_pass_cost.py --long                   # 2,048 and 16,384 tokens
    python benchmarks/one_pass_cost.py --shape 4x128 --cases bare attnlrp cat:gradient=cp
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts

ONE_PASS = [
    "raw_att", "rollout", "grads", "att_grads", "grad_sam", "att_gradcam", "cam", "gae", "cat",
    "attcat", "gradcam", "grad_x_input", "random",
]  # fmt: skip
RELEVANT = ["bare", "attnlrp", "cp_lrp"]
SHAPES = {"cpu": ["1x32", "32x32", "8x128", "2x512"], "cuda": ["64x32", "64x128", "16x512"]}
# Width, layers, inner width; of the second the weights are frozen.
LLAMAS = {"llama": (64, 2, 128), "llama_frozen": (256, 4, 688)}
CASES = ["bare", "attcat", "one_pass", "captum"]


def build_model(size: str) -> Any:
    """Build a model with random weights: a Llama of a size in ``LLAMAS``, else BERT-base."""
    if size in LLAMAS:
        width, layers, inner = LLAMAS[size]
        config: Any = transformers.LlamaConfig(
            vocab_size=1000, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=4, intermediate_size=inner, max_position_embeddings=16384,
            num_labels=2, pad_token_id=0,
        )  # fmt: skip
        model = transformers.LlamaForSequenceClassification(config)
        return model.requires_grad_(size == "llama")
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2))


def build_call(case: str, model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    """Build the call to time, which takes no arguments."""
    mask = torch.ones_like(ids)
    if case == "bare":
        return lambda: run_bare(model, ids, mask)
    if case == "captum":
        return build_captum_call(model, ids, mask)
    from tokenlight import Explainer, Tokens

    explainer = Explainer(model)
    tokens = Tokens.from_ids(ids, mask)
    methods = ONE_PASS if case == "one_pass" else case
    return lambda: explainer.explain(tokens, methods, batch_tokens=ids.numel(), target=1)


def run_bare(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Run forward and backward to the embeddings."""
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    logits = model(inputs_embeds=embeddings, attention_mask=mask).logits
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), embeddings)
    return gradient.sum(dim=-1).cpu()


def build_captum_call(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> Callable[[], Any]:
    """Build the call of Captum that computes gradient × input."""
    from captum.attr import LayerGradientXActivation

    peer = LayerGradientXActivation(
        lambda i, m: model(input_ids=i, attention_mask=m).logits, model.bert.embeddings
    )
    return lambda: peer.attribute(ids, target=1, additional_forward_args=(mask,)).sum(-1).cpu()


def measure(case: str, size: str, shape: str, device: str) -> dict[str, float]:
    """Return the median seconds of a call, and the peak memory above the loaded model."""
    torch.manual_seed(0)
    model = build_model(size).to(device).eval()
    batch, length = (int(size) for size in shape.split("x"))
    ids = torch.randint(5, 900, (batch, length), device=device)
    call = build_call(case, model, ids)
    if device == "cuda":
        call()
        torch.cuda.synchronize()
        loaded = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    times = []
    since = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - since < 3 and len(times) < 30):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        if size == "llama":
            break
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated() - loaded
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - loaded
    steady_times = times[1:] or times  # the first call pays for warming up
    return {"seconds": statistics.median(steady_times), "bytes": float(peak)}


def measure_in_subprocess(case: str, size: str, shape: str, device: str) -> dict[str, float] | None:
    """Measure in a process of its own; None where a library is missing."""
    command = [sys.executable, __file__, "--case", case, "--size", size, "--shape", shape]
    result = subprocess.run(
        [*command, "--device", device],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        check=False,
    )
    if result.returncode:
        if "No module named 'captum'" in result.stderr:
            return None
        raise SystemExit(f"{case} {shape} failed:\n{result.stderr}")
    measurement: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return measurement


def print_table(device: str, size: str, shapes: list[str], cases: list[str]) -> dict[str, Any]:
    """Measure every case at every shape, and print a row for each."""
    rows = []
    print("| shape | case | time / bare | peak memory / bare | ms |")
    print("|---|---|---|---|---|")
    for shape in shapes:
        base = measure_in_subprocess("bare", size, shape, device)
        assert base is not None
        for case in cases:
            measurement = (
                base if case == "bare" else measure_in_subprocess(case, size, shape, device)
            )
            if measurement is None:
                print(f"| {shape} | {case} | not installed | | |", flush=True)
                continue
            ratio = measurement["seconds"] / base["seconds"]
            memory = measurement["bytes"] / max(base["bytes"], 1.0)
            milliseconds = f"{1000 * measurement['seconds']:.1f}" if device == "cuda" else "-"
            print(f"| {shape} | {case} | {ratio:.2f} | {memory:.2f} | {milliseconds} |", flush=True)
            rows.append(
                {"shape": shape, "case": case, "time": ratio, "memory": memory, **measurement}
            )
    return {"size": size, "rows": rows}


def main() -> None:
    """Measure one case in this process, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", action="append")
    parser.add_argument("--cases", nargs="+", default=CASES, help="bare, and methods beside it")
    parser.add_argument("--case")
    parser.add_argument("--size", default="bert")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.case:
        print(
            json.dumps(
                measure(arguments.case, arguments.size, arguments.shape[0], arguments.device)
            )
        )
        return
    described = facts(arguments.device, dtype="float32")
    print(", ".join(f"{name} {value}" for name, value in described.items()))
    tables = []
    if not arguments.long:
        shapes = arguments.shape or SHAPES[arguments.device]
        tables.append(print_table(arguments.device, "bert", shapes, arguments.cases))
    if arguments.long or not arguments.shape:
        print("\n2,048 and 16,384 tokens, a small Llama, memory is the figure:")
        tables.append(print_table(arguments.device, "llama_frozen", ["1x2048"], RELEVANT))
        tables.append(print_table(arguments.device, "llama", ["1x16384"], ["bare", "attcat"]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"facts": described, "tables": tables}, indent=1))


if __name__ == "__main__":
    main()
