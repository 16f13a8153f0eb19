"""``tokenlight idf``: how rare each token is in a corpus, for views over many texts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tokenlight.cli.failures import clean, spare, writing
from tokenlight.cli.loading import hushed
from tokenlight.cli.options import DATA, SENTIMENT, Limit, Split, TextColumn, Verbose
from tokenlight.errors import in_flags


@clean
def idf(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help=f"The texts: a {DATA}")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON file to write.")],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="Model whose tokenizer counts: embedded model, folder or hub id."
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
    from tokenlight.data.tokens import Question
    from tokenlight.evaluation.corpus import Frequencies, tokenizer_of
    from tokenlight.files.tables import read

    spare({"CORPUS": corpus}, {"-o": output})
    hushed(verbose=verbose)
    tokenizer = tokenizer_of(model)
    texts = []
    with in_flags():
        examples = read(corpus, text=text, limit=limit, split=split, marks=False)
    for example in examples:  # a pair or a question is counted as one document
        given: Any = example.text
        if isinstance(given, Question):
            given = given.question, given.context
        texts.append(given if isinstance(given, str) else "\n".join(given))
    found = Frequencies.of(texts, tokenizer)
    with writing(output):
        found.save(output)
    typer.echo(f"{len(found.counts):,} token types in {found.documents:,} texts → {output}")
