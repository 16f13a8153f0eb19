"""Commands that measure over the texts of a file.

``tokenlight evaluate`` measures how faithful methods are, with intervals; ``diff`` measures what changed
between two models, precisions or prompts, and can fail a build; ``idf`` counts how rare each token is.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import (
    EXIT_REFUSED,
    check_not_overwritten,
    handle_errors,
    load_explainer,
    print_error,
    print_message,
    resumable_command,
    silence_libraries,
    write_errors_reported,
)
from tokenlight.cli.explain import parse_methods
from tokenlight.cli.flag_hints import format_text_for_command_line
from tokenlight.cli.options import declare_option
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.progress import progress_bar

EXIT_CHANGED = 1  # exit status of `diff` where something changed beyond a limit
OUTPUT_FILES = ("rows.parquet", "summary.json", "curves.png", "report.html")


@handle_errors
def evaluate(
    data: str = option.DATA,
    *,
    output: Path = declare_option(
        "Folder for rows, summary, curves and report.",
        "--output -o",
        default=...,
        group=option.OUTPUT,
    ),
    model: str = declare_option(
        f"{option.MODEL_HELP}.", "--model -m", option.SENTIMENT_MODEL, group=option.COMPUTE
    ),
    method: list[str] | None = option.method_option("auto and random"),
    metric: list[str] | None = declare_option(
        "How to measure (see tokenlight metrics); repeatable.",
        metavar=option.SPEC_METAVAR,
        show_default="aopc and lodds",
        group=option.MEASURES,
    ),
    target: str = declare_option(
        "What to explain: predicted, a label, its number, all labels, or label (each text's true label).",
        default="predicted",
        group=option.TARGET,
    ),
    limit: int | None = option.LIMIT,
    text: str | None = option.COLUMN,
    label: str | None = option.LABEL,
    split: str | None = option.SPLIT,
    long: option.LongTextPolicy = option.long_option("truncate"),
    seed: int = option.SEED,
    device: str | None = option.DEVICE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    dtype: str | None = option.DTYPE,
    quantize: option.Quantization | None = option.QUANTIZE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Measure how faithful explanations are on DATA.

    If the command is stopped, running it again continues where it stopped.
    """
    from tokenlight.files.tables import read_examples

    MissingExtra.check_installed(["scipy", "pyarrow"], "bench", "tokenlight evaluate")
    MissingExtra.check_installed(["matplotlib"], "plots", "tokenlight evaluate")
    check_not_overwritten({"DATA": data}, {f"{name} of -o": output / name for name in OUTPUT_FILES})
    metrics = [registry.parse_spec(spec) for spec in metric or ["aopc", "lodds"]]
    methods = parse_methods(method or ["auto", "random"], "auto", "best")
    examples = read_examples(data, text_column=text, label_column=label, limit=limit, split=split)
    columns = _describe_file_columns(data, examples)
    if columns:
        print_message(f"{Path(data).name}: {columns}")

    # These imports take seconds, so they come after the checks of what a person may have mistyped.
    with progress_bar("loading libraries", None):
        from tokenlight.evaluation.evaluate import build_metrics
        from tokenlight.evaluation.run import Experiment

    build_metrics(metrics)  # raises for an unknown name before a model is loaded
    explainer = load_explainer(
        model,
        batch_limits=(batch_tokens, batch_size),
        verbose=verbose,
        device=device,
        dtype=dtype,
        quantize=quantize,
    )
    _check_some_method_works(explainer, methods, seed)
    methods = _resolve_method_names(
        explainer, methods, [example.text for example in examples], seed
    )
    explain_options = {"target": target, "long": long}
    experiment = Experiment(
        methods=methods,
        metrics=metrics,
        explain_options=explain_options,
        seed=seed,
        data_source=data,
        columns=columns,
    )
    _run_experiment(explainer, examples, experiment, output)


def _describe_file_columns(data: str, examples: Sequence[Any]) -> str:
    """Describe which columns were read; empty for lines of text, which have no columns."""
    from tokenlight.files.columns import describe_columns
    from tokenlight.files.tables import get_extension

    if get_extension(Path(data)) == ".txt":
        return ""
    return describe_columns([example.columns for example in examples])


def _check_some_method_works(explainer: Any, methods: Sequence[Any], seed: int) -> None:
    """Raise if the options of every method are wrong, before the output folder is created.

    One of several methods may fail: then the others are measured. A method without options cannot fail here.
    """
    from tokenlight.evaluation.preflight import find_option_errors

    if any(isinstance(method, tuple) and not method[1] for method in methods):
        return
    errors = find_option_errors(explainer, methods, seed)
    if len(errors) == len(methods):
        raise errors[0]


