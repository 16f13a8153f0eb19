"""``tokenlight diff``: what moved between two models, precisions or prompts; fails a build."""

from pathlib import Path

import typer

from tokenlight.cli import options as option
from tokenlight.cli.console import clean, spare, writing
from tokenlight.cli.explain import parsed
from tokenlight.cli.options import flag
from tokenlight.errors import MissingExtra, in_flags
from tokenlight.progress import progress

MOVED = 1  # exit status where something moved beyond a limit


@clean
def diff(
    a: str = option.argument("A", "Model before: embedded model, folder or hub id."),
    b: str = option.argument("B", "Model after; may be A again."),
    data: str = option.DATA,
    *,
    method: str = flag(
        "How to explain; auto takes one of the most faithful measured. See: tokenlight methods.",
        "--method -x",
        "auto",
        metavar=option.SPEC,
        autocompletion=option.completed,
    ),
    limit: int | None = option.LIMIT,
    text: str | None = option.COLUMN,
    dtype_a: str | None = flag("Precision of A, such as bfloat16.", show_default="float32"),
    dtype_b: str | None = flag("Precision of B.", show_default="float32"),
    prompt_a: str = flag("What A reads; {text} stands for the text.", default="{text}"),
    prompt_b: str = flag("What B reads; {text} stands for the text.", default="{text}"),
    max_flips: float = flag("Largest share of predictions that may change.", default=0.01),
    min_focus: float = flag(
        "Smallest mean rank correlation of the words' scores, A with B.", default=0.8
    ),
    max_drop: float = flag("Largest fall of the mean AOPC (faithfulness), A to B.", default=0.02),
    json: Path | None = flag("Write the comparison as JSON."),
    seed: int = option.SEED,
    device: str | None = option.DEVICE,
    batch_tokens: int | None = option.BATCH_TOKENS,
    batch_size: int | None = option.BATCH_SIZE,
    verbose: bool = option.VERBOSE,
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
    (wanted,) = parsed([method], "auto")
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
