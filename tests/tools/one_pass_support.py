"""Which families of classifiers each one-pass method explains, as rule 4 of docs/adr/0022 asks.

    python -m tests.tools.one_pass_support --out FILE     # JSON: method to the families that get scores

Every family that the tests build, with random weights; a family counts where all scores are finite and not
all zero.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.families import FAMILIES, PARTLY_SUPPORTED_FAMILIES, build_model
from tests.helpers.relevance_families import make_padded_tokens
from tokenlight import Explainer
from tokenlight.errors import TokenlightError

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "attnlrp": ("attnlrp", {}),
    "fullgrad_plus:gradient=libra": ("fullgrad_plus", {"gradient": "libra"}),
    "cat:gradient=cp": ("cat", {"gradient": "cp"}),
}


def is_explained(model: Any, method: tuple[str, dict[str, Any]]) -> bool:
    """Return whether a method gives finite scores that are not all zero."""
    try:
        attributions = Explainer(model).explain(make_padded_tokens(), method, target=1)
    except TokenlightError:
        return False
    scores = [attribution.scores for attribution in attributions]
    return all(np.isfinite(values).all() and np.abs(values).max() > 0 for values in scores)


def main() -> None:
    """Try all methods on all families."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    supported: dict[str, list[str]] = {name: [] for name in METHODS}
    for family in sorted({*FAMILIES, *PARTLY_SUPPORTED_FAMILIES}):
        model = build_model(family)
        for name, method in METHODS.items():
            if is_explained(model, method):
                supported[name].append(family)
    out.write_text(json.dumps(supported, indent=1) + "\n", encoding="utf-8")
    for name, families in supported.items():
        missing = sorted(set(supported["attnlrp"]) - set(families))
        missing_names = ", ".join(missing) or "none"
        sys.stdout.write(f"{name}: {len(families)} families; without {missing_names}\n")


if __name__ == "__main__":
    main()
