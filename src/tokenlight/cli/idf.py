"""``tokenlight idf``: how rare each token is in a corpus, for views over many texts."""

from pathlib import Path
from typing import Any

import typer

from tokenlight.cli import options as option
from tokenlight.cli.console import clean, spare, writing
from tokenlight.cli.loading import hushed
from tokenlight.cli.options import flag
from tokenlight.errors import in_flags


@clean
def idf(
    corpus: str = option.argument("CORPUS", f"The texts: a {option.TEXTS}"),
    *,
    output: Path = flag("JSON file to write.", "--output -o", ...),
    model: str = flag(
        "Model whose tokenizer counts: embedded model, folder or hub id.",
        "--model -m",
        option.SENTIMENT,
    ),
    text: str | None = option.COLUMN,
    limit: int | None = option.LIMIT,
    split: str | None = option.SPLIT,
    verbose: bool = option.VERBOSE,
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
        for example in read(corpus, text=text, limit=limit, split=split, marks=False):
            given: Any = example.text  # a pair or a question is counted as one document
            if isinstance(given, Question):
                given = given.question, given.context
            texts.append(given if isinstance(given, str) else "\n".join(given))
    found = Frequencies.of(texts, tokenizer)
    with writing(output):
        found.save(output)
    typer.echo(f"{len(found.counts):,} token types in {found.documents:,} texts → {output}")
