"""Are the error bars of ``subset_relevance`` right? Its scores with many seeds against what one seed says.

    TOKENLIGHT_DATA=DATA python benchmarks/frontier_errors.py --out errors.json [--texts 30] [--seeds 20]

Each text is explained with as many seeds as asked for; the mean over them stands for what more samples
would give. For each number of sub-texts: the share of scores that lie within one and within two of their own
standard errors of that mean (68 % and 95 % if errors were normal and their size known), the share of scores
that were not marked as possibly 0 but have the other sign in the mean, and the stability that one seed states
beside the share of the top 5 that two seeds really have in common.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from frontier import TASKS, read_texts
from machine import facts

from tokenlight import Attribution, Explainer

SAMPLES = (8, 16, 32)
TOP_K = 5


def top_tokens(attribution: Attribution) -> set[int]:
    """Return the positions of the strongest tokens, special ones left out."""
    magnitudes = np.abs(attribution.scores) * ~np.array(attribution.row.special_tokens_mask)
    return set(np.argsort(-magnitudes, kind="stable")[:TOP_K].tolist())


def compare_seeds(runs: list[list[Attribution]]) -> dict[str, float]:
    """Compare the explanations of each text by several seeds, ``seed text``."""
    within_one, within_two, wrong_signs, shared, stated = [], [], [], [], []
    for attributions in zip(*runs, strict=True):
        is_regular = ~np.array(attributions[0].row.special_tokens_mask)
        scores = np.array([attribution.scores for attribution in attributions])[:, is_regular]
        errors = np.array([attribution.standard_errors for attribution in attributions])
        errors = errors[:, is_regular]
        is_clear = ~np.array([attribution.uncertain_mask for attribution in attributions])
        is_clear = is_clear[:, is_regular]
        mean = scores.mean(axis=0)
        # The mean holds the score itself, which makes their distance too small by this factor.
        factor = np.sqrt(1 - 1 / len(scores))
        distances = np.abs(scores - mean) / factor
        within_one += (distances <= errors).ravel().tolist()
        within_two += (distances <= 2 * errors).ravel().tolist()
        wrong_signs += (np.sign(scores) != np.sign(mean))[is_clear].tolist()
        if is_regular.sum() > TOP_K:
            stated += [attribution.extras["sampling"]["stability"] for attribution in attributions]
            for first, second in pairwise(attributions):
                shared.append(len(top_tokens(first) & top_tokens(second)) / TOP_K)
    return {
        "within_one": float(np.mean(within_one)),
        "within_two": float(np.mean(within_two)),
        "wrong_sign": float(np.mean(wrong_signs)),
        "marked_clear": len(wrong_signs) / len(within_one),
        "stability": float(np.mean(stated)),
        "shared_top": float(np.mean(shared)),
    }


def main() -> None:
    """Measure both tasks and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "facts": facts(arguments.device),
        "command": "python benchmarks/frontier_errors.py "
        f"--texts {arguments.texts} --seeds {arguments.seeds}",
        "tasks": {},
    }
    for task, (model, _, _) in TASKS.items():
        texts = read_texts(task, arguments.texts, trial=False)
        explainer = Explainer.from_pretrained(model, device=arguments.device)
        results["tasks"][task] = {}
        for samples in SAMPLES:
            runs = []
            for seed in range(arguments.seeds):
                spec = ("subset_relevance", {"num_samples": samples, "seed": seed})
                runs.append(list(explainer.explain(texts, spec, long="truncate", progress=False)))
            figures = compare_seeds(runs)
            results["tasks"][task][str(samples)] = figures
            print(task, samples, figures, flush=True)
            content = json.dumps(results, indent=1)
            arguments.out.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
