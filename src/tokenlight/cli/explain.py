"""``tokenlight explain``: explain a text, or the texts of a file, in the terminal and in files."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import (
    EXIT_REFUSED,
    check_not_overwritten,
    handle_errors,
    load_explainer,
)
from tokenlight.cli.method_files import is_method_file, load_method_file
from tokenlight.cli.option_checks import check_option_combinations
from tokenlight.cli.options import declare_option
from tokenlight.errors import BadInput, MissingExtra

QA_MODEL = "tokenlight/qa"
DEFAULT_MODEL_HELP = f"{option.SENTIMENT_MODEL}, or {QA_MODEL} for a question"
MethodSpec = tuple[str, dict[str, Any]]  # name and options


def declare_explain_options(
    text: str | None = option.declare_argument(
        "TEXT", "The text, in quotes; - reads standard input.", None
    ),
    *,
    typer_context: typer.Context,
    # Input
    pair: str | None = declare_option(
        "Second text of a pair, such as a hypothesis; - reads standard input.", group=option.INPUT
    ),
    question: str | None = declare_option(
        "A question about --context, or about each --document.", group=option.INPUT
    ),
    context: str | None = declare_option(
        "The text that holds the answer; - reads standard input.", group=option.INPUT
    ),
    document: list[Path] | None = declare_option(
        "A text file from which a language model (--model) answers; repeatable.",
        metavar="FILE",
        group=option.INPUT,
    ),
    image: Path | None = declare_option(
        "An image file, instead of or together with TEXT; needs --model.", group=option.INPUT
    ),
    chat: Path | None = declare_option(
        "A JSON file with the messages of a chat, instead of TEXT; needs --model.",
        group=option.INPUT,
    ),
    chat_template: Path | None = declare_option(
        "With --chat: a Jinja file to use instead of the tokenizer's chat template.",
        group=option.INPUT,
    ),
    chat_prompt: bool = declare_option(
        "With --document: ask in one chat message, in the model's chat template, as instruct models expect.",
        "--chat-prompt",
        False,
        group=option.INPUT,
    ),
    token_types: Literal["tokenizer", "zeros"] = declare_option(
        "Segment ids (token_type_ids) of a pair: the tokenizer's, or all zeros.",
        default="tokenizer",
        group=option.INPUT,
    ),
    long: option.LongTextPolicy = option.long_option("error"),
    # Texts of a file
    file: str | None = declare_option(
        f"Explain many texts instead of TEXT: a {option.TEXTS_HELP}.",
        metavar="DATA",
        group=option.FILE,
    ),
    column: str | None = option.COLUMN,
    label: str | None = option.LABEL,
    limit: int | None = option.LIMIT,
    split: str | None = option.SPLIT,
    # What to explain
    target: str = declare_option(
        "What to explain: predicted, a label, its number, or all labels; with --file, label (the true label "
        "of each text, from --label); for a language model, a next or masked token, or logit (the "
        "predicted token's logit alone); for a question, the words of an answer; for a model that labels "
        "each token, entities (every entity that it finds).",
        default="predicted",
        group=option.TARGET,
    ),
    rather_than: str | None = declare_option(
        "Explain why the model prefers --target or --continue to this alternative.",
        group=option.TARGET,
    ),
    above: str | None = declare_option(
        "Explain why --pair ranks above this alternative.", metavar="TEXT", group=option.TARGET
    ),
    token: str | None = declare_option(
        "Word or number of the token to explain, for a model that labels tokens or fills in a mask.",
        metavar="WORDS|NUMBER",
        group=option.TARGET,
    ),
    occurrence: int | None = declare_option(
        "Which occurrence of the answer or word to explain, counted from 0.",
        min=0,
        group=option.TARGET,
    ),
    no_answer: bool = declare_option(
        "For a question: explain why the model finds no answer.",
        "--no-answer",
        False,
        group=option.TARGET,
    ),
    continuation: str | None = declare_option(
        "Explain each token of this continuation of TEXT, which includes its leading space.",
        "--continue",
        metavar="WORDS",
        group=option.TARGET,
    ),
    generate: int | None = declare_option(
        "Let the model generate N tokens, and explain each.", metavar="N", group=option.TARGET
    ),
    against: str | None = declare_option(
        "For a language model: contrast each token with its N likeliest alternatives, all or none.",
        metavar="N|all|none",
        show_default="20",
        group=option.TARGET,
    ),
    # Method
    method: list[str] | None = option.method_option("auto"),
    effort: str | None = declare_option(
        "Instead of --method: how many passes to spend, one (instant), about ten (normal), about a hundred "
        "(thorough), or N.",
        metavar="instant|normal|thorough|N",
        group=option.METHOD,
    ),
    stable: float | None = declare_option(
        "Instead of --method: sample until other samples would name this share of the top 5 tokens again, "
        "such as 0.95; --effort then limits the number of passes.",
        metavar="SHARE",
        group=option.METHOD,
    ),
    explain_mask: Literal["none", "cls_sep", "sep"] = declare_option(
        "Special tokens to mask in attention while the model is explained.",
        default="none",
        group=option.METHOD,
    ),
    fill: Literal["mean", "zero", "blur"] | None = declare_option(
        "What replaces an occluded patch of --image (for --trust, occlusion …).",
        show_default="mean",
        group=option.METHOD,
    ),
    seed: int = option.SEED,
    # What to show
    trust: bool = declare_option(
        "Test the explanation: run the model again without the highest-scoring words.",
        "--trust",
        False,
        group=option.DISPLAY,
    ),
    words: bool = declare_option(
        "Show one score per word, also in files.", "--words", False, group=option.DISPLAY
    ),
    tokens: bool = declare_option(
        "Show one score per token, also in pictures.", "--tokens", False, group=option.DISPLAY
    ),
    by: Literal["role", "document", "sentence", "word", "token"] | None = declare_option(
        "List the sum of scores per unit, the largest first, for a generated answer as a whole.",
        show_default="document, with --document",
        group=option.DISPLAY,
    ),
    layers: bool = declare_option(
        "Also show the scores layer by layer.", "--layers", False, group=option.DISPLAY
    ),
    reference: str | None = declare_option(
        "Also show how the other methods differ from this one.",
        metavar="METHOD",
        group=option.DISPLAY,
    ),
    stream: bool = declare_option(
        "With --generate: show each token, with the words that explain it, as soon as it is generated.",
        "--stream",
        False,
        group=option.DISPLAY,
    ),
    # Files to write
    html: Path | None = declare_option("Write a self-contained HTML page.", group=option.OUTPUT),
    json: Path | None = declare_option("Write JSON; - prints only JSON.", group=option.OUTPUT),
    csv: Path | None = declare_option("Write a CSV table, one row per token.", group=option.OUTPUT),
    parquet: Path | None = declare_option("Write the same table as Parquet.", group=option.OUTPUT),
    png: Path | None = declare_option(
        "Write a picture: the coloured text, or heat maps over the image.", group=option.OUTPUT
    ),
    # Folder of results, by many workers
    output: str | None = declare_option(
        "Write one row per text, as Parquet, to this folder or URL; a stopped command resumes when it is run "
        "again, and --file may be a folder, glob or URL.",
        "--output -o",
        metavar="FOLDER",
        group=option.FOLDER,
    ),
    keep: str | None = declare_option(
        "With -o: columns to copy to the output.", metavar="COLUMN,…", group=option.FOLDER
    ),
    part_size: int | None = declare_option(
        "With -o: texts per output file.", min=1, show_default="1024", group=option.FOLDER
    ),
    engine: option.EngineKind | None = option.ENGINE,
    workers: int | None = option.WORKERS,
    address: str | None = option.ADDRESS,
    gpus_per_worker: float | None = declare_option(
        "With --engine ray: GPUs per worker, which may be a fraction.",
        min=0,
        show_default="1",
        group=option.FOLDER,
    ),
    # Model and device
    model: str | None = declare_option(
        f"{option.MODEL_HELP}.",
        "--model -m",
        show_default=DEFAULT_MODEL_HELP,
        group=option.COMPUTE,
    ),
    device: str | None = option.DEVICE,
    dtype: str | None = option.DTYPE,
    quantize: option.Quantization | None = option.QUANTIZE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Show which tokens of TEXT speak for and against a decision.

    With --file, explain each text of a file; a text that cannot be explained is reported and skipped.
    """
    # Only the signature is used: it declares the options of explain(), whose body is the command's.


