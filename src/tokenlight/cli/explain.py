"""``tokenlight explain``: one text, any methods, a picture here and files where asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tokenlight.cli import inputs
from tokenlight.cli.asking import Wish, answer_asked, asked
from tokenlight.cli.failing import clean, spare, writing
from tokenlight.cli.loading import DEVICE, MODEL
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.wording import in_flags

if TYPE_CHECKING:
    from tokenlight.attribution import Attribution

SENTIMENT, ANSWERS = "tokenlight/sentiment", "tokenlight/qa"


def _completed(incomplete: str) -> list[str]:
    """Method names for the shell's completion; torch is not imported for it."""
    from tokenlight import registry

    return [name for name in registry.names("methods") if name.startswith(incomplete)]


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
    question: Annotated[str | None, typer.Option(help="A question about --context.")] = None,
    context: Annotated[
        str | None, typer.Option(help="The text that holds the answer; - reads standard input.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help=MODEL,
            show_default=f"{SENTIMENT}, or {ANSWERS} for a question",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-x",
            metavar="NAME[:OPTION=VALUE,...]",
            help="How to explain; repeat it to compare methods. tokenlight methods lists them; "
            "best, alone, takes the one measured to be most faithful.",
            show_default="attcat",
            autocompletion=_completed,
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="What to explain: predicted, a label, its number, or all of them; the next or "
            "masked token, for a language model; the words of an answer, for a question."
        ),
    ] = "predicted",
    rather_than: Annotated[
        str | None, typer.Option(help="Explain --target rather than this label, token or answer.")
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Which one, counted from 0, where the answer or the word of --token stands "
            "several times.",
        ),
    ] = None,
    no_answer: Annotated[
        bool, typer.Option("--no-answer", help="Of a question: explain that there is no answer.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="WORD|NUMBER",
            help="The token that is explained, for a model that labels each token or fills blanks.",
        ),
    ] = None,
    continuation: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="WORDS",
            help="What was written after TEXT, with its leading blank: explain each token of it.",
        ),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(metavar="N", help="Let the model write N tokens after TEXT; explain each."),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="An image file, in the place of TEXT; needs --model.")
    ] = None,
    fill: Annotated[
        Literal["mean", "zero", "blur"] | None,
        typer.Option(
            help="What a hidden patch of --image shows (--trust, occlusion …).",
            show_default="mean",
        ),
    ] = None,
    chat: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file with the messages of a chat, in the place of TEXT; needs --model."
        ),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="One score a word, not a token.")] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show the scores layer by layer.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Remove the top words, ask the model again, and say what came of it."
        ),
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Also show how each method differs from this one."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write JSON; - prints it and nothing else.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a table, one line a token.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write the same table as Parquet.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write heat maps over the image.")] = None,
    explain_mask: Annotated[
        Literal["none", "cls_sep", "sep"],
        typer.Option(help="Special tokens that the model does not see while it is explained."),
    ] = "none",
    token_types: Annotated[
        Literal["tokenizer", "zeros"],
        typer.Option(help="Which of two texts a token is in: as the tokenizer says, or all 0."),
    ] = "tokenizer",
    long: Annotated[
        Literal["error", "truncate", "stride"],
        typer.Option(
            help="What to do with a text longer than the model reads: refuse it, cut it off, or "
            "read it in overlapping windows."
        ),
    ] = "error",
    seed: Annotated[int, typer.Option(help="For methods that sample.")] = 0,
    device: Annotated[str | None, typer.Option(help=DEVICE, show_default="cpu")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show tracebacks and the libraries' own messages.")
    ] = False,
) -> None:
    """Show which tokens of TEXT speak for and against a decision."""
    files = {".html": html, ".json": json, ".csv": csv, ".parquet": parquet, ".png": png}
    _check_endings(files)
    spare({"--image": image, "--chat": chat}, {f"--{name[1:]}": to for name, to in files.items()})
    wish = Wish(target, rather_than, occurrence, no_answer, token, continuation, generate)
    if image is not None:
        asked_about = inputs.image(
            image, fill or "mean", model, (text, pair, question, context, chat)
        )
    else:
        inputs.only_images(png, fill)
        others = (text, pair, question, context)
        asked_about = inputs.texts(*others) if chat is None else inputs.chat(chat, model, others)
    wanted_target = asked(wish) if question is None else answer_asked(wish)
    if model is None:
        _not_of_the_default_model(wish)
    name = model or (SENTIMENT if question is None else ANSWERS)
    wanted = _methods(method or ["attcat"], reference)
    found = _explained(
        name,
        device,
        verbose,
        inputs=asked_about,
        method=wanted,
        target=wanted_target,
        explain_mask=explain_mask,
        token_types=token_types,
        long=long,
        seed=seed,
        trust=trust,
    )
    if str(json) == "-":
        _print_json(_merged(found) if words else found)
    else:
        from tokenlight.plots.terminal import show

        show(found, words=words, layers=layers, reference=reference)
        if verbose:
            _print_conservation(found)
    for ending, place in files.items():
        if place is not None and str(place) != "-":
            _write(found, place, ending, reference=reference, words=words)


