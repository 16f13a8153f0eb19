"""How long is the first answer? A new process, its first call, a repeated call and new shapes.

Run it twice: what is compiled in the first process should be found by the second.

    python benchmarks/first_call.py --device cuda --dtype bfloat16
    python benchmarks/first_call.py --device cuda --profile    # where the first calls spend their time
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any

import torch
from model_speed import bare, bert

from tokenlight import Explainer, Tokens

SHAPES = ((1, 24), (1, 25), (8, 40), (16, 384), (64, 128))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--methods", nargs="+", default=["attcat", "attnlrp"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    model = bert(options.device, getattr(torch, options.dtype))
    shapes = SHAPES[:3] if options.device == "cpu" else SHAPES

    def seconds_of(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def make_ids(shape: tuple[int, int]) -> torch.Tensor:
        return torch.randint(5, 900, shape, device=options.device)

    print("bare pass, first and second:", end=" ")
    first_ids = make_ids(SHAPES[0])
    print(*(f"{seconds_of(lambda: bare(model, first_ids)):.3f} s" for _ in range(2)))
    explainer = Explainer(model)
    profiler = cProfile.Profile()
    for method in options.methods:
        for shape in shapes:
            rows = Tokens.from_ids(make_ids(shape).cpu())

            def explain(rows: Tokens = rows, method: str = method) -> Any:
                return explainer.explain(rows, method, target=1)

            if options.profile:
                profiler.enable()
            times = [seconds_of(explain)]
            profiler.disable()
            times += [seconds_of(explain) for _ in range(5)]
            name = f"{method} {shape[0]}×{shape[1]}"
            print(f"{name}: calls take", ", ".join(f"{seconds:.3f}" for seconds in times), "s")
    if options.profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main()
