"""``tokenlight heads``: find attention heads that look at the syntactic head or at a fixed position."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from tokenlight.cli import options as option
from tokenlight.cli.console import (
    handle_errors,
    load_explainer,
    print_message,
    read_errors_reported,
    write_errors_reported,
)
from tokenlight.cli.options import declare_option
from tokenlight.errors import BadInput
from tokenlight.progress import progress_bar

ALIGN_DEFAULT = "set by --align"
MIN_SENTENCES = 100  # with fewer sentences, the shares are rough


@handle_errors
def heads(  # noqa: PLR0917 - one parameter per option
    model: str = option.MODEL,
    conllu: list[Path] | None = declare_option(
        "Parsed text in CoNLL-U format (.gz too); repeatable.", metavar="FILE", group=option.INPUT
    ),
    text: list[Path] | None = declare_option(
        "Plain text, one paragraph per line, which spaCy parses; repeatable.",
        metavar="FILE",
        group=option.INPUT,
    ),
    output: Path | None = declare_option(
        "Write the heads file for mask_lrp.", "--output -o", group=option.OUTPUT
    ),
    html: Path | None = declare_option("Write a page of figures.", group=option.OUTPUT),
    align: Literal["offsets", "official"] = declare_option(
        "How attention is read: words and tokens paired by their characters (offsets), or as in the code "
        "of the Mask-LRP paper (official), which counts special tokens and offset 0 and masks [SEP].",
        default="offsets",
        group=option.METHOD,
    ),
    zero_offset: bool | None = declare_option(
        "Whether a head that looks at its own token counts as positional.",
        show_default=ALIGN_DEFAULT,
        group=option.METHOD,
    ),
    special: bool | None = declare_option(
        "Whether attention from special tokens counts.",
        show_default=ALIGN_DEFAULT,
        group=option.METHOD,
    ),
    explain_mask: Literal["none", "cls_sep", "sep"] | None = declare_option(
        "Special tokens that no token may attend to.",
        show_default=ALIGN_DEFAULT,
        group=option.METHOD,
    ),
    limit: int = declare_option(
        "Read only the first N sentences; 0 reads all.",
        default=0,
        min=0,
        metavar="N",
        group=option.INPUT,
    ),
    margin: float | None = declare_option(
        "ξ_synt: how much more often a syntactic attention head must look at the word's syntactic head than "
        "at the most common position.",
        show_default="0.1",
        group=option.METHOD,
    ),
    syntactic_thresholds: str | None = declare_option(
        "Instead of --margin: how often such a head must look at the head of nsubj, obj, amod and advmod.",
        metavar="A,B,C,D",
        show_default="from the text",
        group=option.METHOD,
    ),
    share: float = declare_option(
        "ξ_pos: how often a positional head must look at its position.",
        default=0.8,
        group=option.METHOD,
    ),
    device: str | None = option.DEVICE,
    verbose: bool = option.VERBOSE,
) -> None:
    """Find syntactic and positional attention heads, for mask_lrp.

    They are counted on parsed text: --conllu, or --text for spaCy to parse.
    """
    from tokenlight.attention_heads.statistics import StatisticsOptions, compute_head_statistics

    conllu_paths = conllu or []
    text_paths = text or []
    if not conllu_paths and not text_paths:
        raise BadInput(
            "There is no parsed text to read. Give --conllu FILE or --text FILE.",
            code="no-parsed-text",
        )
    # Read the text before the model is loaded, so that a missing file costs no time.
    threshold = _parse_thresholds(margin, syntactic_thresholds)
    sentences = _read_sentences(conllu_paths, text_paths)
    if limit:
        sentences = sentences[:limit]
    explainer = load_explainer(model, device=device, verbose=verbose)
    statistics_options = StatisticsOptions.from_alignment(
        align,
        explainer.runner,
        explainer.tokenizer,
        include_zero_offset=zero_offset,
        exclude_special=None if special is None else not special,
        explain_mask=explain_mask,
    )
    with progress_bar("reading attention", len(sentences)) as advance:
        statistics = compute_head_statistics(
            explainer.runner, explainer.tokenizer, sentences, statistics_options, advance=advance
        )
    # The path of a folder means nothing on another machine.
    model_name = Path(model).name if Path(model).is_dir() else model
    sources = [path.name for path in (*conllu_paths, *text_paths)]
    content = statistics.to_dict(threshold, share) | {"model": model_name, "sources": sources}
    try:
        # The files come first, since the reader of a pipe may be gone.
        written_paths = _write_results(content, output, html)
    finally:
        _print_heads(content["mask"], len(sentences))
    for path in written_paths:
        print_message(f"wrote {path}", "")


def _read_sentences(conllu_paths: Sequence[Path], text_paths: Sequence[Path]) -> list[Any]:
    """Read parsed sentences, and parse plain text with spaCy."""
    from tokenlight.attention_heads.parsing import parse_spacy, read_conllu
    from tokenlight.files.parsing import read_text

    sentences: list[Any] = []
    for path in conllu_paths:
        sentences += read_conllu(path)
    for path in text_paths:
        with read_errors_reported("--text", path, "text"):
            lines = [line.strip() for line in read_text(path).split("\n")]
        paragraphs = [line for line in lines if line]
        with progress_bar("parsing", len(paragraphs)) as advance:
            sentences += parse_spacy(_count_read(paragraphs, advance))
    return sentences


def _count_read(paragraphs: Sequence[str], advance: Callable[[int], object]) -> Iterator[str]:
    """Yield the paragraphs, and advance the progress bar as spaCy reads them."""
    for paragraph in paragraphs:
        advance(1)
        yield paragraph


def _write_results(
    content: Mapping[str, Any], output: Path | None, html: Path | None
) -> list[Path]:
    """Write the heads file and the page, as far as they are wanted; return the paths written."""
    from tokenlight.attention_heads.mask import write_heads_file
    from tokenlight.files.write import write_text

    written_paths = []
    if output is not None:
        with write_errors_reported(output):
            write_heads_file(output, content)
        written_paths.append(output)
    if html is not None:
        from tokenlight.plots.figures import render_heads_page

        with write_errors_reported(html):
            write_text(html, render_heads_page(content))
        written_paths.append(html)
    return written_paths


def _print_heads(mask: Mapping[str, Any], num_sentences: int) -> None:
    """List the heads of each kind as ``layer.head``, layers counted from 1."""
    import numpy as np

    for kind in ("syntactic", "positional"):
        names = [f"{layer + 1}.{head}" for layer, head in np.argwhere(mask[kind])]
        typer.echo(f"{kind:10} {len(names):3} heads  {' '.join(names)}".rstrip())
    if num_sentences < MIN_SENTENCES:
        plural = "" if num_sentences == 1 else "s"
        print_message(
            f"note: counted on {num_sentences} sentence{plural}, which is too few to judge a head. "
            f"Give {MIN_SENTENCES} or more.",
            "yellow",
        )


def _parse_thresholds(margin: float | None, thresholds_text: str | None) -> float | list[float]:
    """Return the margin, or the four thresholds that replace it.

    Raises:
        BadInput: Both options are given, or ``--syntactic-thresholds`` is not four numbers.
    """
    from tokenlight.attention_heads.statistics import RELATIONS, SYNTACTIC_MARGIN

    if thresholds_text is None:
        return SYNTACTIC_MARGIN if margin is None else margin
    if margin is not None:
        raise BadInput(
            "--margin cannot be combined with --syntactic-thresholds. Leave one of them out.",
            code="margin-and-thresholds",
        )
    try:
        nsubj, obj, amod, advmod = map(float, thresholds_text.split(","))
    except ValueError:
        raise BadInput(
            f"--syntactic-thresholds {thresholds_text} is not four numbers. Give one for each of "
            f"{', '.join(RELATIONS)}, such as 0.5,0.6,0.7,0.5.",
            code="thresholds-not-four-numbers",
        ) from None
    return [nsubj, obj, amod, advmod]