def _resolve_method_names(
    explainer: Any, methods: Sequence[Any], texts: Sequence[Any], seed: int
) -> list[Any]:
    """Replace ``auto`` and ``best`` by the methods that they stand for; drop duplicates."""
    resolved_names = {}
    if ("auto", {}) in methods:
        first_text = texts[0] if texts else ""
        resolved_names["auto"] = explainer.get_default_method(first_text)
        print(f"auto: {resolved_names['auto']}, the default for this kind of input")
    if ("best", {}) in methods:
        from tokenlight.evaluation.choose import choose_best

        choice = choose_best(explainer, texts, seed=seed)
        print(f"best: {choice.reason}")
        resolved_names["best"] = choice.method
    resolved: list[Any] = []
    for method in methods:
        if isinstance(method, tuple):
            name, options = method
            method = (resolved_names.get(name, name), options)  # noqa: PLW2901
        if method not in resolved:
            resolved.append(method)
    return resolved


def _run_experiment(explainer: Any, examples: Sequence[Any], experiment: Any, output: Path) -> None:
    """Measure, write the results into ``output`` and print them."""
    from tokenlight.evaluation.run import count_finished_texts, evaluate_file

    def describe_progress() -> str:
        return f"{count_finished_texts(output)} of {len(examples)} texts are saved in {output}"

    with resumable_command(describe_progress), write_errors_reported(output):
        evaluation, _ = evaluate_file(explainer, examples, experiment, output)
        try:
            # The files come first, since the reader of a pipe may be gone.
            evaluation.save(output)
        finally:
            _print_evaluation(evaluation)
    # Not every metric has a curve, so not every file is always written.
    written = [name for name in OUTPUT_FILES if (output / name).exists()]
    print(f"written: {output} ({', '.join(written)})")
    if not evaluation.records:
        print_error(
            f"None of the {len(examples)} texts could be measured; the reason is given above."
        )
        raise typer.Exit(EXIT_REFUSED)


def _print_evaluation(evaluation: Any) -> None:
    """Print the table, differences between methods, and notes on everything that is left out."""
    print(evaluation.format_table())
    for line in evaluation.describe_differences():
        print(line)
    for note in evaluation.notes:
        # Notes quote errors of the library, which name Python keywords.
        print_message(format_text_for_command_line(note), "")


