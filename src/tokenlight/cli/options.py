"""How commands declare their options, and those that several have; nothing heavy is imported for them."""

from collections.abc import Iterable
from typing import Any, Literal

import typer

from tokenlight.errors import BadInput

SENTIMENT = "tokenlight/sentiment"
A_MODEL = "Embedded model (see tokenlight models), folder or hub id."
TEXTS = (
    ".jsonl, .json, .csv, .tsv, .parquet or .txt file (all but .parquet may be .gz), or the name of a "
    "data set (library datasets)."
)
SPEC = "NAME[:OPTION=VALUE,...]"
Long = Literal["error", "truncate", "stride"]
Quantized = Literal["4bit", "8bit"]
Engines = Literal["local", "ray"]


def flag(help: str, names: str = "", default: Any = None, **how: Any) -> Any:
    """An option, named as its parameter is unless it has ``names``; ``...`` as default: it must be given."""
    return typer.Option(default, *names.split(), help=help, **how)


def argument(metavar: str, help: str, default: Any = ...) -> Any:
    """What is given without a name."""
    return typer.Argument(default, metavar=metavar, help=help)


def pairs(option: str, given: Iterable[str] | None, *, bare: bool = True) -> dict[str, str]:
    """``NAME=PATH`` entries; ``bare``: a PATH without a name is for everything."""
    found: dict[str, str] = {}
    for entry in given or ():
        name, equals, path = entry.rpartition("=")
        if not path or (not name and (equals or not bare)):
            form = "NAME=PATH, or a PATH for all" if bare else "MODEL=FILE"
            raise BadInput(f"cannot read {option} {entry!r}: give {form}.")
        if name in found:
            raise BadInput(f"{option} names {name or 'everything'} twice.")
        found[name] = path
    return found


def methods(default: str) -> Any:
    """``--method``, of which a command has this default."""
    return flag(
        "How to explain; repeat to compare methods. tokenlight methods lists them; auto takes one "
        "of the most faithful measured for this kind of input, best measures on these texts.",
        "--method -x",
        metavar=SPEC,
        show_default=default,
    )


def long(default: Long) -> Any:
    """``--long``, of which a command has this default."""
    return flag(
        "Refuse, cut or read in windows what is longer than the model reads.", default=default
    )


MODEL = argument("MODEL", A_MODEL)
DATA = argument("DATA", f"The texts: a {TEXTS}")
DEVICE = flag("Where to compute: cpu, cuda, cuda:1 …", show_default="a GPU where there is one")
BATCH_TOKENS = flag("Maximum tokens per batch.", min=1, metavar="N")
BATCH_SIZE = flag("Maximum texts per batch.", min=1, metavar="N")
DTYPE = flag(
    "Precision of the weights: float32, bfloat16, float16, or auto (as saved).",
    show_default="auto for models that write, else float32",
)
QUANTIZE = flag("Load the weights of linear layers in 4 or 8 bits (bitsandbytes).")
VERBOSE = flag("Show tracebacks and the libraries' own messages.", "--verbose", False)
SEED = flag("Random seed, for methods that sample and for intervals.", default=0)
LIMIT = flag("Only the first N texts.", min=1, metavar="N")
SPLIT = flag("Split of a data set given by name.")
COLUMN = flag("Column that holds the text; two joined by + for a pair.", "--text", metavar="COLUMN")
ENGINE = flag("Run workers as local processes or on a Ray cluster.", show_default="local")
WORKERS = flag("Number of workers.", min=1, metavar="N", show_default="one per core")
ADDRESS = flag("Of a running cluster, with --engine ray.", show_default="start one here")
