"""Where does the device spend a call? Kernels of one explain() by device time, beside the bare pass.

python benchmarks/device_time.py --device cuda transatt:64x128 attnlrp:16x384
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from model_speed import build_bert, build_llama, run_bare_pass
from torch.profiler import ProfilerActivity, profile

from tokenlight import Explainer, Tokens


def print_profile(title: str, call: Callable[[], Any], device: str, num_rows: int) -> None:
    """Print the kernels of one call after one warm call."""
    call()
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities) as trace:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
    averages = trace.key_averages()
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = sorted(averages, key=lambda event: -getattr(event, key))
    total = sum(getattr(event, key) for event in events)
    print(f"== {title}: {total / 1e3:.1f} ms of {device}")
    for event in events[:num_rows]:
        share = getattr(event, key)
        print(f"  {share / 1e3:9.2f} ms {event.count:>6} × {event.key[:110]}")


def main() -> None:
    """Print a profile of each method and shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", nargs="+", help="method:TEXTSxTOKENS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="BERT-base")
    parser.add_argument("--rows", type=int, default=22)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    if options.model == "BERT-base":
        model = build_bert(options.device, dtype)
    else:
        model = build_llama(options.model, options.device, dtype)
    explainer = Explainer(model, cuda_graph_bytes=0)
    for cell in options.cells:
        method, _, shape = cell.partition(":")
        num_texts, num_tokens = map(int, shape.split("x"))
        ids = torch.randint(5, 900, (num_texts, num_tokens), device=options.device)
        if method == "bare":
            call = partial(run_bare_pass, model, ids)
        else:
            rows = Tokens.from_ids(ids.cpu())
            call = partial(
                explainer.explain, rows, method, target=1, batch_tokens=max(4096, ids.numel())
            )
        print_profile(f"{options.model} {options.dtype} {cell}", call, options.device, options.rows)


if __name__ == "__main__":
    main()