@handle_errors
@option.with_options_of(declare_explain_options)
def explain(arguments: Mapping[str, Any]) -> None:
    """Check the options, load the model, and explain what they name.

    Args:
        arguments: The value of each parameter of :func:`declare_explain_options`, by its name.
    """
    _check_single_argument(arguments["text"], arguments["typer_context"].args)
    if arguments["by"] is None and arguments["document"] and not arguments["stream"]:
        arguments = {**arguments, "by": "document"}
    # The imports below take longer than this check, which finds most mistakes.
    check_option_combinations(arguments)
    from tokenlight.cli.inputs import TextFile, read_input
    from tokenlight.cli.targets import build_target

    if arguments["output"] is not None:
        _check_registered(arguments["method"] or ())
    methods = _resolve_methods(arguments["method"] or ["auto"], arguments["reference"])
    if arguments["output"] is not None:
        from tokenlight.cli.explain_folder import explain_into_folder

        target = build_target(arguments, is_question=False)
        explain_into_folder(arguments, methods, target, effort_options(arguments))
        return

    # Read the input before the model is loaded, so that a missing file costs no time.
    output = _make_output(arguments)
    text_input = read_input(arguments)
    is_question = _is_question(arguments, text_input)
    explain_options = {
        "method": methods,
        "target": build_target(arguments, is_question=is_question),
        "explain_mask": arguments["explain_mask"],
        "token_types": arguments["token_types"],
        "long": arguments["long"],
        "seed": arguments["seed"],
        **effort_options(arguments),
    }
    default_model = QA_MODEL if is_question else option.SENTIMENT_MODEL
    explainer = load_explainer(
        arguments["model"] or default_model,
        batch_limits=(arguments["batch_tokens"], arguments["batch_size"]),
        verbose=arguments["verbose"],
        device=arguments["device"],
        dtype=arguments["dtype"],
        quantize=arguments["quantize"],
    )
    if isinstance(text_input, TextFile):
        from tokenlight.cli.explain_file import explain_file_texts

        num_omitted = explain_file_texts(
            explainer, text_input, explain_options, output, trust=arguments["trust"]
        )
        if num_omitted:
            raise typer.Exit(EXIT_REFUSED)
        return
    if arguments["stream"]:
        from tokenlight.cli.stream import stream_tokens

        stream_tokens(explainer, text_input, explain_options, output)
        return
    _explain_single_text(explainer, text_input, explain_options, output, trust=arguments["trust"])


