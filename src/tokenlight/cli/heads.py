"""``tokenlight heads``: which attention heads look at a syntactic head or a fixed position."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tokenlight.cli.failures import clean, writing
from tokenlight.cli.loading import hushed
from tokenlight.cli.options import Device, ModelArgument, Verbose
from tokenlight.errors import BadInput, TokenlightError


@clean
def heads(  # noqa: PLR0917 - a parameter an option
    model: ModelArgument,
    conllu: Annotated[
        list[Path] | None,
        typer.Option(
            "--conllu",
            metavar="FILE",
            help="Parsed text, CoNLL-U (.gz too); repeat for several.",
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="Plain text, one paragraph per line, which spaCy parses; repeat for several.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the heads file, for mask_lrp.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page of figures.")] = None,
    align: Annotated[
        Literal["offsets", "official"],
        typer.Option(
            help="How attention is read: words and tokens paired by their characters, or exactly as "
            "Mask-LRP's own code does it, with special tokens and offset 0 counted and [SEP] masked "
            "(not for questions).",
        ),
    ] = "offsets",
    zero_offset: Annotated[
        bool | None,
        typer.Option(
            "--zero-offset/--no-zero-offset",
            help="Whether a head that looks at its own token is positional.",
            show_default="as --align sets it",
        ),
    ] = None,
    special: Annotated[
        bool | None,
        typer.Option(
            "--special/--no-special",
            help="Whether attention from special tokens counts too.",
            show_default="as --align sets it",
        ),
    ] = None,
    explain_mask: Annotated[
        Literal["none", "cls_sep", "sep"] | None,
        typer.Option(
            help="Special tokens that no token may attend to.", show_default="as --align sets it"
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Only the first N sentences; 0 reads all.")
    ] = 0,
    margin: Annotated[
        float | None,
        typer.Option(
            help="ξ_synt: by how much a syntactic head must beat always looking at the commonest "
            "position.",
            show_default="0.1",
        ),
    ] = None,
    synt_thres: Annotated[
        str | None,
        typer.Option(
            "--synt-thres",
            metavar="A,B,C,D",
            help="How often a syntactic head must look at the head of nsubj, obj, amod and advmod, in "
            "place of --margin.",
            show_default="from the text",
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(help="ξ_pos: how often a positional head must look at its one position."),
    ] = 0.8,
    device: Device = None,
    verbose: Verbose = False,
) -> None:
    """Find syntactic and positional attention heads, for mask_lrp.

    They are counted on parsed text: --conllu, or --text for spaCy to parse.
    """
    from tokenlight.heads.mask import write_heads
    from tokenlight.heads.sentence import parse_spacy, read_conllu
    from tokenlight.heads.statistics import Reading, head_statistics
    from tokenlight.progress import progress

    if not conllu and not text:
        raise BadInput("there is nothing to read: give --conllu FILE, or --text FILE.")
    least = _least(margin, synt_thres)
    sentences = [sentence for path in conllu or () for sentence in read_conllu(path)]
    for path in text or ():
        lines = _lines(path)
        with progress("parsing", len(lines)) as advance:
            sentences += parse_spacy(_counted(lines, advance))
    sentences = sentences[:limit] if limit else sentences
    live, tokenizer = _encoder(model, device, verbose=verbose)
    reading = Reading.named(
        align,
        live,
        tokenizer,
        include_zero_offset=zero_offset,
        exclude_special=None if special is None else not special,
        explain_mask=explain_mask,
    )
    with progress("reading attention", len(sentences)) as advance:
        found = head_statistics(live, tokenizer, sentences, reading, advance=advance)
    content = found.to_dict(least, share) | {
        "model": Path(model).name if Path(model).is_dir() else model,
        "sources": [path.name for path in (*(conllu or ()), *(text or ()))],
    }
    _report(content)
    if output is not None:
        with writing(output):
            write_heads(output, content)
    if html is not None:
        from tokenlight.files.write import write_text
        from tokenlight.plots.figures import heads_page

        with writing(html):
            write_text(html, heads_page(content))


def _encoder(name: str, device: str | None, *, verbose: bool) -> tuple[Any, Any]:
    """The model and its tokenizer; an encoder without a head is given one, since no attention
    depends on it."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from tokenlight.capture.live import LiveModel
    from tokenlight.errors import DamagedFile, UnsupportedModel
    from tokenlight.explainer import Explainer
    from tokenlight.models.folder import SAFE, WEIGHTS, check
    from tokenlight.models.loading import put

    hushed(verbose=verbose)
    try:
        explainer = Explainer.from_pretrained(name, device=device)
    except (UnsupportedModel, DamagedFile) as refused:
        if not Path(name).is_dir():
            raise
        try:
            check(name, name)
            model = AutoModelForSequenceClassification.from_pretrained(name, **WEIGHTS)
        except TokenlightError:
            raise
        except (OSError, ValueError):
            raise refused from None
        model = model.float().eval()
        put(model, device)
        return LiveModel(model), AutoTokenizer.from_pretrained(name, **SAFE)
    return explainer.live, explainer.tokenizer


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise BadInput(f"{path} cannot be read as UTF-8 text: {broken}.") from broken
    return [line.strip() for line in content.split("\n") if line.strip()]


def _counted(lines: list[str], advance: Callable[[int], Any]) -> Iterator[str]:
    for line in lines:
        yield line
        advance(1)


def _least(margin: float | None, typed: str | None) -> float | list[float]:
    """The margin above the text's own shares, or the four thresholds in its place."""
    from tokenlight.heads.statistics import RELATIONS, SYNTACTIC_MARGIN

    if typed is None:
        return SYNTACTIC_MARGIN if margin is None else margin
    if margin is not None:
        raise BadInput(
            "--margin is added to what --synt-thres takes the place of; give one of them."
        )
    try:
        found = [float(one) for one in typed.split(",")]
    except ValueError:
        found = []
    if len(found) != len(RELATIONS):
        raise BadInput(
            f"--synt-thres {typed} is not {len(RELATIONS)} numbers; give one each for "
            f"{', '.join(RELATIONS)}, such as 0.5,0.6,0.7,0.5."
        )
    return found


def _report(content: dict[str, Any]) -> None:
    mask = content["mask"]
    for kind in ("syntactic", "positional"):
        names = [
            f"{layer + 1}.{head}"
            for layer, row in enumerate(mask[kind])
            for head, value in enumerate(row)
            if value
        ]
        count = f"{len(names):3} head{'s' if len(names) != 1 else ' '}"
        typer.echo(f"{kind:10} {count}  {' '.join(names)}".rstrip())
