"""The command line. Heavy libraries are imported only by the commands that need them."""

import os
import signal
import sys
import threading
from collections.abc import Sequence

# Libraries that the extra "cli" installs. Without them there is no console to report an error on.
_CLI_LIBRARIES = ("typer", "rich", "jinja2", "markupsafe", "click", "shellingham")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command ``tokenlight``.

    Args:
        arguments: The arguments after ``tokenlight`` on the command line; by default those of the process.

    Raises:
        SystemExit: Always, with the exit status of the command.
    """
    # OpenMP reads this when torch is imported. Threads that wait busily slow down small batches several times
    # wherever another process wants a core; a user's own setting stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _escape_unprintable_characters()
    if threading.current_thread() is threading.main_thread():
        # Schedulers stop a job with SIGTERM. Handling it as Ctrl-C keeps finished work and leaves no
        # half-written file.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from tokenlight.cli.app import app

        command_line = None if arguments is None else list(arguments)
        app(args=command_line, prog_name="tokenlight")
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _CLI_LIBRARIES:
            raise
        sys.stderr.write(
            f"The command line needs the library {library!r}, which is not installed. "
            "Install it with: pip install 'tokenlight[cli]'\n"
        )
        raise SystemExit(2) from None


def _escape_unprintable_characters() -> None:
    """Print escapes for characters that the terminal's encoding does not have, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
