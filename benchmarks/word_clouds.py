"""Draw word clouds and top-token tables of the classes of the embedded models.

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
    """Compute ``W_c(v)`` of each predicted class; special tokens are left out.

    Args:
        attributions: Explanations of the predicted class.
        frequencies: Document frequencies; without them they are counted in the explained texts.
        idf: Variant of the inverse document frequency.
        normalize: ``"l1"`` gives every text the same weight.

    Returns:
        Weights by token, by label.

    Raises:
        BadInput: An explanation is not of the predicted class.
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
            piece = attribution.row.pieces[position]
            class_sums[piece] += attribution.scores[position] / (total or 1.0)
    order = attribution_list[0].prediction.labels if attribution_list else ()
    weights: dict[str, dict[str, float]] = {}
    for label in sorted(sums, key=order.index):
        weights[label] = {}
        for token, score_sum in sums[label].items():
            token_idf = document_frequencies.idf(token, idf)
            weights[label][token] = float(score_sum * token_idf)
    return weights


def format_table(weights: Mapping[str, Mapping[str, float]], k: int = 50) -> str:
    """Format the top tokens of every class side by side, as Markdown."""
    columns = {
        label: select_top_tokens(token_weights, k) for label, token_weights in weights.items()
    }
    lines = [
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for rank in range(max(map(len, columns.values()), default=0)):
        cells = [_format_cell(column, rank) for column in columns.values()]
        lines.append(f"| {rank + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _format_cell(column: Sequence[tuple[str, float]], rank: int) -> str:
    """Format the token at a rank; empty where the column is shorter."""
    if rank >= len(column):
        return ""
    token, weight = column[rank]
    escaped = token.replace("|", "\\|").replace("`", "'")
    return f"`{escaped}` {weight:.3g}"


def _count_documents(attributions: Sequence[Attribution]) -> DocumentFrequencies:
    """Count in how many of the explained texts each token occurs."""
    counts: Counter[str] = Counter()
    for attribution in attributions:
        counts.update(set(attribution.row.pieces))
    return DocumentFrequencies(len(attributions), counts)


def _check_predicted_class(attribution: Attribution) -> None:
    """Refuse an explanation that is not of the predicted class."""
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
    """Compute the share of top tokens that two classes have in common, mean over pairs of classes."""
    top_lists = []
    for token_weights in weights.values():
        top_tokens = select_top_tokens(token_weights, k)
        top_lists.append({token for token, _ in top_tokens})
    pairs = list(combinations(top_lists, 2))
    return sum(len(first & second) for first, second in pairs) / (k * len(pairs))


def explain_texts(
    task: str, texts: list[Any], method: str, frequencies: DocumentFrequencies
) -> ClassWeights:
    """Compute the class weights of an embedded model over ``texts``."""
    explainer = Explainer.from_pretrained(f"tokenlight/{task}")
    attributions = explainer.explain(iter(texts), registry.parse_spec(method), long="truncate")
    return compute_class_weights(attributions, frequencies)


def save_clouds(
    weights: Mapping[str, Mapping[str, float]], folder: str | Path, *, prefix: str = "", k: int = 50
) -> list[Path]:
    """Save a PNG per class, named after it, and return the paths."""
    output_folder = Path(folder)
    output_folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, (label, token_weights) in enumerate(weights.items()):
        characters = [c if c.isalnum() else "_" for c in label.lower()]
        name = "".join(characters)
        path = output_folder / f"{prefix}{name}.png"
        image = draw_word_cloud(
            token_weights, k=k, colour=CLOUD_COLOURS[index % len(CLOUD_COLOURS)]
        )
        image.quantize(SHADES).save(path, optimize=True)
        paths.append(path)
    return paths


def main() -> None:
    """Explain, gather, draw, and write one page for all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--idf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", default="decoded_gradcam")
    parser.add_argument("--against", action="append", default=[], help="overlap of these, too")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--note", default="", help="a sentence for the page")
    arguments = parser.parse_args()
    frequencies = DocumentFrequencies.load(arguments.idf)
    page = ["# Word clouds of the embedded models\n", _describe_protocol(arguments, frequencies)]
    for task, (file, name) in SETS.items():
        texts = [
            example.text for example in read_examples(arguments.data / file, limit=arguments.limit)
        ]
        weights = explain_texts(task, texts, arguments.method, frequencies)
        paths = save_clouds(weights, arguments.out, prefix=f"{task}_", k=TOP)
        print(task, f"{compute_overlap(weights):.3f}", flush=True)
        page.append(f"## {task}: {name}, {len(texts):,} texts\n")
        page += [f"![{task}: {path.stem}]({path.name})" for path in paths]
        shares = {arguments.method: compute_overlap(weights)}
        for method in arguments.against:
            shares[method] = compute_overlap(explain_texts(task, texts, method, frequencies))
            print(task, method, f"{shares[method]:.3f}", flush=True)
        page.append(
            f"\nShare of the top {TOP} tokens that two classes have in common (lower is better):\n"
        )
        page.append("| method | overlap |\n|---|---|")
        page += [f"| {method} | {share:.3f} |" for method, share in shares.items()]
        page.append(f"\nThe {TOP} tokens with the highest weight for each class:\n")
        page.append(format_table(weights, TOP))
    (arguments.out / "README.md").write_text("\n".join(page), encoding="utf-8")


def _describe_protocol(arguments: argparse.Namespace, frequencies: DocumentFrequencies) -> str:
    """Describe how the page was made."""
    against = "".join(f" --against {method}" for method in arguments.against)
    return (
        f"Scores of `{arguments.method}` for the predicted class, gathered by token type and class: "
        "`W_c(v) = idf(v) · Σ s_x(v)` (Hou & Castañón 2023, section 4.2). Document frequencies from "
        f"{frequencies.num_documents:,} paragraphs of English Wikipedia. Made with:\n\n"
        "```\n"
        "tokenlight idf wikipedia.txt -o idf.json\n"
        "python benchmarks/word_clouds.py --data DATA --idf idf.json --out docs/results/word_clouds "
        f"--method {arguments.method}{against}\n"
        "```\n" + (f"\n{arguments.note}\n" if arguments.note else "")
    )


if __name__ == "__main__":
    main()
