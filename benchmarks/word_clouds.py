"""What the classes of the embedded models are made of: word clouds and top-token tables.

    python benchmarks/word_clouds.py --data DATA --idf idf.json --out docs/results/word_clouds

DATA holds ``sst2/dev.jsonl.gz`` and ``ag_news/test.jsonl.gz`` (rows with a text); ``idf.json`` is
made with ``tokenlight idf CORPUS -o idf.json``. Texts are explained for their predicted class and
scores gathered as ``W_c(v) = idf(v) · Σ s_x(v)``; nothing of the texts is kept but token types.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenlight import Explainer, registry
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.evaluation.corpus import ClassWeights, DocumentFrequencies
from tokenlight.files.tables import read_examples
from tokenlight.metrics.token_overlap import IdfVariant
from tokenlight.plots.charts import CLOUD_COLOURS, draw_word_cloud, select_top_tokens

SETS = {
    "sentiment": ("sst2/dev.jsonl.gz", "SST-2 dev"),
    "topics": ("ag_news/test.jsonl.gz", "AG News test"),
}
TOP = 50
SHADES = 32  # of one colour and white: a fifth of the bytes, the same picture


def compute_class_weights(
    attributions: Iterable[Attribution],
    frequencies: DocumentFrequencies | None = None,
    *,
    idf: IdfVariant = "log",
    normalize: Literal["none", "l1"] = "none",
) -> ClassWeights:
    """``W_c(v)`` of each predicted class, by its label; special tokens are left out.

    Explanations must be of the predicted class. Without ``frequencies`` they are counted in the
    explained texts themselves. ``normalize="l1"`` gives every text the same weight.
    """
    attribution_list = list(attributions)
    document_frequencies = frequencies or _count_documents(attribution_list)
    sums: dict[str, Counter[str]] = {}
    for attribution in attribution_list:
        _check_predicted_class(attribution)
        is_word = ~np.array(attribution.row.special_tokens_mask)
        total = float(np.abs(attribution.scores[is_word]).sum()) if normalize == "l1" else 1.0
        class_sums = sums.setdefault(attribution.prediction.label, Counter())
        for position in np.flatnonzero(is_word):
            class_sums[attribution.row.pieces[position]] += attribution.scores[position] / (
                total or 1.0
            )
    order = attribution_list[0].prediction.labels if attribution_list else ()
    return {
        label: {
            token: float(s * document_frequencies.idf(token, idf))
            for token, s in sums[label].items()
        }
        for label in sorted(sums, key=order.index)
    }


def format_table(weights: Mapping[str, Mapping[str, float]], k: int = 50) -> str:
    """The top types of every class side by side, as Markdown."""
    columns = {
        label: select_top_tokens(token_weights, k) for label, token_weights in weights.items()
    }
    lines = [
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for rank in range(max(map(len, columns.values()), default=0)):
        cells = [_cell(column, rank) for column in columns.values()]
        lines.append(f"| {rank + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(column: Sequence[tuple[str, float]], rank: int) -> str:
    if rank >= len(column):
        return ""
    token, weight = column[rank]
    escaped = token.replace("|", "\\|").replace("`", "'")
    return f"`{escaped}` {weight:.3g}"


def _count_documents(attributions: Sequence[Attribution]) -> DocumentFrequencies:
    counts: Counter[str] = Counter()
    for attribution in attributions:
        counts.update(set(attribution.row.pieces))
    return DocumentFrequencies(len(attributions), counts)


def _check_predicted_class(attribution: Attribution) -> None:
    if attribution.target.kind != "class" or not attribution.prediction.labels:
        raise BadInput(
            f"a corpus view gathers classes, but {attribution.target.name!r} is a "
            f"{attribution.target.kind}; explain a classifier with target='predicted'."
        )
    if attribution.target.index != attribution.prediction.index:
        raise BadInput(
            f"this text was predicted as {attribution.prediction.label!r} but explained for "
            f"{attribution.target.name!r}; a corpus view needs target='predicted'."
        )


def compute_overlap(weights: ClassWeights, k: int = TOP) -> float:
    """Share of tokens that two classes' top lists have in common, mean over pairs of classes."""
    top_lists = [
        {token for token, _ in select_top_tokens(token_weights, k)}
        for token_weights in weights.values()
    ]
    pairs = list(combinations(top_lists, 2))
    return sum(len(first & second) for first, second in pairs) / (k * len(pairs))


def explain_texts(
    task: str, texts: list[Any], method: str, frequencies: DocumentFrequencies
) -> ClassWeights:
    """Class weights of one embedded model over ``texts``."""
    explainer = Explainer.from_pretrained(f"tokenlight/{task}")
    attributions = explainer.explain(iter(texts), registry.parse_spec(method), long="truncate")
    return compute_class_weights(attributions, frequencies)


def save_clouds(
    weights: Mapping[str, Mapping[str, float]], folder: str | Path, *, prefix: str = "", k: int = 50
) -> list[Path]:
    """One PNG a class, named after it."""
    output_folder = Path(folder)
    output_folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, (label, token_weights) in enumerate(weights.items()):
        name = "".join(c if c.isalnum() else "_" for c in label.lower())
        path = output_folder / f"{prefix}{name}.png"
        image = draw_word_cloud(
            token_weights, k=k, colour=CLOUD_COLOURS[index % len(CLOUD_COLOURS)]
        )
        image.quantize(SHADES).save(path, optimize=True)
        paths.append(path)
    return paths


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
    frequencies = DocumentFrequencies.load(chosen.idf)
    page = ["# Word clouds of the embedded models\n", _describe_protocol(chosen, frequencies)]
    for task, (file, name) in SETS.items():
        texts = [example.text for example in read_examples(chosen.data / file, limit=chosen.limit)]
        weights = explain_texts(task, texts, chosen.method, frequencies)
        paths = save_clouds(weights, chosen.out, prefix=f"{task}_", k=TOP)
        print(task, f"{compute_overlap(weights):.3f}", flush=True)
        page.append(f"## {task}: {name}, {len(texts):,} texts\n")
        page += [f"![{task}: {path.stem}]({path.name})" for path in paths]
        shares = {chosen.method: compute_overlap(weights)}
        for method in chosen.against:
            shares[method] = compute_overlap(explain_texts(task, texts, method, frequencies))
            print(task, method, f"{shares[method]:.3f}", flush=True)
        page.append(
            f"\nShare of the top {TOP} tokens that two classes have in common (lower is better):\n"
        )
        page.append("| method | overlap |\n|---|---|")
        page += [f"| {method} | {share:.3f} |" for method, share in shares.items()]
        page.append(f"\nThe {TOP} tokens with the highest weight for each class:\n")
        page.append(format_table(weights, TOP))
    (chosen.out / "README.md").write_text("\n".join(page), encoding="utf-8")


def _describe_protocol(chosen: argparse.Namespace, frequencies: DocumentFrequencies) -> str:
    against = "".join(f" --against {method}" for method in chosen.against)
    return (
        f"Scores of `{chosen.method}` for the predicted class, gathered by token type and class: "
        "`W_c(v) = idf(v) · Σ s_x(v)` (Hou & Castañón 2023, section 4.2). Document frequencies from "
        f"{frequencies.num_documents:,} paragraphs of English Wikipedia. Made with:\n\n"
        "```\n"
        "tokenlight idf wikipedia.txt -o idf.json\n"
        "python benchmarks/word_clouds.py --data DATA --idf idf.json --out docs/results/word_clouds "
        f"--method {chosen.method}{against}\n"
        "```\n" + (f"\n{chosen.note}\n" if chosen.note else "")
    )


if __name__ == "__main__":
    main()
