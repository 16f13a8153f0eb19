"""``tokenlight heads``: which attention heads look at a syntactic head or a fixed position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tokenlight.cli.failing import clean, writing
from tokenlight.errors import BadInput


@clean
def heads(  # noqa: PLR0917 - a parameter an option
    model: Annotated[str, typer.Argument(help="A model folder, hub id or embedded model.")],
    conllu: Annotated[
        list[Path] | None,
        typer.Option("--conllu", help="Parsed text, CoNLL-U (.gz too); may be repeated."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", help="Plain text, a paragraph a line, which spaCy parses."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the heads file is written.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Draw the figures to a page.")] = None,
    align: Annotated[
        str, typer.Option(help="offsets, or official for the official code's pairing.")
    ] = "offsets",
    limit: Annotated[int, typer.Option(min=0, help="Read only so many sentences; 0: all.")] = 0,
    margin: Annotated[float, typer.Option(help="ξ_synt, above the commonest position.")] = 0.1,
    share: Annotated[float, typer.Option(help="ξ_pos, the share of a positional head.")] = 0.8,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")] = False,
) -> None:
    """Find syntactic and positional heads on parsed text, for the method mask_lrp."""
    from tokenlight.heads.mask import write_heads
    from tokenlight.heads.sentence import parse_spacy, read_conllu
    from tokenlight.heads.statistics import Reading, head_statistics
    from tokenlight.progress import progress

    if not conllu and not text:
        raise BadInput("there is nothing to read: give --conllu FILE, or --text FILE.")
    sentences = [sentence for path in conllu or () for sentence in read_conllu(path)]
    for path in text or ():
        lines = _lines(path)
        with progress("parsing", len(lines)) as advance:
            sentences += parse_spacy(_counted(lines, advance))
    sentences = sentences[:limit] if limit else sentences
    live, tokenizer = _encoder(model, device, verbose=verbose)
    with progress("reading attention", len(sentences)) as advance:
        found = head_statistics(
            live, tokenizer, sentences, Reading(align=_align(align)), advance=advance
        )
    content = found.to_dict(margin, share) | {
        "model": Path(model).name if Path(model).is_dir() else model,
        "sources": [path.name for path in (*(conllu or ()), *(text or ()))],
    }
    _report(content)
    if output is not None:
        with writing(output):
            write_heads(output, content)
    if html is not None:
        from tokenlight.plots.heads import page

        with writing(html):
            html.write_text(page(content), encoding="utf-8")


def _encoder(name: str, device: str | None, *, verbose: bool) -> tuple[Any, Any]:
    """The model and its tokenizer; an encoder without a head is given one, since no attention
    depends on it."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    from tokenlight.capture.live import LiveModel
    from tokenlight.errors import DamagedFile, UnsupportedModel
    from tokenlight.explainer import Explainer

    if not verbose:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    try:
        explainer = Explainer.from_pretrained(name, device=device)
    except (UnsupportedModel, DamagedFile) as refused:
        if not Path(name).is_dir():
            raise
        try:
            model = AutoModelForSequenceClassification.from_pretrained(name, use_safetensors=True)
        except (OSError, ValueError):
            raise refused from None
        model = model.float().eval()
        if device is not None:
            model.to(device)
        return LiveModel(model), AutoTokenizer.from_pretrained(name)
    return explainer.live, explainer.tokenizer


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise BadInput(f"{path} cannot be read as UTF-8 text: {broken}.") from broken
    return [line.strip() for line in content.splitlines() if line.strip()]


def _counted(lines: list[str], advance: Callable[[int], Any]) -> Iterator[str]:
    for line in lines:
        yield line
        advance(1)


def _align(given: str) -> Literal["offsets", "official"]:
    from tokenlight.errors import UnknownName

    if given == "official":
        return "official"
    if given != "offsets":
        raise UnknownName.among("way to align words", given, ("offsets", "official"))
    return "offsets"


def _report(content: dict[str, Any]) -> None:
    mask = content["mask"]
    for kind in ("syntactic", "positional"):
        names = [
            f"{layer + 1}.{head}"
            for layer, row in enumerate(mask[kind])
            for head, value in enumerate(row)
            if value
        ]
        typer.echo(f"{kind:10} {len(names):3} heads  {' '.join(names)}")
