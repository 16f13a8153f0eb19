"""Run ``tokenlight`` commands in processes of their own, without importing torch in each.

A fresh interpreter spends seconds on imports. These processes are forked from a server that has imported
everything already. Streams, signals, limits and exit status are their own, as in a shell. What an interpreter
does before ``main`` is tested in ``tests/unit/cli/test_app_startup.py``, in real ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.deadlines import DEADLINE_SECONDS

INPUT_FILE, OUTPUT_FILE, ERRORS_FILE = "stdin", "stdout", "stderr"
PRELOADED_MODULES = ["tests.helpers.command_imports"]


@dataclass(frozen=True)
class CommandResult:
    """What a finished command left; ``status`` is minus the signal for one that was killed."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True)
class CommandRequest:
    """What a process needs to run a command; a stream without a path is a pipe that nobody reads."""

    words: list[str]
    folder: Path
    environment: dict[str, str]
    input_path: Path
    output_path: Path | None
    errors_path: Path | None
    prepare: Callable[[], object] | None


class RunningCommand:
    """A command whose standard output and standard error go to files.

    Attributes:
        process: Its process.
        output_path: The file that holds its standard output so far.
    """

    def __init__(self, process: Any, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.process = process
        self._folder = folder
        self.output_path = Path(folder.name) / OUTPUT_FILE

    def wait(self) -> CommandResult:
        """Return the result; fail the test if the command does not end."""
        self.process.join(DEADLINE_SECONDS)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
            self.process.join()
        output = self.output_path.read_text(encoding="utf-8")
        errors = (Path(self._folder.name) / ERRORS_FILE).read_text(encoding="utf-8")
        self._folder.cleanup()
        assert status is not None, f"still running after {DEADLINE_SECONDS} s: {errors}"
        self.process.close()
        return CommandResult(status, output, errors)


def fork_context() -> Any:
    """Return the context of a fork server that has imported what commands import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    return context


def start_command(
    *arguments: object,
    answers: str = "",
    close_output: bool = False,
    close_errors: bool = False,
    prepare: Callable[[], object] | None = None,
) -> RunningCommand:
    """Start ``tokenlight`` with ``arguments``.

    Args:
        *arguments: The words behind the name of the command.
        answers: What it reads from standard input.
        close_output: Whether nobody reads its standard output, as in ``| true``.
        close_errors: Whether nobody reads its standard error.
        prepare: Called in the process before the command, to set a limit, for instance; it is pickled.
    """
    folder = tempfile.TemporaryDirectory(prefix="command-")
    stream_paths = [Path(folder.name) / name for name in (INPUT_FILE, OUTPUT_FILE, ERRORS_FILE)]
    for path in stream_paths:
        path.touch()
    stream_paths[0].write_text(answers, encoding="utf-8")
    request = CommandRequest(
        words=[str(argument) for argument in arguments],
        folder=Path.cwd(),
        environment=dict(os.environ),
        input_path=stream_paths[0],
        output_path=None if close_output else stream_paths[1],
        errors_path=None if close_errors else stream_paths[2],
        prepare=prepare,
    )
    process = fork_context().Process(target=_run_command, args=(request,))
    process.start()
    return RunningCommand(process, folder)


def run_command(*arguments: object, **options: Any) -> CommandResult:
    """Run ``tokenlight`` with ``arguments`` to its end; options as in ``start_command``."""
    return start_command(*arguments, **options).wait()


def _run_command(request: CommandRequest) -> None:
    """Run a command in this process, which exits with its status."""
    # The fork server may have been started by an engine, which blocks Ctrl-C while it starts one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The server keeps the folder and the environment of the moment at which it was started.
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    os.dup2(os.open(request.input_path, os.O_RDONLY), 0)
    _redirect(1, request.output_path)
    _redirect(2, request.errors_path)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the process's whole life
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["tokenlight", *request.words]
    from tokenlight.cli import main
    from tokenlight.scale import local_processes

    # A worker would import everything again for one small block.
    local_processes._process_context = lambda: multiprocessing.get_context("fork")
    if request.prepare is not None:
        request.prepare()
    main(request.words)


def _redirect(descriptor: int, path: Path | None) -> None:
    """Let a descriptor write to a file, or to a pipe that nobody reads."""
    if path is not None:
        target = os.open(path, os.O_WRONLY | os.O_APPEND)
    else:
        reader, target = os.pipe()
        os.close(reader)
    os.dup2(target, descriptor)
    os.close(target)
