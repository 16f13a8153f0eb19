"""How a command fails: what tokenlight refuses is one clean line, what is unexpected a traceback."""

import functools
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from tokenlight.errors import BadInput, MissingExtra, TokenlightError

REFUSED = 2  # exit status, the same as for a wrong option
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


def spare(inputs: Mapping[str, str | Path | None], outputs: Mapping[str, Path | None]) -> None:
    """Refuse, before any work, to write over a file that is read; both by the names of options."""
    for option, place in outputs.items():
        for name, given in inputs.items():
            if place is None or given is None or not place.exists() or not Path(given).exists():
                continue
            if place.samefile(given):
                raise BadInput(
                    f"{option} {place} would overwrite {name} {given}, which is the same file; give "
                    "another name."
                )


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """A file that cannot be written is the person's to mend, so it is refused in words."""
    try:
        yield
    except OSError as broken:
        if isinstance(broken, BrokenPipeError | TokenlightError):
            raise
        raise BadInput(f"cannot write {place}: {broken.strerror or broken}.") from broken
