"""Commands that measure over the texts of a file: ``tokenlight evaluate``, how faithful methods are, with
intervals; ``diff``, what moved between two models, precisions or prompts, which fails a build; ``idf``, how
rare each token is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import REFUSED, clean, complain, loaded, resumable, spare, tell, writing
from tokenlight.cli.explain import parsed
from tokenlight.cli.options import flag
from tokenlight.errors import MissingExtra, in_flags
from tokenlight.progress import progress

MOVED = 1  # exit status where something moved beyond a limit
WRITTEN = ("rows.parquet", "summary.json", "curves.png", "report.html")


@clean
@in_flags()
def evaluate(
    data: str = option.DATA,
    *,
    output: Path = flag("Folder for rows, summary, curves and report.", "--output -o", default=...),
    model: str = flag(option.A_MODEL, "--model -m", option.SENTIMENT),
    method: list[str] | None = option.methods("auto and random"),
    metric: list[str] | None = flag(
        "How to measure; repeatable.", metavar=option.SPEC, show_default="aopc and lodds"
    ),
    target: str = flag("Explain predicted, a label, its number, or all.", default="predicted"),
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
    from tokenlight.files.columns import taken
    from tokenlight.files.tables import ending_of, read

    MissingExtra.check(["scipy", "pyarrow"], "bench", "tokenlight evaluate")
    MissingExtra.check(["matplotlib"], "plots", "tokenlight evaluate")
    spare({"DATA": data}, {f"{name} of -o": output / name for name in WRITTEN})
    metrics = [registry.parse(entry) for entry in metric or ["aopc", "lodds"]]
    methods = parsed(method or ["auto", "random"], "auto", "best")
    examples = read(data, text=text, label=label, limit=limit, split=split)
    # Lines of text have no columns to tell of.
    columns = "" if ending_of(Path(data)) == ".txt" else taken([one.columns for one in examples])
    if columns:
        tell(f"{Path(data).name}: {columns}")

    # What takes seconds to import comes after what a person may have mistyped.
    with progress("loading libraries", None):
        from tokenlight.evaluation.compare import differences_in_words
        from tokenlight.evaluation.preflight import refused_options
        from tokenlight.evaluation.results import built
        from tokenlight.evaluation.run import Experiment, evaluate_file, finished

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


@clean
def diff(
    a: str = option.argument("A", "Model before: embedded model, folder or hub id."),
    b: str = option.argument("B", "Model after; may be A again."),
    data: str = option.DATA,
    *,
    method: str = flag("How to explain; see tokenlight methods.", "--method -x", "auto"),
    limit: int | None = option.LIMIT,
    text: str | None = option.COLUMN,
    dtype_a: str | None = flag("Precision of A, such as bfloat16.", show_default="float32"),
    dtype_b: str | None = flag("Precision of B.", show_default="float32"),
    prompt_a: str = flag("What A reads; {text} stands for the text.", default="{text}"),
    prompt_b: str = flag("What B reads; {text} stands for the text.", default="{text}"),
    max_flips: float = flag("Largest share of predictions that may change.", default=0.01),
    min_focus: float = flag("Smallest mean rank correlation of the words' scores.", default=0.8),
    max_drop: float = flag("Largest fall of the mean AOPC (faithfulness), A to B.", default=0.02),
    json: Path | None = flag("Write the comparison as JSON."),
    seed: int = option.SEED,
    device: str | None = option.DEVICE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Compare what two models decide on DATA, and by which words.

    The exit status is 1 if predictions, word scores or faithfulness moved beyond a limit.
    """
    from tokenlight.files.columns import taken
    from tokenlight.files.tables import read

    MissingExtra.check(["scipy"], "bench", "tokenlight diff")
    with progress("loading libraries", None):
        from tokenlight.evaluation.compare import Side, compare
    spare({"DATA": data}, {"--json": json})
    (wanted,) = parsed([method], "auto", one=True)
    with in_flags():
        examples = read(data, text=text, limit=limit, marks=False)
    batch = batch_tokens, batch_size
    sides = [
        Side(loaded(name, dtype=dtype, device=device, batch=batch, verbose=verbose), prompt)
        for name, dtype, prompt in ((a, dtype_a, prompt_a), (b, dtype_b, prompt_b))
    ]
    found = compare(sides[0], sides[1], examples, method=wanted, seed=seed)
    column = taken({one.columns for one in examples}, passed_on=True).split(",")[0].split(";")[0]
    print(f"{found.texts} texts{f', {column}' * bool(column)}, explained by {found.method}")
    for place in found.left_out:
        print(f"left out: {place}, which has no text")
    for line in found.in_words():
        print(line)
    if json is not None:
        from tokenlight.files.write import json_text, write_text

        with writing(json):
            write_text(json, json_text(found.to_dict(), indent=1))
    failures = found.failures(max_flips, min_focus, max_drop)
    for failure in failures:
        print(f"moved: {failure}")
    if failures:
        raise typer.Exit(MOVED)
    print("nothing moved beyond its limit")


@clean
def idf(
    corpus: str = option.argument("CORPUS", f"The texts: a {option.TEXTS}"),
    *,
    output: Path = flag("JSON file to write.", "--output -o", ...),
    model: str = flag(f"Whose tokenizer counts. {option.A_MODEL}", "--model -m", option.SENTIMENT),
    text: str | None = option.COLUMN,
    limit: int | None = option.LIMIT,
    split: str | None = option.SPLIT,
    verbose: bool = option.VERBOSE,
) -> None:
    """Count in how many texts of CORPUS each token occurs.

    The metric token_overlap reads the file: tokenlight evaluate --metric token_overlap:corpus=FILE.
    """
    from tokenlight.cli.console import hushed
    from tokenlight.data.tokens import Question
    from tokenlight.evaluation.corpus import Frequencies, tokenizer_of
    from tokenlight.files.tables import read

    spare({"CORPUS": corpus}, {"-o": output})
    hushed(verbose=verbose)
    tokenizer = tokenizer_of(model)
    texts = []
    with in_flags():
        for example in read(corpus, text=text, limit=limit, split=split, marks=False):
            given: Any = example.text  # a pair or a question is counted as one document
            if isinstance(given, Question):
                given = given.question, given.context
            texts.append(given if isinstance(given, str) else "\n".join(given))
    found = Frequencies.of(texts, tokenizer)
    with writing(output):
        found.save(output)
    typer.echo(f"{len(found.counts):,} token types in {found.documents:,} texts → {output}")


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
