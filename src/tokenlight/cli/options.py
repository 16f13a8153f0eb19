"""How commands declare their options, and the options that several commands share.

Every command imports this module, so it imports nothing heavy.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import typer

from tokenlight.errors import BadInput

SENTIMENT_MODEL = "tokenlight/sentiment"  # the default of commands that read plain texts
MODEL_HELP = "An embedded model (see tokenlight models), a folder or a hub id"
TEXTS_HELP = (
    ".jsonl, .json, .csv, .tsv, .parquet or .txt file (all but .parquet may be .gz), or the name of a "
    "data set on the Hugging Face hub (needs the library datasets)"
)
# Titles of the groups of options, in the order in which the help shows them.
INPUT = "Input"
FILE = "Texts of a file"
TARGET = "What to explain"
METHOD = "Method"
MEASURES = "Measures"
LIMITS = "Limits"
DISPLAY = "What to show"
OUTPUT = "Files to write"
FOLDER = "Results in a folder"
COMPUTE = "Model and device"
GROUPS = (INPUT, FILE, TARGET, METHOD, MEASURES, LIMITS, DISPLAY, OUTPUT, FOLDER, COMPUTE)
SPEC_METAVAR = "NAME[:OPTION=VALUE,...]"
# Values of options that several commands have.
LongTextPolicy = Literal["error", "truncate", "stride"]
Quantization = Literal["4bit", "8bit"]
EngineKind = Literal["local", "ray"]


def declare_option(
    help: str, names: str = "", default: Any = None, *, group: str | None = None, **settings: Any
) -> Any:
    """Declare an option of a command.

    Args:
        help: The help text.
        names: Spellings such as ``"--output -o"``; by default the name of the parameter.
        default: The default value; ``...`` makes the option required.
        group: Title of the group in which the help lists the option.
        **settings: Further keywords of ``typer.Option``.
    """
    return typer.Option(default, *names.split(), help=help, rich_help_panel=group, **settings)


def declare_argument(metavar: str, help: str, default: Any = ...) -> Any:
    """Declare a positional argument of a command; without ``default`` it is required.

    Args:
        metavar: The name that the help shows.
        help: The help text.
        default: The value where the argument is left out; ``...`` makes it required.
    """
    return typer.Argument(default, metavar=metavar, help=help)


def with_options_of(
    declaration: Callable[..., None],
) -> Callable[[Callable[[Mapping[str, Any]], None]], Callable[..., None]]:
    """Let a command take the options that another function declares, as one mapping by name.

    Typer reads names, types, defaults and help from ``declaration``, which is never called. A command with
    many options can so hand all of them on.
    """

    def decorate(command: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
        @functools.wraps(declaration)
        def run(**arguments: Any) -> None:
            command(arguments)

        run.__name__ = command.__name__
        return run

    return decorate


def parse_pairs(
    option: str, entries: Iterable[str] | None, *, allow_bare: bool = True
) -> dict[str, str]:
    """Parse the values of a repeatable option of the form ``NAME=PATH``.

    Args:
        option: The option, for messages.
        entries: The values, in the order of the command line.
        allow_bare: Whether a PATH without a name is accepted; it is stored under the empty name.

    Returns:
        Each name with its path.

    Raises:
        BadInput: An entry has another form, or a name occurs twice.

    Example:
        >>> from tokenlight.cli.options import parse_pairs
        >>> parse_pairs("--model", ["sst2=models/bert", "models/other"])
        {'sst2': 'models/bert', '': 'models/other'}
    """
    path_by_name: dict[str, str] = {}
    for entry in entries or ():
        # The last "=" counts: names of models may hold one, paths rarely do.
        name, equals_sign, path = entry.rpartition("=")
        is_bare = not equals_sign
        if not path or (not name and not (is_bare and allow_bare)):
            expected = "NAME=PATH, or a PATH for all" if allow_bare else "MODEL=FILE"
            raise BadInput(
                f"{option} {entry!r} is not valid. Give {expected}.", code="option-not-a-pair"
            )
        if name in path_by_name:
            raise BadInput(
                f"{option} is given twice for {name or 'everything'}. Leave one out.",
                code="option-name-twice",
            )
        path_by_name[name] = path
    return path_by_name


def method_option(default: str) -> Any:
    """Declare ``--method``; ``default`` is shown in the help."""
    return declare_option(
        "The method (see tokenlight methods), auto for the one recommended for this kind of input, best for "
        "the one that measures most faithful on your texts, or FILE.py:CLASS for your own; repeatable.",
        "--method -x",
        group=METHOD,
        metavar=SPEC_METAVAR,
        show_default=default,
    )


def long_option(default: LongTextPolicy) -> Any:
    """Declare ``--long`` with this default."""
    return declare_option(
        "What to do with a text longer than the model can read: report an error, truncate it, or read it "
        "in overlapping windows (stride).",
        group=INPUT,
        default=default,
    )


# What is explained, and where it is computed.
MODEL = declare_argument("MODEL", f"{MODEL_HELP}.")
DATA = declare_argument("DATA", f"The texts: a {TEXTS_HELP}.")
DEVICE = declare_option(
    "Where to compute: cpu, cuda, cuda:1 …", show_default="a GPU if there is one", group=COMPUTE
)
BATCH_TOKENS = declare_option("Maximum tokens per batch.", min=1, metavar="N", group=COMPUTE)
BATCH_SIZE = declare_option("Maximum texts per batch.", min=1, metavar="N", group=COMPUTE)
DTYPE = declare_option(
    "Precision of the weights: float32, bfloat16, float16, or auto (as saved).",
    show_default="auto for models that generate text, else float32",
    group=COMPUTE,
)
QUANTIZE = declare_option(
    "Load the weights of linear layers in 4 or 8 bits (bitsandbytes).", group=COMPUTE
)
VERBOSE = declare_option(
    "Show tracebacks and the messages of torch and transformers.", "--verbose", False
)
SEED = declare_option(
    "Random seed of methods that sample and of confidence intervals.", default=0, group=METHOD
)
# Which texts of a file are read.
LIMIT = declare_option("Read only the first N texts.", min=1, metavar="N", group=FILE)
SPLIT = declare_option("Split of a data set on the hub, such as test.", group=FILE)
COLUMN = declare_option(
    "Column that holds the text; two columns joined by + for a pair.",
    "--text",
    metavar="COLUMN",
    group=FILE,
)
LABEL = declare_option("Column that holds the true label.", metavar="COLUMN", group=FILE)
# Workers of long jobs.
ENGINE = declare_option(
    "Run the workers as local processes or on a Ray cluster.", show_default="local", group=FOLDER
)
WORKERS = declare_option(
    "Number of workers.", min=1, metavar="N", show_default="one per core", group=FOLDER
)
ADDRESS = declare_option(
    "With --engine ray: address of a running cluster.", show_default="start one here", group=FOLDER
)
