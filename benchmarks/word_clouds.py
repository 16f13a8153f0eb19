"""What the classes of the embedded models are made of: word clouds and top-token tables.

    python benchmarks/word_clouds.py --data DATA --idf idf.json --out docs/results/word_clouds

DATA holds ``sst2/dev.jsonl.gz`` and ``ag_news/test.jsonl.gz`` (rows with a text); ``idf.json`` is
made with ``tokenlight idf CORPUS -o idf.json``. Texts are explained for their predicted class and
scores gathered as ``W_c(v) = idf(v) · Σ s_x(v)``; nothing of the texts is kept but token types.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

from tokenlight import Explainer, registry
from tokenlight.evaluation.corpus import Frequencies, Weights, class_weights, table
from tokenlight.files.tables import read
from tokenlight.plots.clouds import save_clouds, top_tokens

SETS = {
    "sentiment": ("sst2/dev.jsonl.gz", "SST-2 dev"),
    "topics": ("ag_news/test.jsonl.gz", "AG News test"),
}
TOP = 50


def overlap(weights: Weights, k: int = TOP) -> float:
    """Share of tokens that two classes' top lists have in common, mean over pairs of classes."""
    tops = [{token for token, _ in top_tokens(own, k)} for own in weights.values()]
    pairs = list(combinations(tops, 2))
    return sum(len(one & other) for one, other in pairs) / (k * len(pairs))


def gathered(task: str, texts: list[Any], method: str, frequencies: Frequencies) -> Weights:
    """Class weights of one embedded model over ``texts``."""
    explainer = Explainer.from_pretrained(f"tokenlight/{task}")
    found = explainer.explain(iter(texts), registry.parse(method), long="truncate")
    return class_weights(found, frequencies)


def main() -> None:
    """Explain, gather, draw, and write one page for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--idf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", default="decoded_gradcam")
    parser.add_argument("--against", action="append", default=[], help="overlap of these, too")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--note", default="", help="a sentence for the page")
    chosen = parser.parse_args()
    frequencies = Frequencies.load(chosen.idf)
    page = ["# Word clouds of the embedded models\n", _how(chosen, frequencies)]
    for task, (file, name) in SETS.items():
        texts = [example.text for example in read(chosen.data / file, limit=chosen.limit)]
        weights = gathered(task, texts, chosen.method, frequencies)
        made = save_clouds(weights, chosen.out, prefix=f"{task}_", k=TOP)
        print(task, f"{overlap(weights):.3f}", flush=True)
        page.append(f"## {task}: {name}, {len(texts):,} texts\n")
        page += [f"![{task}: {path.stem}]({path.name})" for path in made]
        shares = {chosen.method: overlap(weights)}
        for other in chosen.against:
            shares[other] = overlap(gathered(task, texts, other, frequencies))
            print(task, other, f"{shares[other]:.3f}", flush=True)
        page.append(
            f"\nShare of the top {TOP} tokens that two classes have in common (lower is better):\n"
        )
        page.append("| method | overlap |\n|---|---|")
        page += [f"| {method} | {share:.3f} |" for method, share in shares.items()]
        page.append(f"\nThe {TOP} tokens that speak most for each class, with their weight:\n")
        page.append(table(weights, TOP))
    (chosen.out / "README.md").write_text("\n".join(page), encoding="utf-8")


def _how(chosen: argparse.Namespace, frequencies: Frequencies) -> str:
    against = "".join(f" --against {method}" for method in chosen.against)
    return (
        f"Scores of `{chosen.method}` for the predicted class, gathered by token type and class: "
        "`W_c(v) = idf(v) · Σ s_x(v)` (Hou & Castañón 2023, section 4.2). Document frequencies from "
        f"{frequencies.documents:,} paragraphs of English Wikipedia. Made with:\n\n"
        "```\n"
        "tokenlight idf wikipedia.txt -o idf.json\n"
        "python benchmarks/word_clouds.py --data DATA --idf idf.json --out docs/results/word_clouds "
        f"--method {chosen.method}{against}\n"
        "```\n" + (f"\n{chosen.note}\n" if chosen.note else "")
    )


if __name__ == "__main__":
    main()
