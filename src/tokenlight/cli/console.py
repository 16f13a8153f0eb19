"""Shared by all commands: messages and tables, one-line errors, and loading a model quietly."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokenlight.cli.flag_hints import format_for_command_line, format_text_for_command_line
from tokenlight.cli.pipes import closed_pipes_tolerated
from tokenlight.errors import BadInput, MissingExtra, TokenlightError
from tokenlight.progress import progress_bar

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

EXIT_REFUSED = 2  # exit status of an input that was refused, the same as for a wrong option
EXIT_UNFINISHED = 1  # exit status where some part is missing; the same command continues
EXIT_INTERRUPTED = 130  # exit status of a command that Ctrl-C stopped


def handle_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: an error of the library becomes one message and an exit status.

    The message names command-line options (see :mod:`tokenlight.cli.flag_hints`). The option ``--verbose``,
    where the command has one, adds the traceback. A closed pipe does not stop the command.
    """

    @functools.wraps(command)
    def run(**options: Any) -> None:
        with closed_pipes_tolerated():
            try:
                command(**options)
            except TokenlightError as error:
                if options.get("verbose"):
                    traceback.print_exc()
                print_error(format_for_command_line(error))
                raise typer.Exit(EXIT_REFUSED) from error

    return run


def print_error(message: str) -> None:
    """Print an error message on standard error, in red where colors are supported."""
    print_message(message, "red", title="error: ")


def print_message(message: str, style: str = "dim", *, title: str = "") -> None:
    """Print a message on standard error, apart from the results of the command.

    Args:
        message: Plain text; nothing in it is read as markup.
        style: A style of rich.
        title: The title of a box around the message; empty for no box.
    """
    from tokenlight.plots.characters import make_visible

    try:
        from rich.text import Text

        from tokenlight.plots.terminal import make_console
    except (ImportError, MissingExtra):  # rich may be the library that is missing
        sys.stderr.write(f"{title}{make_visible(message)}\n")
        return
    # Messages quote users' texts, which may hold control characters and markup of rich.
    line = Text.assemble((title, f"bold {style}"), (make_visible(message), style))
    make_console(sys.stderr).print(line, soft_wrap=True)


def print_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> None:
    """Print rows of cells in columns.

    Args:
        rows: Cells are plain values or ``rich.text.Text``.
        header: Names of the columns; without them, two columns without a header.
    """
    from rich.table import Table
    from rich.text import Text

    from tokenlight.plots.characters import to_single_line
    from tokenlight.plots.terminal import make_console

    table = Table(box=None, pad_edge=False, show_header=bool(header), padding=(0, 2, 0, 0))
    for column_index, name in enumerate(header or ("", "")):
        is_first_column = column_index == 0  # names, which are to be copied, are not wrapped
        table.add_column(name, overflow="fold", no_wrap=is_first_column)
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(to_single_line(cell)) for cell in row]
        table.add_row(*cells)
    make_console(sys.stdout).print(table)


def check_not_overwritten(
    inputs: Mapping[str, str | Path | None], outputs: Mapping[str, Path | None]
) -> None:
    """Refuse, before any work, to write over a file that the command reads.

    Args:
        inputs: Name of an option or argument → file that is read.
        outputs: Name of an option → file that is written.

    Raises:
        BadInput: An output is the same file as an input.
    """
    for (output_name, output), (input_name, source) in product(outputs.items(), inputs.items()):
        if output is None or source is None:
            continue
        if not output.exists() or not Path(source).exists():
            continue
        # samefile also sees through links and other spellings of a path.
        if output.samefile(source):
            raise BadInput(
                f"{output_name} {output} would overwrite {input_name} {source}. Give another name.",
                code="output-overwrites-input",
            )


@contextmanager
def read_errors_reported(option: str, path: Path, description: str) -> Iterator[None]:
    """Raise BadInput for a file that cannot be read, or holds something else, inside the block.

    Args:
        option: The option that names the file, for the message.
        path: The file.
        description: What the file should be, such as "a heads file".
    """
    try:
        yield
    except TokenlightError:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{option} {path} cannot be read as a UTF-8 file of {description}: "
            f"{getattr(error, 'strerror', None) or error}. Give another file.",
            code="option-file-unreadable",
        ) from error


@contextmanager
def write_errors_reported(path: Path) -> Iterator[None]:
    """Raise BadInput for a file that cannot be written inside the block, since the user can fix that."""
    try:
        yield
    except TokenlightError:
        raise
    except OSError as error:
        raise BadInput(
            f"Cannot write {path}: {error.strerror or error}. Give another path, or free some space.",
            code="output-unwritable",
        ) from error


@contextmanager
def resumable_command(describe_progress: Callable[[], str]) -> Iterator[None]:
    """End the command with a message if it is interrupted or stopped inside the block: it can be resumed.

    Args:
        describe_progress: Returns a phrase on what is finished, such as "3 of 4 parts are kept in DIR".
    """
    from tokenlight.scale.engine import RunStopped

    try:
        yield
    except KeyboardInterrupt:
        print_message(f"stopped: {describe_progress()}; run the same command again to continue.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except RunStopped as error:
        print_error(format_text_for_command_line(str(error)))
        raise typer.Exit(EXIT_UNFINISHED) from None


def silence_libraries(*, verbose: bool) -> None:
    """Turn off progress bars, retries and advice of transformers and its hub, unless ``verbose``."""
    if verbose:
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel("ERROR")  # it reports every retry as a warning


@contextmanager
def _gc_paused_while_importing() -> Iterator[None]:
    """Import libraries without garbage collection, and exempt what they leave from later collections.

    Modules live as long as the process, so each collection would walk through all of them and free nothing.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_explainer(
    name: str,
    *,
    batch_limits: tuple[int | None, int | None] = (None, None),
    verbose: bool = False,
    **load_options: Any,
) -> Explainer:
    """Load a model for a command.

    Args:
        name: Embedded model, folder or hub id.
        batch_limits: Maximum number of tokens and of texts per batch.
        verbose: Whether the libraries may print their own messages.
        **load_options: Keywords of ``Explainer.from_pretrained``, such as ``device``.
    """
    with progress_bar(f"loading {name}", None), _gc_paused_while_importing():
        silence_libraries(verbose=verbose)
        from tokenlight.explainer import Explainer

        explainer = Explainer.from_pretrained(name, **load_options)
    runner = explainer.runner
    runner.batch_tokens, runner.batch_size = batch_limits
    if load_options.get("device") is None and runner.device.type == "cuda":
        print_message(f"computing on the GPU ({runner.device}); use --device cpu for the CPU")
    return explainer
