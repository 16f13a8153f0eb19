"""``tokenlight evaluate``: how faithful methods are on a data file, with intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import REFUSED, clean, complain, resumable, spare, tell, writing
from tokenlight.cli.explain import parsed
from tokenlight.cli.options import flag
from tokenlight.errors import MissingExtra, in_flags
from tokenlight.progress import progress

WRITTEN = ("rows.parquet", "summary.json", "curves.png", "report.html", "texts.html")
NO_LABEL = ", no label", ", no label (--label COLUMN names one)"


@clean
@in_flags()
def evaluate(
    data: str = option.DATA,
    *,
    output: Path = flag("Folder for rows, summary, curves and report.", "--output -o", default=...),
    model: str = flag(option.A_MODEL, "--model -m", option.SENTIMENT),
    method: list[str] | None = option.methods("auto and random"),
    metric: list[str] | None = flag(
        "How to measure, such as aopc or comprehensiveness; repeat for several.",
        metavar=option.SPEC,
        show_default="aopc and lodds",
    ),
    target: str = flag(
        "What to explain: predicted, a label, its number, or all of them.", default="predicted"
    ),
    limit: int | None = option.LIMIT,
    text: str | None = option.COLUMN,
    label: str | None = flag("Column of DATA that holds the true label."),
    split: str | None = option.SPLIT,
    long: option.Long = option.long("truncate"),
    seed: int = option.SEED,
    device: str | None = option.DEVICE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    dtype: str | None = option.DTYPE,
    quantize: option.Quantized | None = option.QUANTIZE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Measure how faithful explanations are on DATA.

    If it is stopped with Ctrl-C, the same command continues where it left off.
    """
    from tokenlight.files.tables import read

    MissingExtra.check(["scipy", "pyarrow"], "bench", "tokenlight evaluate")
    MissingExtra.check(["matplotlib"], "plots", "tokenlight evaluate")
    spare({"DATA": data}, {f"{name} of -o": output / name for name in WRITTEN})
    metrics = [registry.parse(entry) for entry in metric or ["aopc", "lodds"]]
    methods = parsed(method or ["auto", "random"], "auto", "best")
    examples = read(data, text=text, label=label, limit=limit, split=split)
    columns = _columns(Path(data), [one.columns for one in examples])

    from tokenlight.cli.loading import loaded

    # What takes seconds to import comes after what a person may have mistyped.
    with progress("loading libraries", None):
        from tokenlight.evaluation.compare import differences_in_words
        from tokenlight.evaluation.preflight import refused_options
        from tokenlight.evaluation.results import built
        from tokenlight.evaluation.run import evaluate_file, finished
        from tokenlight.evaluation.shard import Experiment

    built(metrics)  # a wrong name is found before a model is loaded
    place = {"device": device, "dtype": dtype, "quantize": quantize}
    explainer = loaded(model, batch=(batch_tokens, batch_size), verbose=verbose, **place)
    # Before the folder is claimed: of several methods one may fail, but not all of them.
    optional = all(options for _, options in methods)
    if optional and len(refused := refused_options(explainer, methods, seed)) == len(methods):
        raise refused[0]
    methods = _without_best(explainer, methods, [example.text for example in examples], seed)
    job = Experiment(methods, metrics, {"target": target, "long": long}, seed, data, columns)
    kept = f"of {len(examples)} texts are kept in {output}"
    with resumable(lambda: f"{finished(output)} {kept}"), writing(output):
        evaluation, _ = evaluate_file(explainer, examples, job, output)
    print(evaluation.table())
    for line in differences_in_words(evaluation):
        print(line)
    for note in evaluation.notes:  # nothing is left out silently
        tell(note, "")
    with writing(output):
        evaluation.save(output)
    # Not every metric has a curve to draw.
    print(f"written: {output} ({', '.join(name for name in WRITTEN if (output / name).exists())})")
    if not evaluation.records:
        complain(f"none of the {len(examples)} texts could be measured; the reason is given above.")
        raise typer.Exit(REFUSED)


def _columns(place: Path, found: Sequence[Any]) -> str:
    """The columns that are read, in words, which are told; lines of text have none."""
    from tokenlight.files.columns import taken
    from tokenlight.files.tables import ending_of

    if ending_of(place) == ".txt":
        return ""
    words = taken(found)
    labelled = any(one.label is not None for one in found)
    tell(f"{place.name}: {words if labelled else words.replace(*NO_LABEL, 1)}")
    return words


def _without_best(
    explainer: Any, methods: list[tuple[str, dict[str, Any]]], texts: Sequence[Any], seed: int
) -> list[tuple[str, dict[str, Any]]]:
    """``best`` and ``auto`` replaced by the methods that they are."""
    names = {}
    if ("auto", {}) in methods:
        names["auto"] = explainer.default_method(next(iter(texts), ""))
        print(f"auto: {names['auto']}, the default for this kind of input")
    if ("best", {}) in methods:
        from tokenlight.evaluation.choose import best

        choice = best(explainer, texts, seed=seed)
        print(f"best: {choice.reason}")
        names["best"] = choice.method
    chosen = [(names.get(name, name), options) for name, options in methods]
    return [pair for i, pair in enumerate(chosen) if pair not in chosen[:i]]