@handle_errors
def diff(
    a: str = option.declare_argument(
        "A", "The model before: an embedded model, a folder or a hub id."
    ),
    b: str = option.declare_argument("B", "The model after; may be A again."),
    data: str = option.DATA,
    *,
    method: str = declare_option(
        "The method (see tokenlight methods), or auto for the recommended one.",
        "--method -x",
        "auto",
        group=option.METHOD,
    ),
    limit: int | None = option.LIMIT,
    text: str | None = option.COLUMN,
    label: str | None = option.LABEL,
    dtype_a: str | None = declare_option(
        "Precision of A, such as bfloat16.", show_default="float32", group=option.COMPUTE
    ),
    dtype_b: str | None = declare_option(
        "Precision of B, such as bfloat16.", show_default="float32", group=option.COMPUTE
    ),
    prompt_a: str = declare_option(
        "Prompt for A, in which {text} stands for the text.", default="{text}", group=option.INPUT
    ),
    prompt_b: str = declare_option(
        "Prompt for B, in which {text} stands for the text.", default="{text}", group=option.INPUT
    ),
    max_flips: float = declare_option(
        "Largest share of predictions that may change.", default=0.01, group=option.LIMITS
    ),
    min_correlation: float = declare_option(
        "Smallest mean rank correlation between the word scores of A and B.",
        default=0.8,
        group=option.LIMITS,
    ),
    max_drop: float = declare_option(
        "Largest decrease of the mean AOPC (faithfulness) from A to B.",
        default=0.02,
        group=option.LIMITS,
    ),
    json: Path | None = declare_option("Write the comparison as JSON.", group=option.OUTPUT),
    html: Path | None = declare_option(
        "Write a page with the numbers and the texts that changed most.", group=option.OUTPUT
    ),
    seed: int = option.SEED,
    device: str | None = option.DEVICE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Compare what two models decide on DATA, and which words their decisions rest on.

    The exit status is 1 if predictions, word scores or faithfulness changed beyond a limit.
    """
    from tokenlight.files.tables import read_examples

    MissingExtra.check_installed(["scipy"], "bench", "tokenlight diff")
    with progress_bar("loading libraries", None):
        from tokenlight.evaluation.compare import ComparedModel, compare, has_known_label
    check_not_overwritten({"DATA": data}, {"--json": json, "--html": html})
    if os.path.isdir(data):
        raise BadInput(
            f"{data} is a folder, not a file of texts, which comes last: tokenlight diff A B DATA.",
            code="diff-data-folder",
        )
    (method_spec,) = parse_methods([method], "auto", is_single=True)
    examples = read_examples(
        data, text_column=text, label_column=label, limit=limit, with_annotations=False
    )

    def load_side(name: str, dtype: str | None, prompt: str) -> ComparedModel:
        explainer = load_explainer(
            name,
            dtype=dtype,
            device=device,
            batch_limits=(batch_tokens, batch_size),
            verbose=verbose,
        )
        return ComparedModel(explainer, prompt)

    before = load_side(a, dtype_a, prompt_a)
    after = load_side(b, dtype_b, prompt_b)
    if label is None and not has_known_label(before.explainer, examples):
        # A column that was found by its usual name is not refused; its words are no labels of these models.
        examples = [replace(example, label=None) for example in examples]
        print_message(
            f"note: the labels in {Path(data).name} are not compared with the predictions: the models "
            "predict other ones.",
            "yellow",
        )
    comparison = compare(before, after, examples, method=method_spec, seed=seed)
    try:
        # The files come first, since the reader of a pipe may be gone.
        _write_comparison(comparison, json, html)
    finally:
        _print_comparison(comparison, examples)
    failures = comparison.list_failures(max_flips, min_correlation, max_drop)
    for failure in failures:
        print(f"changed: {failure}")
    if failures:
        raise typer.Exit(EXIT_CHANGED)
    print("no change exceeds its limit")


def _write_comparison(comparison: Any, json: Path | None, html: Path | None) -> None:
    from tokenlight.files.write import dump_json, write_text

    if json is not None:
        with write_errors_reported(json):
            write_text(json, dump_json(comparison.to_dict(), indent=1))
    if html is not None:
        with write_errors_reported(html):
            write_text(html, comparison.to_html())


def _print_comparison(comparison: Any, examples: Sequence[Any]) -> None:
    from tokenlight.files.columns import describe_columns

    columns = describe_columns({example.columns for example in examples}, keeps_unread=True)
    # Only the column of the text matters here; labels and unread columns follow it.
    text_column = columns.split(",")[0].split(";")[0]
    source = f", {text_column}" if text_column else ""
    print(f"{comparison.num_texts} texts{source}, explained by {comparison.method}")
    for location in comparison.omitted:
        print(f"skipped: {location}, which has no text")
    for line in comparison.describe():
        print(line)


@handle_errors
def idf(
    corpus: str = option.declare_argument("CORPUS", f"The texts: a {option.TEXTS_HELP}."),
    *,
    output: Path = declare_option("JSON file to write.", "--output -o", ..., group=option.OUTPUT),
    model: str = declare_option(
        "The model whose tokenizer is used.",
        "--model -m",
        option.SENTIMENT_MODEL,
        group=option.COMPUTE,
    ),
    text: str | None = option.COLUMN,
    limit: int | None = option.LIMIT,
    split: str | None = option.SPLIT,
    verbose: bool = option.VERBOSE,
) -> None:
    """Count in how many texts of CORPUS each token occurs.

    The metric token_overlap reads the file: tokenlight evaluate --metric token_overlap:corpus=FILE.
    """
    from tokenlight.evaluation.corpus import DocumentFrequencies, load_model_tokenizer
    from tokenlight.files.tables import read_examples

    check_not_overwritten({"CORPUS": corpus}, {"-o": output})
    silence_libraries(verbose=verbose)
    tokenizer = load_model_tokenizer(model)
    examples = read_examples(
        corpus, text_column=text, limit=limit, split=split, with_annotations=False
    )
    documents = [_to_document(example.text) for example in examples]
    frequencies = DocumentFrequencies.from_texts(documents, tokenizer)
    with write_errors_reported(output):
        frequencies.save(output)
    typer.echo(
        f"{len(frequencies.counts):,} token types in {frequencies.num_documents:,} texts → {output}"
    )


def _to_document(text: Any) -> str:
    """Join a pair, or a question with its context, into one document."""
    from tokenlight.data.tokens import Question

    if isinstance(text, str):
        return text
    if isinstance(text, Question):
        return f"{text.question}\n{text.context}"
    return "\n".join(text)
