"""``tokenlight diff``: what moved between two models, precisions or prompts; fails a build."""

from pathlib import Path
from typing import Annotated

import typer

from tokenlight import registry
from tokenlight.cli import options as option
from tokenlight.cli.failures import clean, spare, writing
from tokenlight.errors import MissingExtra, in_flags
from tokenlight.progress import progress

MOVED = 1  # exit status where something moved beyond a limit


@clean
def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", help="Model before: embedded model, folder or hub id.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Model after; may be A again.")],
    data: option.Data,
    *,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-x",
            metavar=option.METHOD,
            help="How to explain; auto takes one of the most faithful measured. "
            "See: tokenlight methods.",
            autocompletion=option.completed,
        ),
    ] = "auto",
    limit: option.Limit = None,
    text: option.TextColumn = None,
    dtype_a: Annotated[
        str | None, typer.Option(help="Precision of A, such as bfloat16.", show_default="float32")
    ] = None,
    dtype_b: Annotated[
        str | None, typer.Option(help="Precision of B.", show_default="float32")
    ] = None,
    prompt_a: Annotated[
        str, typer.Option(help="What A reads; {text} stands for the text.")
    ] = "{text}",
    prompt_b: Annotated[
        str, typer.Option(help="What B reads; {text} stands for the text.")
    ] = "{text}",
    max_flips: Annotated[
        float, typer.Option(help="Largest share of predictions that may change.")
    ] = 0.01,
    min_focus: Annotated[
        float, typer.Option(help="Smallest mean rank correlation of the words' scores, A with B.")
    ] = 0.8,
    max_drop: Annotated[
        float, typer.Option(help="Largest fall of the mean AOPC (faithfulness), A to B.")
    ] = 0.02,
    json: Annotated[Path | None, typer.Option(help="Write the comparison as JSON.")] = None,
    seed: option.Seed = 0,
    device: option.Device = None,
    batch_tokens: option.BatchTokens = None,
    batch_size: option.BatchSize = None,
    verbose: option.Verbose = False,
) -> None:
    """Compare what two models decide on DATA, and by which words.

    The exit status is 1 if predictions, word scores or faithfulness moved beyond a limit.
    """
    from tokenlight.cli.loading import loaded
    from tokenlight.files.columns import taken
    from tokenlight.files.tables import read

    MissingExtra.check(["scipy"], "bench", "tokenlight diff")
    with progress("loading libraries", None):
        from tokenlight.evaluation.compare import Limits, Side, compare
    spare({"DATA": data}, {"--json": json})
    wanted = registry.parse(method)
    if wanted != ("auto", {}):
        registry.find("methods", wanted[0])
    with in_flags():
        examples = read(data, text=text, limit=limit, marks=False)
    batch = batch_tokens, batch_size
    sides = [
        Side(loaded(name, dtype=dtype, device=device, batch=batch, verbose=verbose), prompt)
        for name, dtype, prompt in ((a, dtype_a, prompt_a), (b, dtype_b, prompt_b))
    ]
    found = compare(sides[0], sides[1], examples, method=wanted, seed=seed)
    column = taken({one.columns for one in examples}, passed_on=True).split(",")[0].split(";")[0]
    print(f"{found.texts} texts{f', {column}' * bool(column)}, explained by {found.method}")
    for place in found.left_out:
        print(f"left out: {place}, which has no text")
    for line in found.in_words():
        print(line)
    if json is not None:
        from tokenlight.files.write import json_text, write_text

        with writing(json):
            write_text(json, json_text(found.to_dict(), indent=1))
    failures = found.failures(Limits(max_flips, min_focus, max_drop))
    for failure in failures:
        print(f"moved: {failure}")
    if failures:
        raise typer.Exit(MOVED)
    print("nothing moved beyond its limit")
