"""How a command speaks: tables, a word beside the answer, and one clean line for what is refused; and a
model for it, loaded without the chatter of the libraries."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokenlight.errors import BadInput, MissingExtra, TokenlightError
from tokenlight.progress import progress

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

REFUSED = 2  # exit status, the same as for a wrong option
UNFINISHED = 1  # exit status where some part is missing; the same command continues
INTERRUPTED = 130  # exit status of a command that Ctrl-C stopped


def clean(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a TokenlightError into a message on standard error; ``verbose`` adds the traceback."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
            sys.stdout.flush()  # a closed pipe shows here, where it is handled, not at shutdown
        except TokenlightError as refused:
            if options.get("verbose"):
                traceback.print_exc()
            complain(str(refused))
            raise typer.Exit(REFUSED) from refused

    return run


def complain(message: str) -> None:
    """One message on standard error, red where there are colours."""
    tell(message, "red", title="error: ")


def tell(message: str, style: str = "dim", *, title: str = "") -> None:
    """A word beside the answer, on standard error."""
    from tokenlight.plots.characters import visible

    try:
        from rich.text import Text

        from tokenlight.plots.terminal import console_on
    except (ImportError, MissingExtra):  # rich may be what is missing
        sys.stderr.write(f"{title}{visible(message)}\n")
        return
    line = Text.assemble((title, f"bold {style}"), (visible(message), style))
    console_on(sys.stderr).print(line, soft_wrap=True)


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> None:
    """Print cells in columns, under the names in ``head``; a cell is a text, or one of rich."""
    from rich.table import Table
    from rich.text import Text

    from tokenlight.plots.characters import in_line
    from tokenlight.plots.terminal import console_on

    made = Table(box=None, pad_edge=False, show_header=bool(head), padding=(0, 2, 0, 0))
    for number, name in enumerate(head or ("", "")):
        made.add_column(name, overflow="fold", no_wrap=not number)
    for row in rows:
        made.add_row(*(one if isinstance(one, Text) else Text(in_line(one)) for one in row))
    console_on(sys.stdout).print(made)


def refuse(wrong: object, why: str) -> None:
    """What options say together and cannot be."""
    if wrong:
        raise BadInput(why)


def spare(inputs: Mapping[str, str | Path | None], outputs: Mapping[str, Path | None]) -> None:
    """Refuse, before any work, to write over a file that is read; both by the names of options."""
    for (option, place), (name, given) in product(outputs.items(), inputs.items()):
        if place is None or given is None or not (place.exists() and Path(given).exists()):
            continue
        if place.samefile(given):
            raise BadInput(f"{option} {place} would overwrite {name} {given}; give another name.")


def reading(option: str, place: Path, what: str) -> AbstractContextManager[None]:
    """A file that cannot be read, or holds something else, is refused in words."""
    said = f"{option} {place} is no readable UTF-8 file of {what}: "
    return BadInput.telling(said, OSError, ValueError)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """A file that cannot be written is the person's to mend, so it is refused in words."""
    try:
        yield
    except (BrokenPipeError, TokenlightError):
        raise
    except OSError as broken:
        raise BadInput(f"cannot write {place}: {broken.strerror or broken}.") from broken


@contextmanager
def resumable(kept: Callable[[], str]) -> Iterator[None]:
    """Work that the same command goes on with, however it is stopped; ``kept``: what there is of it."""
    from tokenlight.scale.engine import DiskFull

    try:
        yield
    except KeyboardInterrupt:
        tell(f"stopped: {kept()}; the same command continues from there.")
        raise typer.Exit(INTERRUPTED) from None
    except DiskFull as full:
        complain(str(full))
        raise typer.Exit(UNFINISHED) from None


def hushed(*, verbose: bool) -> None:
    """Only tokenlight speaks from here on: no bars, retries or advice of transformers and its hub."""
    if verbose:
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel("ERROR")


def loaded(
    name: str,
    *,
    batch: tuple[int | None, int | None] = (None, None),
    verbose: bool = False,
    **how: Any,
) -> Explainer:
    """The Explainer of a model; ``batch``: most tokens and most texts that go through it at once."""
    with progress(f"loading {name}", None):
        hushed(verbose=verbose)
        from tokenlight.explainer import Explainer

        explainer = Explainer.from_pretrained(name, **how)
    live = explainer.live
    live.batch_tokens, live.batch_size = batch
    if how.get("device") is None and live.device.type == "cuda":
        tell(f"computing on the GPU ({live.device}); --device cpu takes the processor")
    return explainer
