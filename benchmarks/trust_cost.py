"""What does a grade of trust cost, compared with one explanation?

    python benchmarks/trust_cost.py [--device cuda] [--model MODEL] [--json PATH]

Every sentence is explained, then graded alone, as ``tokenlight explain --trust`` does. Printed is the ratio
of the two times: of the processor on a CPU (other programs do not disturb it), of the clock on a GPU. Several
methods on one text share their random partial texts, so that the last line is less than the sum.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenlight import Explainer
from tokenlight.files.write import write_text
from tokenlight.trust import assess_trust, assess_trust_of_all

SENTENCES = (
    "A charming and often affecting journey.",
    "The plot is thin, but never dull.",
    "Never dull, and often very funny, though the ending is too long.",
    "It is hard to imagine a better ending, and I did not want it to stop.",
    "I went in expecting very little, and the first half hour did nothing to change that, but the film "
    "slowly finds its feet.",
    "What could have been a routine story about two brothers and a stolen car turns, in the hands of this "
    "director, into something quiet and strange.",
    "A warm and funny film that never loses its way, with a cast that seems to enjoy every minute of it and "
    "a script that knows when to stop talking and let the pictures work.",
)
METHODS = ["attnlrp", "attcat", "gae", "rollout"]


def clock(function: Callable[[], Any], repeats: int, device: str) -> tuple[float, Any]:
    """Return the least time of several calls, in seconds, and the last result."""
    timer = time.process_time if device == "cpu" else time.perf_counter
    best = np.inf
    for _ in range(repeats):
        start = timer()
        result = function()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, timer() - start)
    return float(best), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="tokenlight/sentiment")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cpu":
        torch.set_num_threads(1)
    explainer = Explainer.from_pretrained(arguments.model, device=device)
    assess_trust(explainer, explainer.explain(SENTENCES[0], "attnlrp"))  # load what is loaded once
    rows = []
    for text in SENTENCES:
        explained, attribution = clock(
            lambda text=text: explainer.explain(text, "attnlrp"), 7, device
        )
        graded, assessed = clock(
            lambda attribution=attribution: assess_trust(explainer, attribution), 3, device
        )
        trust = assessed.extras["trust"]
        ratio = graded / explained
        row = {
            "words": trust.get("num_words"), "orders": trust.get("num_orders"), "grade": trust["grade"],
            "explanation_ms": round(1e3 * explained, 1), "ratio": round(ratio, 2),
        }  # fmt: skip
        rows.append(row)
        print(" · ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    ratios = [row["ratio"] for row in rows]
    attributions = explainer.explain([SENTENCES[3]], METHODS)
    several, _ = clock(lambda: assess_trust_of_all(explainer, attributions), 3, device)
    several_ratio = several / (rows[3]["explanation_ms"] / 1e3)
    print(
        f"one explanation and its grade, {device}: median {np.median(ratios):.1f} ×, most {max(ratios):.1f} ×"
    )
    print(f"{len(METHODS)} methods on one text: {several_ratio:.1f} × one explanation")
    if arguments.json:
        content = {
            "device": device,
            "rows": rows,
            "methods": METHODS,
            "several": round(several_ratio, 2),
        }
        write_text(arguments.json, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
