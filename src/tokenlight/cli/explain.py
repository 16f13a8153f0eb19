"""``tokenlight explain``: a text or a file of them, a picture here and files where asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.failures import REFUSED, clean, spare
from tokenlight.cli.scale import explain_into_folder, is_for_folder
from tokenlight.errors import BadInput, MissingExtra, in_flags

ANSWERS = "tokenlight/qa"


@clean
@in_flags()
def explain(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text; - reads standard input.")
    ] = None,
    *,
    pair: Annotated[
        str | None,
        typer.Option(help="Second text of a pair, such as a hypothesis; - reads standard input."),
    ] = None,
    above: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Explain why --pair scores above this text in its place: a ranking.",
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="A question about --context, or about each --document.")
    ] = None,
    document: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A text file that a language model answers from; give several. Needs --model.",
        ),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="The text that holds the answer; - reads standard input.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help=option.MODEL,
            show_default=f"{option.SENTIMENT}, or {ANSWERS} for a question",
        ),
    ] = None,
    method: Annotated[list[str] | None, option.methods("auto")] = None,
    target: Annotated[
        str,
        typer.Option(
            help="What to explain: predicted, a label, its number, or all of them; the next or "
            "masked token, for a language model; the words of an answer, for a question; entities, each "
            "name that a model found."
        ),
    ] = "predicted",
    rather_than: Annotated[
        str | None,
        typer.Option(
            help="Explain --target rather than this label, token or answer, or --continue rather than "
            "these words."
        ),
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Which occurrence, counted from 0, of an answer or --token word that occurs several "
            "times.",
        ),
    ] = None,
    no_answer: Annotated[
        bool, typer.Option("--no-answer", help="For a question: explain why there is no answer.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS|NUMBER",
            help="What to explain, for a model that labels each token or fills blanks: a word, a name of "
            "several, a token's number.",
        ),
    ] = None,
    continuation: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="WORDS",
            help="What was written after TEXT, with its leading space: explain each of its tokens.",
        ),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(metavar="N", help="Let the model write N tokens after TEXT; explain each."),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="An image file, instead of TEXT, or beside it; needs --model."),
    ] = None,
    fill: Annotated[
        Literal["mean", "zero", "blur"] | None,
        typer.Option(
            help="What fills a hidden patch of --image (--trust, occlusion …).",
            show_default="mean",
        ),
    ] = None,
    chat: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file with the messages of a chat, instead of TEXT; needs --model."
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(help="A Jinja file to use instead of the tokenizer's own template."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="DATA", help=f"Many texts, instead of TEXT: a {option.DATA}"),
    ] = None,
    column: option.TextColumn = None,
    limit: option.Limit = None,
    split: option.Split = None,
    by: Annotated[
        Literal["role", "document", "sentence", "word", "token"] | None,
        typer.Option(
            help="List sums by unit, the largest first, and explain a written answer as a whole.",
            show_default="document, with --document",
        ),
    ] = None,
    words: Annotated[
        bool | None,
        typer.Option(
            "--words/--tokens",
            help="One score per word, as pictures have it by default, or per token, as files do.",
        ),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show the scores layer by layer.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Remove the top words, ask the model again, and report what changed."
        ),
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Also show how each method differs from this one."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
    json: option.Json = None,
    csv: Annotated[Path | None, typer.Option(help="Write a table, one row per token.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write the same table as Parquet.")] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Write the picture: the highlighted text, or heat maps over the image."),
    ] = None,
    explain_mask: Annotated[
        Literal["none", "cls_sep", "sep"],
        typer.Option(help="Special tokens to hide from the model while it is explained."),
    ] = "none",
    token_types: Annotated[
        Literal["tokenizer", "zeros"],
        typer.Option(help="Segment ids of a pair: the tokenizer's own, or all 0."),
    ] = "tokenizer",
    long: option.Long = "error",
    seed: option.Seed = 0,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Write Parquet, one row per text, to this folder or URL; --file may then be a folder, "
            "a glob or a URL. If it is stopped, the same command resumes.",
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="COLUMN,…", help="With -o: columns to pass through.")
    ] = None,
    engine: option.EngineName = None,
    workers: option.Workers = None,
    address: option.Address = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0, help="With --engine ray, on --device cuda.", show_default="1"),
    ] = None,
    block: Annotated[
        int | None, typer.Option(min=1, help="With -o: texts per file.", show_default="1024")
    ] = None,
    device: option.Device = None,
    batch_tokens: option.BatchTokens = None,
    batch_size: option.BatchSize = None,
    dtype: option.DType = None,
    quantize: option.Quantize = None,
    verbose: option.Verbose = False,
) -> None:
    """Show which tokens of TEXT speak for and against a decision.

    With --file, do so for each text in a file; a text that is refused is named and left out.
    """
    given = dict(locals())
    from tokenlight.cli import inputs
    from tokenlight.cli.outputs import Output

    if is_for_folder(given):
        wish = inputs.Wish(target, rather_than, occurrence, no_answer, token, None, None)
        explain_into_folder(given, _methods(method or ["auto"], None), inputs.asked(wish))
        return
    files = {".html": html, ".json": json, ".csv": csv, ".parquet": parquet, ".png": png}
    by = by or ("document" if document else None)
    output = Output(files, words, layers, reference, verbose, by)
    output.check()
    spare(
        {"--image": image, "--chat": chat, "--file": file},
        {f"--{name[1:]}": to for name, to in files.items()},
    )
    wish = inputs.Wish(
        target, rather_than, occurrence, no_answer, token, continuation, generate, above
    )
    asked_about = inputs.asked_about(given)
    many = isinstance(asked_about, inputs.TextFile)
    answers = asked_about.questions if many else question is not None and not document
    wanted_target = inputs.answer_asked(wish) if answers else inputs.asked(wish)
    wanted_target = inputs.as_a_whole(wanted_target, by)
    if model is None:
        inputs.not_of_the_default_model(wish)
    how = {
        "method": _methods(method or ["auto"], reference),
        "target": wanted_target,
        "explain_mask": explain_mask,
        "token_types": token_types,
        "long": long,
        "seed": seed,
    }
    from tokenlight.cli.loading import loaded

    name = model or (ANSWERS if answers else option.SENTIMENT)
    place = {"device": device, "dtype": dtype, "quantize": quantize}
    explainer = loaded(name, batch=(batch_tokens, batch_size), verbose=verbose, **place)
    if many:
        from tokenlight.cli.files import explain_all

        if explain_all(explainer, asked_about, how, output, trust=trust):
            raise typer.Exit(REFUSED)
        return
    found = _explained(explainer, asked_about, how, trust=trust)
    (output.print_json if output.as_json else output.show)(found)
    output.write(found)


def parsed(given: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Names and options of methods; the same one twice would be counted as another text's."""
    wanted: list[tuple[str, dict[str, Any]]] = []
    for entry in given:
        one = registry.parse(entry)
        if one in wanted:
            raise BadInput(f"--method {entry} is given twice; leave one out.")
        wanted.append(one)
    return wanted


def _methods(given: Sequence[str], reference: str | None) -> Any:
    """The methods by name and options, checked before any model is loaded; the reference among
    them."""
    if list(given) == ["best"]:
        MissingExtra.check(["scipy"], "bench", "--method best, which measures with intervals,")
        return "best"
    if "best" in given:
        raise BadInput(
            "--method best chooses one method, so give it alone; leave out the other --method, or "
            "compare them with tokenlight evaluate."
        )
    wanted = parsed(given)
    if reference is not None:
        base = registry.parse(reference)
        names = [name for name, _ in wanted]
        if base not in wanted and (base[1] or base[0] not in names):
            wanted.append(base)
    for name, options in wanted:
        if name not in registry.names("methods") and (name, options) != ("auto", {}):
            registry.find("methods", name)  # raises, naming what is near
    return wanted


def _explained(explainer: Any, asked_about: Any, how: dict[str, Any], *, trust: bool) -> Any:
    found = explainer.explain(asked_about, **how)
    found = found if isinstance(found, list) else [found]
    if trust:
        from tokenlight.evaluation.trust import all_trusted
        from tokenlight.progress import progress

        with progress("asking the model again", len(found)) as advance:
            found = all_trusted(explainer, found, seed=how["seed"], advance=advance)
    return found
