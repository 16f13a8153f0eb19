"""How long is the first answer? A new process, its first call, a repeated call and new shapes.

Run it twice: what is compiled in the first process should be found by the second.

    python benchmarks/first_call.py --device cuda --dtype bfloat16
    python benchmarks/first_call.py --device cuda --profile    # where the first calls spend their time
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from functools import partial

import torch
from model_speed import build_bert, run_bare_pass, time_call

from tokenlight import Explainer, Tokens

SHAPES = ((1, 24), (1, 25), (8, 40), (16, 384), (64, 128))


def main() -> None:
    """Time the calls of a new process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--methods", nargs="+", default=["attcat", "attnlrp"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    model = build_bert(options.device, getattr(torch, options.dtype))
    shapes = SHAPES[:3] if options.device == "cpu" else SHAPES
    first_ids = torch.randint(5, 900, SHAPES[0], device=options.device)
    bare_call = partial(run_bare_pass, model, first_ids)
    first_seconds = time_call(bare_call, options.device)
    second_seconds = time_call(bare_call, options.device)
    print(f"bare pass, first and second: {first_seconds:.3f} s {second_seconds:.3f} s")
    explainer = Explainer(model)
    profiler = cProfile.Profile()
    for method in options.methods:
        for shape in shapes:
            ids = torch.randint(5, 900, shape, device=options.device)
            call = partial(explainer.explain, Tokens.from_ids(ids.cpu()), method, target=1)
            if options.profile:
                profiler.enable()
            call_seconds = [time_call(call, options.device)]
            profiler.disable()
            for _ in range(5):
                call_seconds.append(time_call(call, options.device))
            listed = ", ".join(f"{seconds:.3f}" for seconds in call_seconds)
            print(f"{method} {shape[0]}×{shape[1]}: calls take {listed} s")
    if options.profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main()
