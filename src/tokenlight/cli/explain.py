"""``tokenlight explain``: a text or a file of them, a picture here and files where asked."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.console import REFUSED, clean, loaded, refuse, spare
from tokenlight.cli.options import flag
from tokenlight.errors import MissingExtra, in_flags

ANSWERS = "tokenlight/qa"
USUAL = f"{option.SENTIMENT}, or {ANSWERS} for a question"


@clean
@in_flags()
def explain(
    text: str | None = option.argument(
        "TEXT", "The text, in quotes; - reads standard input.", None
    ),
    *,
    more: typer.Context,
    pair: str | None = flag("Second text of a pair, such as a hypothesis; - reads standard input."),
    above: str | None = flag("Why --pair scores above this text in its place.", metavar="TEXT"),
    question: str | None = flag("A question about --context, or about each --document."),
    document: list[Path] | None = flag(
        "A text file that a language model answers from; repeatable. Needs --model.", metavar="FILE"
    ),
    context: str | None = flag("The text that holds the answer; - reads standard input."),
    model: str | None = flag(option.A_MODEL, "--model -m", show_default=USUAL),
    method: list[str] | None = option.methods("auto"),
    target: str = flag(
        "What to explain: predicted, a label, its number, or all; a next or masked token; the words "
        "of an answer, for a question; entities, each name that a model found.",
        default="predicted",
    ),
    rather_than: str | None = flag("Explain --target or --continue rather than this."),
    occurrence: int | None = flag("Which of several equal answers or words, from 0.", min=0),
    no_answer: bool = flag("For a question: explain why there is no answer.", "--no-answer", False),
    token: str | None = flag("Word or token whose label to explain.", metavar="WORDS|NUMBER"),
    continuation: str | None = flag(
        "Explain each token of this, written after TEXT, with its leading space.",
        "--continue",
        metavar="WORDS",
    ),
    generate: int | None = flag("Let the model write N tokens; explain each.", metavar="N"),
    image: Path | None = flag("An image file, instead of TEXT, or beside it; needs --model."),
    fill: Literal["mean", "zero", "blur"] | None = flag(
        "What fills a hidden patch of --image (--trust, occlusion …).", show_default="mean"
    ),
    chat: Path | None = flag("A JSON file of a chat's messages, instead of TEXT; needs --model."),
    chat_template: Path | None = flag("A Jinja file, instead of the tokenizer's own template."),
    file: str | None = flag(f"Many texts, instead of TEXT: a {option.TEXTS}", metavar="DATA"),
    column: str | None = option.COLUMN,
    limit: int | None = option.LIMIT,
    split: str | None = option.SPLIT,
    by: Literal["role", "document", "sentence", "word", "token"] | None = flag(
        "List sums by unit, the largest first, and explain a written answer as a whole.",
        show_default="document, with --document",
    ),
    words: bool = flag("Score words, as pictures do.", "--words", False),
    tokens: bool = flag("Score tokens, as files do.", "--tokens", False),
    layers: bool = flag("Show the scores layer by layer.", "--layers", False),
    trust: bool = flag("Ask the model again without the top words.", "--trust", False),
    reference: str | None = flag("Also show how methods differ from this.", metavar="METHOD"),
    html: Path | None = flag("Write a self-contained page."),
    json: Path | None = flag("Write JSON; - prints it and nothing else."),
    csv: Path | None = flag("Write a table, one row per token."),
    parquet: Path | None = flag("Write the same table as Parquet."),
    png: Path | None = flag("Write the picture: the coloured text, or heat maps over the image."),
    explain_mask: Literal["none", "cls_sep", "sep"] = flag(
        "Special tokens to hide from the model while it is explained.", default="none"
    ),
    token_types: Literal["tokenizer", "zeros"] = flag(
        "Segment ids of a pair: the tokenizer's own, or all 0.", default="tokenizer"
    ),
    long: option.Long = option.long("error"),
    seed: int = option.SEED,
    out: str | None = flag(
        "Write Parquet, a row per text, to this folder or URL; --file may then be a folder, glob or "
        "URL. If it is stopped, the same command resumes.",
        "--out -o",
        metavar="FOLDER",
    ),
    keep: str | None = flag("With -o: columns to pass through.", metavar="COLUMN,…"),
    engine: option.Engines | None = option.ENGINE,
    workers: int | None = option.WORKERS,
    address: str | None = option.ADDRESS,
    gpus_per_worker: float | None = flag("With --engine ray.", min=0, show_default="1"),
    block: int | None = flag("With -o: texts per file.", min=1, show_default="1024"),
    device: str | None = option.DEVICE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    dtype: str | None = option.DTYPE,
    quantize: option.Quantized | None = option.QUANTIZE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Show which tokens of TEXT speak for and against a decision.

    With --file, do so for each text in a file; a text that is refused is named and left out.
    """
    by = by or ("document" if document else None)
    given, whole = dict(locals()), shlex.quote(" ".join((text or "", *more.args)))
    several = f"TEXT is one argument, and {1 + len(more.args)} were given; put the text in quotes"
    refuse(more.args, f"{several}: tokenlight explain {whole}")
    from tokenlight.cli import inputs
    from tokenlight.cli.outputs import Output

    inputs.check(given)
    methods = _methods(method or ["auto"], reference)
    if out is not None:
        from tokenlight.cli.files import explain_into_folder

        explain_into_folder(given, methods, inputs.target_of(given, answers=False))
        return
    places = {".html": html, ".json": json, ".csv": csv, ".parquet": parquet, ".png": png}
    files = {ending: place for ending, place in places.items() if place is not None}
    output = Output(files, words or (False if tokens else None), layers, reference, by)
    spare(
        {"--image": image, "--chat": chat, "--file": file},
        {f"--{ending[1:]}": to for ending, to in files.items()},
    )
    asked_about = inputs.asked_about(given)
    many = isinstance(asked_about, inputs.TextFile)
    answers = asked_about.questions if many else question is not None and not document
    how = {name: given[name] for name in ("explain_mask", "token_types", "long", "seed")}
    how |= {"method": methods, "target": inputs.target_of(given, answers=answers)}
    name = model or (ANSWERS if answers else option.SENTIMENT)
    place = {"device": device, "dtype": dtype, "quantize": quantize}
    explainer = loaded(name, batch=(batch_tokens, batch_size), verbose=verbose, **place)
    if many:
        from tokenlight.cli.files import explain_all

        if explain_all(explainer, asked_about, how, output, trust=trust):
            raise typer.Exit(REFUSED)
        return
    made = explainer.explain(asked_about, **how)
    found = made if isinstance(made, list) else [made]
    if trust:
        from tokenlight.evaluation.trust import all_trusted
        from tokenlight.progress import progress

        with progress("asking the model again", len(found)) as advance:
            found = all_trusted(explainer, found, seed=seed, advance=advance)
    output.take(found)
    output.end()