def _check_registered(specs: Sequence[str]) -> None:
    """Refuse a method from a Python file, which the workers of a folder do not have."""
    for spec in specs:
        if is_method_file(spec):
            raise BadInput(
                f"--method {spec} cannot be combined with -o, whose workers know registered methods only. "
                "Register it with the entry point tokenlight.methods of a package, or leave out -o.",
                code="method-file-for-folder",
            )


def _check_single_argument(text: str | None, further_arguments: Sequence[str]) -> None:
    """Refuse a text whose quotes are missing, so that each of its words is an argument."""
    if not further_arguments:
        return
    all_words = (text or "", *further_arguments)
    raise BadInput(
        f"TEXT is one argument, but {len(all_words)} were given. Put the text in quotes: "
        f"tokenlight explain {shlex.quote(' '.join(all_words))}",
        code="text-not-quoted",
    )


def _make_output(arguments: Mapping[str, Any]) -> Any:
    """Build the writer for the terminal and the files, and refuse to overwrite an input."""
    from tokenlight.cli.outputs import OutputWriter

    files: dict[str, Path] = {}
    for name in ("html", "json", "csv", "parquet", "png"):
        if arguments[name] is not None:
            files[f".{name}"] = arguments[name]
    words = None  # the default differs between pictures and files
    if arguments["words"]:
        words = True
    elif arguments["tokens"]:
        words = False
    output = OutputWriter(
        files, words, arguments["layers"], arguments["reference"], arguments["by"]
    )
    check_not_overwritten(
        {f"--{name}": arguments[name] for name in ("image", "chat", "file")},
        {f"--{extension[1:]}": path for extension, path in files.items()},
    )
    return output