def _check_endings(files: dict[str, Path | None]) -> None:
    """Before any model is loaded: the ending of a file says what is in it."""
    for ending, place in files.items():
        standard_output = ending == ".json" and str(place) == "-"
        if place is not None and not standard_output and place.suffix.lower() != ending:
            raise BadInput(
                f"--{ending[1:]} {place}: the name of this file must end in {ending}, "
                f"for example {place.name.partition('.')[0] or 'explanation'}{ending}."
            )
    if files[".parquet"] is not None:
        MissingExtra.check(["pyarrow"], "bench", "--parquet")


def _methods(given: Sequence[str], reference: str | None) -> Any:
    """The methods by name and options, checked before any model is loaded; the reference among
    them."""
    from tokenlight import registry

    if list(given) == ["best"]:
        MissingExtra.check(["scipy"], "bench", "--method best, which measures with intervals,")
        return "best"
    if "best" in given:
        raise BadInput(
            "--method best chooses one method, so it stands alone; leave out the other --method, or "
            "compare them with tokenlight evaluate."
        )
    wanted = [registry.parse(entry) for entry in given]
    if reference is not None:
        base = registry.parse(reference)
        names = [name for name, _ in wanted]
        if base not in wanted and (base[1] or base[0] not in names):
            wanted.append(base)
    for name in (name for name, _ in wanted):
        if name not in registry.names("methods"):
            registry.find("methods", name)  # raises, naming what is near
    return wanted


def _not_of_the_default_model(wish: Wish) -> None:
    """Without --model a text goes to the sentiment classifier, which has no tokens to explain."""
    for option, value in wish.of_a_token.items():
        fitting = (
            "a model that labels each token, or tokenlight/masked_lm to fill a [MASK]"
            if option == "--token"
            else "a folder or a hub id of a model that writes on, such as GPT-2 or Llama"
        )
        raise BadInput(
            f"{option} {value} needs --model: the default one, {SENTIMENT}, judges a text as a "
            f"whole. Give {fitting}."
        )


def _explained(name: str, device: str | None, verbose: bool, **how: Any) -> list[Attribution]:
    from tokenlight.cli.loading import loaded

    explainer = loaded(name, device=device, verbose=verbose)
    trust = how.pop("trust")
    made = explainer.explain(how.pop("inputs"), **how)
    found: list[Attribution] = made if isinstance(made, list) else [made]
    if trust:
        from tokenlight.progress import progress
        from tokenlight.trust import all_trusted

        with progress("asking the model again", len(found)) as advance:
            found = all_trusted(explainer, found, seed=how["seed"], advance=advance)
    return found


def _merged(attributions: Sequence[Attribution]) -> list[Attribution]:
    """One score a word, in files as in the picture."""
    from tokenlight.postprocess import merge_words

    return [merge_words(attribution) for attribution in attributions]


def _print_conservation(attributions: Sequence[Attribution]) -> None:
    """Relevance at each layer over relevance at the output; one, where nothing is lost."""
    for attribution in attributions:
        shares = attribution.extras.get("conservation")
        if shares is not None:
            layers = " ".join(f"{share:.4f}" for share in shares)
            sys.stdout.write(f"conservation of {attribution.label}, h0 to the last: {layers}\n")


def _print_json(attributions: Sequence[Attribution]) -> None:
    import json

    content: Any = [attribution.to_dict() for attribution in attributions]
    # As a file of one attribution is: tokenlight.load reads either.
    content = content[0] if len(content) == 1 else content
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(content, ensure_ascii=not unicode) + "\n")


def _write(
    attributions: Sequence[Attribution],
    place: Path,
    ending: str,
    *,
    reference: str | None,
    words: bool,
) -> None:
    from tokenlight.attribution import save

    with writing(place):
        if ending == ".html":
            from tokenlight.plots.html import page

            content = page(attributions, reference=reference, words=words)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content, encoding="utf-8")
        else:
            save(_merged(attributions) if words else attributions, place)
    sys.stderr.write(f"wrote {place}\n")