def parsed(
    given: Sequence[str], *words: str, one: bool = False
) -> list[tuple[str, dict[str, Any]]]:
    """Names and options of methods, each once, which exist or are one of ``words``; ``one`` may be given."""
    wanted: list[tuple[str, dict[str, Any]]] = []
    for entry in given:
        name, options = registry.parse(entry)
        each = "one of them" if one else f"--method {' --method '.join(name.split(','))}"
        refuse("," in name, f"{entry} names several methods; give {each}.")
        refuse((name, options) in wanted, f"--method {entry} is given twice; leave one out.")
        if name not in registry.names("methods") and (options or name not in words):
            registry.find("methods", name)  # raises, naming what is near
        wanted.append((name, options))
    return wanted


def _methods(given: Sequence[str], reference: str | None) -> Any:
    """The methods, checked before any model is loaded; the reference among them."""
    if list(given) == ["best"]:
        MissingExtra.check(["scipy"], "bench", "--method best, which measures with intervals,")
        return "best"
    alone = "--method best chooses one method, so give it alone; tokenlight evaluate compares them."
    refuse("best" in given, alone)
    wanted = parsed(given, "auto")
    base = parsed([reference] if reference is not None else [], "auto", one=True)
    names = [name for name, _ in wanted]
    return wanted + [one for one in base if one not in wanted and (one[1] or one[0] not in names)]
