"""Keep a command running when the reader of its output leaves early, as in ``tokenlight … | head``.

A closed pipe is not a failure of the command: further output is dropped, requested files are still written,
and the exit status is that of the command.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

# Exit status of a command that had nothing but printing left to do: 128 + SIGPIPE, as shells report it.
EXIT_PIPE_CLOSED = 141


class PipeGuard:
    """A text stream that drops further output once the reader has closed the pipe."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.is_pipe_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._discard_output()
            return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._discard_output()

    def _discard_output(self) -> None:
        """Redirect the descriptor to the null device, since Python flushes its buffer again at shutdown."""
        self.is_pipe_closed = True
        with suppress(OSError, ValueError):  # a stream without a descriptor has nothing to redirect
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self.stream.fileno())
            os.close(null_device)


@contextmanager
def closed_pipes_tolerated() -> Iterator[None]:
    """Let a reader close the pipe of standard output or error without an exception inside the block."""
    original_stdout = sys.stdout
    original_stderr = sys.stderr
    sys.stdout = PipeGuard(original_stdout)
    sys.stderr = PipeGuard(original_stderr)
    try:
        yield
    finally:
        # Flush while the guards are in place, so that a closed pipe is handled here, not at shutdown.
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout = original_stdout
        sys.stderr = original_stderr


def is_output_pipe_closed() -> bool:
    """Return whether the reader of standard output is known to have closed the pipe."""
    return bool(getattr(sys.stdout, "is_pipe_closed", False))