def _is_question(arguments: Mapping[str, Any], text_input: Any) -> bool:
    """Return whether the model is to mark the answer to a question in a context."""
    from tokenlight.cli.inputs import TextFile

    if isinstance(text_input, TextFile):
        return text_input.has_questions
    # With --document, a language model writes the answer.
    return arguments["question"] is not None and not arguments["document"]


def _explain_single_text(
    explainer: Any,
    text_input: Any,
    explain_options: Mapping[str, Any],
    output: Any,
    *,
    trust: bool,
) -> None:
    result = explainer.explain(text_input, **explain_options)
    attributions = result if isinstance(result, list) else [result]
    if trust:
        from tokenlight.evaluation.trust import assess_trust_of_all
        from tokenlight.progress import progress_bar

        with progress_bar("testing the explanation", len(attributions)) as advance:
            attributions = assess_trust_of_all(
                explainer, attributions, seed=explain_options["seed"], advance=advance
            )
    output.write_single_text(attributions)


def effort_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``effort`` and ``stable`` as explain() takes them, if they are given."""
    options = {}
    effort = arguments["effort"]
    if effort is not None:
        is_number = effort.removeprefix("-").isdecimal()
        options["effort"] = int(effort) if is_number else effort
    if arguments["stable"] is not None:
        options["stable"] = arguments["stable"]
    return options


def parse_methods(specs: Sequence[str], *special_names: str, is_single: bool = False) -> list[Any]:
    """Parse the values of ``--method``.

    Args:
        specs: Values such as ``"attcat:hidden=output"``.
        *special_names: Names that are not in the registry but accepted, such as ``"auto"``.
        is_single: Whether the option takes one method only.

    Returns:
        Name and options of each method; an instance of one that a Python file defines.

    Raises:
        BadInput: A value names several methods, or a method is given twice.
        UnknownName: There is no such method.

    Example:
        >>> from tokenlight.cli.explain import parse_methods
        >>> parse_methods(["attcat:hidden=output", "auto"], "auto")
        [('attcat', {'hidden': 'output'}), ('auto', {})]
    """
    methods: list[Any] = []
    for spec in specs:
        if is_method_file(spec):
            methods.append(load_method_file(spec))
            continue
        name, options = registry.parse_spec(spec)
        if "," in name and is_single:
            raise BadInput(
                f"{spec} names several methods. Give one of them.", code="several-methods-for-one"
            )
        if "," in name:
            raise BadInput(
                f"{spec} names several methods. Give --method {' --method '.join(name.split(','))}.",
                code="several-methods-in-one",
            )
        if (name, options) in methods:
            raise BadInput(f"--method {spec} is given twice. Leave one out.", code="method-twice")
        is_special = name in special_names and not options
        if not is_special and name not in registry.list_names("methods"):
            registry.load_class("methods", name)  # raises UnknownName, with similar names
        methods.append((name, options))
    return methods


def _resolve_methods(specs: Sequence[str], reference: str | None) -> list[Any] | str:
    """Check the methods before a model is loaded, and add the reference if it is not among them."""
    if list(specs) == ["best"]:
        MissingExtra.check_installed(
            ["scipy"], "bench", "--method best, which computes confidence intervals,"
        )
        return "best"
    if "best" in specs:
        raise BadInput(
            "--method best chooses one method, so it cannot be combined with others. "
            "Use tokenlight evaluate to compare methods.",
            code="best-with-other-methods",
        )
    methods = parse_methods(specs, "auto")
    if reference is None:
        return methods
    if is_method_file(reference):
        raise BadInput(
            f"--reference {reference} is a Python file. Give it with --method, and with --reference the name "
            "of its method.",
            code="reference-is-a-file",
        )
    if reference in [method.name for method in methods if not isinstance(method, tuple)]:
        return methods
    (reference_method,) = parse_methods([reference], "auto", is_single=True)
    reference_name, reference_options = reference_method
    names = [method[0] for method in methods if isinstance(method, tuple)]
    # A reference without options means the method of that name, whatever its options are.
    is_included = reference_method in methods or (not reference_options and reference_name in names)
    return methods if is_included else [*methods, reference_method]
