"""The command line. It imports nothing heavy before a command does its work."""

import signal
import sys
import threading
from collections.abc import Sequence

_BROUGHT = ("typer", "rich", "jinja2", "markupsafe", "click", "shellingham")  # by the extra "cli"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``tokenlight`` with ``arguments``, or with those of the process; never returns."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no Unicode shows escapes rather than nothing.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        # A scheduler's polite end is answered as Ctrl-C is: what is done is kept, nothing half written.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from tokenlight.cli.app import app

        app(args=None if arguments is None else list(arguments), prog_name="tokenlight")
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library not in _BROUGHT:
            raise
        missed = f"The command line needs the library {library!r}, which is not installed."
        sys.stderr.write(f"{missed} Install it with: pip install 'tokenlight[cli]'\n")
        raise SystemExit(2) from None
