"""``tokenlight idf``: how rare each token is in a corpus, for views over many texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokenlight.cli.failures import clean, spare, writing
from tokenlight.cli.loading import hushed
from tokenlight.cli.options import DATA, SENTIMENT, Limit, Split, TextColumn, Verbose
from tokenlight.errors import in_flags


@clean
def idf(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help=f"The texts: a {DATA}",
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON file to write.")],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="Whose tokenizer counts: embedded model, folder or hub id."
        ),
    ] = SENTIMENT,
    text: TextColumn = None,
    limit: Limit = None,
    split: Split = None,
    verbose: Verbose = False,
) -> None:
    """Count in how many texts of CORPUS each token occurs.

    The metric token_overlap reads the file: tokenlight evaluate --metric token_overlap:corpus=FILE.
    """
    from transformers import AutoTokenizer

    from tokenlight import models
    from tokenlight.errors import BadInput
    from tokenlight.evaluation.corpus import Frequencies
    from tokenlight.files.tables import read
    from tokenlight.models.folder import SAFE, check
    from tokenlight.models.loading import refuse_missing_folder

    spare({"CORPUS": corpus}, {"-o": output})
    hushed(verbose=verbose)
    refuse_missing_folder(model)
    try:
        place = models.resolve(model)
        check(model, place, weights=False)
        tokenizer = AutoTokenizer.from_pretrained(place, **SAFE)
    except (OSError, ValueError) as missing:
        raise BadInput(
            f"no tokenizer found at {model!r}: {str(missing).splitlines()[0]} Give a folder with "
            "tokenizer.json, a hub id that this machine can reach, or an embedded model (tokenlight "
            "models lists them)."
        ) from missing
    texts = []
    with in_flags():
        examples = read(corpus, text=text, limit=limit, split=split, marks=False)
    for example in examples:
        given = example.text
        texts.append(given if isinstance(given, str) else "\n".join(_parts(given)))
    found = Frequencies.of(texts, tokenizer)
    with writing(output):
        found.save(output)
    typer.echo(f"{len(found.counts):,} token types in {found.documents:,} texts → {output}")


def _parts(given: object) -> tuple[str, ...]:
    """The texts of a pair or a question, counted as one document."""
    from tokenlight.data.tokens import Question

    if isinstance(given, Question):
        return given.question, given.context
    assert isinstance(given, tuple)
    return given
