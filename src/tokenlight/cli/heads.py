"""``tokenlight heads``: which attention heads look at a syntactic head or a fixed position."""

from pathlib import Path
from typing import Literal

import typer

from tokenlight.cli import options as option
from tokenlight.cli.console import clean, loaded, reading, refuse, tell, writing
from tokenlight.cli.options import flag
from tokenlight.errors import BadInput

ALIGNED = "as --align sets it"
FEW = 100  # sentences below which shares are rough


@clean
def heads(  # noqa: PLR0917 - a parameter an option
    model: str = option.MODEL,
    conllu: list[Path] | None = flag("Parsed text, CoNLL-U (.gz too); repeatable.", metavar="FILE"),
    text: list[Path] | None = flag(
        "Plain text, a paragraph per line, for spaCy to parse; repeatable.", metavar="FILE"
    ),
    output: Path | None = flag("Write the heads file, for mask_lrp.", "-o --output"),
    html: Path | None = flag("Write a page of figures."),
    align: Literal["offsets", "official"] = flag(
        "How attention is read: words and tokens paired by their characters, or as Mask-LRP's own "
        "code does it, with special tokens and offset 0 counted and [SEP] masked.",
        default="offsets",
    ),
    zero_offset: bool | None = flag(
        "Whether a head that looks at its own token is positional.", show_default=ALIGNED
    ),
    special: bool | None = flag(
        "Whether special tokens' own attention counts.", show_default=ALIGNED
    ),
    explain_mask: Literal["none", "cls_sep", "sep"] | None = flag(
        "Special tokens that no token may attend to.", show_default=ALIGNED
    ),
    limit: int = flag("Only the first N sentences; 0 reads all.", default=0, min=0, metavar="N"),
    margin: float | None = flag(
        "ξ_synt: by how much a syntactic head beats the commonest position.", show_default="0.1"
    ),
    synt_thres: str | None = flag(
        "How often it looks at the head of nsubj, obj, amod and advmod, in place of --margin.",
        metavar="A,B,C,D",
        show_default="from the text",
    ),
    share: float = flag("ξ_pos: how often a positional head looks at its position.", default=0.8),
    device: str | None = option.DEVICE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Find syntactic and positional attention heads, for mask_lrp.

    They are counted on parsed text: --conllu, or --text for spaCy to parse.
    """
    import numpy as np

    from tokenlight.files.documents import text_of
    from tokenlight.heads.mask import write_heads
    from tokenlight.heads.sentence import parse_spacy, read_conllu
    from tokenlight.heads.statistics import Reading, head_statistics
    from tokenlight.progress import progress

    refuse(not conllu and not text, "nothing is there to read: give --conllu FILE or --text FILE.")
    least = _least(margin, synt_thres)
    sentences = [sentence for path in conllu or () for sentence in read_conllu(path)]
    for path in text or ():
        with reading("--text", path, "text"):
            lines = [line.strip() for line in text_of(path).split("\n") if line.strip()]
        with progress("parsing", len(lines)) as advance:
            sentences += parse_spacy(line for line in lines if not advance(1))
    sentences = sentences[:limit] if limit else sentences
    explainer = loaded(model, device=device, verbose=verbose)
    live, tokenizer = explainer.live, explainer.tokenizer
    how = Reading.named(
        align,
        live,
        tokenizer,
        include_zero_offset=zero_offset,
        exclude_special=None if special is None else not special,
        explain_mask=explain_mask,
    )
    with progress("reading attention", len(sentences)) as advance:
        found = head_statistics(live, tokenizer, sentences, how, advance=advance)
    content = found.to_dict(least, share) | {
        "model": Path(model).name if Path(model).is_dir() else model,
        "sources": [path.name for path in (*(conllu or ()), *(text or ()))],
    }
    for kind in ("syntactic", "positional"):
        names = [f"{layer + 1}.{head}" for layer, head in np.argwhere(content["mask"][kind])]
        typer.echo(f"{kind:10} {len(names):3} heads  {' '.join(names)}".rstrip())
    if len(sentences) < FEW:
        few = f"{len(sentences)} sentence{'s' * (len(sentences) > 1)}"
        tell(f"note: counted on {few}, which tells little of a head; give {FEW} or more.", "yellow")
    if output is not None:
        with writing(output):
            write_heads(output, content)
    if html is not None:
        from tokenlight.files.write import write_text
        from tokenlight.plots.figures import heads_page

        with writing(html):
            write_text(html, heads_page(content))
    for place in filter(None, (output, html)):
        tell(f"wrote {place}", "")


def _least(margin: float | None, typed: str | None) -> float | list[float]:
    """The margin above the text's own shares, or the four thresholds in its place."""
    from tokenlight.heads.statistics import RELATIONS, SYNTACTIC_MARGIN

    if typed is None:
        return SYNTACTIC_MARGIN if margin is None else margin
    refuse(margin is not None, "--margin does not go with --synt-thres; leave out one of the two.")
    try:
        nsubj, obj, amod, advmod = map(float, typed.split(","))
    except ValueError:
        each = f"give one each for {', '.join(RELATIONS)}, such as 0.5,0.6,0.7,0.5"
        raise BadInput(f"--synt-thres {typed} is not four numbers; {each}.") from None
    return [nsubj, obj, amod, advmod]
