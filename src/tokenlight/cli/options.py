"""Options that several commands take, declared once; nothing heavy is imported for them."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tokenlight import registry

MODEL = "Embedded model (see tokenlight models), folder or hub id."
DATA = (
    ".jsonl, .json, .csv, .tsv, .parquet or .txt file (all but .parquet may be .gz), or the name of a "
    "data set (library datasets)."
)
METHOD = "NAME[:OPTION=VALUE,...]"
SENTIMENT = "tokenlight/sentiment"


def completed(incomplete: str) -> list[str]:
    """Method names for the shell's completion; torch is not imported for it."""
    return [name for name in registry.names("methods") if name.startswith(incomplete)]


def methods(default: str) -> Any:
    """``--method``, of which a command has this default."""
    return typer.Option(
        "--method",
        "-x",
        metavar=METHOD,
        help="How to explain; repeat to compare methods. tokenlight methods lists them; auto takes one "
        "of the most faithful measured for this kind of input, best measures on these texts.",
        show_default=default,
        autocompletion=completed,
    )


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
ModelOption = Annotated[str, typer.Option("--model", "-m", help=MODEL)]
Device = Annotated[
    str | None,
    typer.Option(
        help="Device to run the model on: cpu, cuda, cuda:1 …",
        show_default="a GPU where there is one",
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Maximum tokens per batch."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Maximum texts per batch."),
]
DType = Annotated[
    str | None,
    typer.Option(
        help="Precision of the weights: float32, bfloat16, float16, or auto (as saved).",
        show_default="auto for models that write, else float32",
    ),
]
Quantize = Annotated[
    Literal["4bit", "8bit"] | None,
    typer.Option(help="Load the weights of linear layers in 4 or 8 bits (bitsandbytes)."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show tracebacks and the libraries' own messages.")
]
Seed = Annotated[int, typer.Option(help="Random seed, for methods that sample and for intervals.")]
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"The texts: a {DATA}")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N texts.")]
Split = Annotated[str | None, typer.Option(help="Split of a data set given by name.")]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="COLUMN", help="Column that holds the text; two joined by + for a pair."
    ),
]
Long = Annotated[
    Literal["error", "truncate", "stride"],
    typer.Option(
        help="What to do with a text longer than the model reads: refuse it, cut it, or read it "
        "in overlapping windows."
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write JSON; - prints it and nothing else.")]
EngineName = Annotated[
    Literal["local", "ray"] | None,
    typer.Option(help="Run workers as local processes or on a Ray cluster.", show_default="local"),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of workers.", show_default="one per core"),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Ray cluster; only with --engine ray.",
        show_default="start one here",
    ),
]
